//! `bq`: see the library.

fn main() -> std::process::ExitCode {
    cli::bq::main()
}
