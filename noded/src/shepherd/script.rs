//! The file of an attempt's script.
//!
//! It lies in noded's own spool, readable by its user and nobody else, and goes with the attempt. The spool can be entered but not
//! listed. Where the way to it is closed to the user (a state directory under somebody's home), the interpreter gets it by descriptor.

use crate::spec::AttemptSpec;
use crate::spool;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The lowest number that the descriptor gets which stands for a file that cannot be reached: out of the way of what scripts use.
const DESCRIPTOR_MIN: i32 = 63;

/// A script on disk.
pub struct Script {
    path: PathBuf,
    file: File,
}

impl Script {
    /// Writes it. One that is there is left over from a shepherd that died before it started anything.
    pub fn write(path: &Path, spec: &AttemptSpec) -> io::Result<Script> {
        let open = || File::options().read(true).write(true).create_new(true).mode(0o400).open(path);
        let mut file = match open() {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(path)?;
                open()?
            }
            // Somebody has tidied up the tmpfs, or a noded that stops has, while this one was launched.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                spool::make(path.parent().unwrap_or(Path::new("/")))?;
                open()?
            }
            other => other?,
        };
        file.write_all(spec.script.as_bytes())?;
        std::os::unix::fs::fchown(&file, Some(spec.uid), Some(spec.gid))?;
        Ok(Script { path: path.to_owned(), file })
    }

    /// Removes it. What cannot be removed now is swept by noded.
    pub fn remove(self) {
        let _ = fs::remove_file(self.path);
    }

    /// The name by which the calling process, as its user, can open it.
    pub fn reachable_name(&self) -> io::Result<CString> {
        let name = CString::new(self.path.as_os_str().as_bytes())?;
        // SAFETY: the name is terminated; access checks as the real user, which is the job's.
        if unsafe { libc::access(name.as_ptr(), libc::R_OK) } == 0 {
            return Ok(name);
        }
        // SAFETY: fcntl returns a new descriptor, without close-on-exec, or -1.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_DUPFD, DESCRIPTOR_MIN) } {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(CString::new(format!("/proc/self/fd/{fd}"))?),
        }
    }
}

/// What a script's first line names.
#[derive(Debug, PartialEq, Eq)]
pub struct Shebang<'a> {
    /// The program.
    pub interpreter: &'a str,
    /// Its one argument.
    pub argument: Option<&'a str>,
}

impl Shebang<'_> {
    /// Reads a script's first line as the kernel does: one argument, blanks in it and all.
    pub fn of(script: &str) -> Option<Shebang<'_>> {
        let blank = [' ', '\t'];
        let line = script.strip_prefix("#!")?.lines().next()?.trim_matches(blank);
        let (interpreter, rest) = line.split_once(blank).unwrap_or((line, ""));
        let argument = Some(rest.trim_matches(blank)).filter(|argument| !argument.is_empty());
        (!interpreter.is_empty()).then_some(Shebang { interpreter, argument })
    }
}

/// The whole argument vector.
pub fn arguments(shebang: &Shebang<'_>, name: &CString, args: &[String]) -> io::Result<Vec<CString>> {
    let mut all = vec![CString::new(shebang.interpreter)?];
    all.extend(shebang.argument.map(CString::new).transpose()?);
    all.push(name.clone());
    for arg in args {
        all.push(CString::new(OsStr::new(arg).as_bytes())?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_read_as_the_kernel_reads_it() {
        let of = |text| Shebang::of(text).map(|s| (s.interpreter, s.argument));
        assert_eq!(of("#!/bin/sh\ntrue\n"), Some(("/bin/sh", None)));
        assert_eq!(of("#! /bin/bash -l\n"), Some(("/bin/bash", Some("-l"))));
        assert_eq!(of("#!/usr/bin/env  -S python -u \t\n"), Some(("/usr/bin/env", Some("-S python -u"))));
        assert_eq!(of("#!\n"), None);
        assert_eq!(of("echo hi\n"), None);
    }
}
