//! Writing to stdout: whole, at once, and without a panic.
//!
//! A reader that went away (`bq | head -1`) is no error: the command ends silently with status 0. Any other failure is one
//! line and exit code 1. SIGPIPE stays ignored, since it would also end a command whose controller hangs up.

use crate::fail::Fail;
use std::io::{ErrorKind, IsTerminal, Write};

/// Writes all of it to stdout.
pub fn write(bytes: &[u8]) -> Result<(), Fail> {
    write_while_read(bytes).map(|_| ())
}

/// The same; whether there is still somebody who reads. What goes on for ever ends when there is nobody.
pub fn write_while_read(bytes: &[u8]) -> Result<bool, Fail> {
    let stdout = std::io::stdout();
    let mut stdout = stdout.lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Fail::here(format!("cannot write the output: {}", crate::text::os_error(&error)))),
    }
}

/// Writes a JSON document: as it came into a pipe or file, indented on a terminal.
pub fn write_json(document: &[u8]) -> Result<(), Fail> {
    let pretty = std::io::stdout().is_terminal();
    let mut text = match pretty.then(|| serde_json::from_slice::<serde_json::Value>(document)) {
        Some(Ok(value)) => serde_json::to_vec_pretty(&value).unwrap_or_else(|_| document.to_vec()),
        _ => document.to_vec(),
    };
    if text.last() != Some(&b'\n') {
        text.push(b'\n');
    }
    write(&text)
}
