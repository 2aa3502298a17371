//! `bctl`: see the library.

fn main() -> std::process::ExitCode {
    cli::bctl::main()
}
