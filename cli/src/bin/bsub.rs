//! `bsub`: see the library.

fn main() -> std::process::ExitCode {
    cli::bsub::main()
}
