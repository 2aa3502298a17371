//! Writes completions and man pages: `cargo run -p cli --example generate -- OUTDIR`.
//!
//! The pages' templates are in `man/` of the repository; what is written goes to OUTDIR/completions/{bash,zsh,fish} and OUTDIR/man.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(out) = std::env::args_os().nth(1) else {
        eprintln!("generate: no directory given\nhint: cargo run -p cli --example generate -- OUTDIR");
        return ExitCode::from(2);
    };
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../man");
    match cli::manual::generate(&templates, Path::new(&out)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("generate: {error}");
            ExitCode::FAILURE
        }
    }
}
