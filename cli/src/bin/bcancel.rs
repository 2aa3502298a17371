//! `bcancel`: see the library.

fn main() -> std::process::ExitCode {
    cli::bcancel::main()
}
