//! `binfo`: see the library.

fn main() -> std::process::ExitCode {
    cli::binfo::main()
}
