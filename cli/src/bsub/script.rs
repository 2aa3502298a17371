//! The script: found, read whole at submission, and refused when it could not run as it is.
//!
//! The text that is stored is the text that was read, byte for byte. Nothing is repaired: a byte-order mark, Windows line
//! ends or a missing interpreter line are each refused with their own sentence, since the job would only fail later.

use crate::fail::Fail;
use crate::text::os_error;
use proto::api::SCRIPT_BYTES_MAX;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A script as read.
#[derive(Debug, PartialEq, Eq)]
pub struct Script {
    /// Its name in messages: a path, or "standard input".
    pub shown: String,
    /// The job's name, if no other is given.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// The script that runs one command line.
pub fn wrap(command: &str) -> Result<Script, Fail> {
    if command.trim().is_empty() {
        return Err(
            Fail::usage("--wrap has nothing to run").hint("name a command, such as --wrap 'hostname'")
        );
    }
    if command.contains('\0') {
        return Err(Fail::usage("--wrap holds a NUL byte"));
    }
    let text = format!("#!/bin/sh\n# made by bsub --wrap\n\n{command}\n");
    Ok(Script { shown: "--wrap".to_owned(), name: "wrap".to_owned(), text })
}

/// Reads the script that was named, or standard input for `-` and nothing.
pub fn read(named: Option<&OsStr>, path_variable: Option<&OsStr>) -> Result<Script, Fail> {
    let Some(named) = named.filter(|n| *n != "-") else {
        let stdin = std::io::stdin();
        if named.is_none() && stdin.is_terminal() {
            return Err(Fail::usage("no script given").hint(
                "name a script, a command with --wrap 'COMMAND', or give a script on standard input; see `bsub --help`",
            ));
        }
        let bytes = read_all(stdin.lock(), "standard input")?;
        let text = check(bytes, "standard input")?;
        return Ok(Script { shown: "standard input".to_owned(), name: "bsub".to_owned(), text });
    };
    let path = find(named, path_variable);
    let shown = path.display().to_string();
    // A pipe such as /dev/stdin or <(…) is a script like any other: it is read to its end.
    let file = open(&path, &shown)?;
    let bytes = read_all(file, &shown)?;
    let name = path.file_name().unwrap_or(named).to_string_lossy().into_owned();
    let text = check(bytes, &shown)?;
    Ok(Script { shown, name, text })
}

/// As named if there is a slash or such a file here, else in `PATH`; as named where it is nowhere.
fn find(named: &OsStr, path_variable: Option<&OsStr>) -> PathBuf {
    let here = PathBuf::from(named);
    if named.as_bytes().contains(&b'/') || here.exists() {
        return here;
    }
    let directories = path_variable.map(|p| std::env::split_paths(p).collect::<Vec<_>>()).unwrap_or_default();
    directories.into_iter().map(|dir| dir.join(named)).find(|path| path.is_file()).unwrap_or(here)
}

fn open(path: &Path, shown: &str) -> Result<File, Fail> {
    let cannot = |e: std::io::Error| Fail::usage(format!("cannot read script {shown:?}: {}", os_error(&e)));
    let file =
        File::options().read(true).custom_flags(libc::O_NOCTTY).open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Fail::usage(format!("there is no script {shown:?}"))
                .hint("name a file; to run one command line, write bsub --wrap 'COMMAND'"),
            _ => cannot(e),
        })?;
    if file.metadata().map_err(cannot)?.is_dir() {
        return Err(Fail::usage(format!("{shown:?} is a directory, not a script")));
    }
    Ok(file)
}

fn read_all(from: impl Read, shown: &str) -> Result<Vec<u8>, Fail> {
    let mut bytes = Vec::new();
    from.take(SCRIPT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Fail::usage(format!("cannot read {shown}: {}", os_error(&e))))?;
    Ok(bytes)
}

/// The text, if it can run as it is.
fn check(bytes: Vec<u8>, shown: &str) -> Result<String, Fail> {
    let refuse = |what: String, hint: &str| Err(Fail::usage(format!("{shown}: {what}")).hint(hint));
    const INTERPRETER: &str = "let the first line be its interpreter, such as #!/bin/bash";
    if bytes.len() > SCRIPT_BYTES_MAX {
        return refuse(
            format!("the script is larger than {SCRIPT_BYTES_MAX} bytes"),
            "keep data in files and let the script read them",
        );
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return refuse("the script is empty".to_owned(), INTERPRETER);
    }
    if bytes.starts_with(b"\xef\xbb\xbf") || bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")
    {
        return refuse(
            "the script begins with a byte-order mark, which hides its interpreter line".to_owned(),
            "save it as UTF-8 without a mark, for example: sed -i '1s/^\\xef\\xbb\\xbf//' FILE",
        );
    }
    if bytes.starts_with(b"\x7fELF") || bytes.contains(&0) {
        return refuse(
            "this is a program or other binary file, not a script".to_owned(),
            "to run a program, write bsub --wrap 'PROGRAM ARGUMENTS'",
        );
    }
    let Ok(text) = String::from_utf8(bytes) else {
        return refuse(
            "the script is not UTF-8".to_owned(),
            "convert it, for example: iconv -f latin1 -t utf-8 FILE",
        );
    };
    if let Err(what) = line_ends(&text) {
        return refuse(what, "convert it, for example: sed -i 's/\\r$//' FILE (or dos2unix FILE)");
    }
    if !text.starts_with("#!") {
        let what = if text.trim_start().starts_with("#!") {
            "the interpreter line (#!) is not at the very beginning of the script"
        } else {
            "the script has no interpreter line"
        };
        return refuse(what.to_owned(), INTERPRETER);
    }
    let interpreter = text[2..].lines().next().unwrap_or_default().trim();
    if !interpreter.starts_with('/') {
        return refuse(
            format!("the interpreter {interpreter:?} is not an absolute path"),
            "let the first line be such as #!/bin/bash or #!/usr/bin/env python3",
        );
    }
    Ok(text)
}

/// Carriage returns at a line's end, or in the block of comments where they would stick to a value.
fn line_ends(text: &str) -> Result<(), String> {
    if !text.contains('\r') {
        return Ok(());
    }
    if !text.contains('\n') {
        return Err("the script has old Mac line ends (CR), which make one comment of it".to_owned());
    }
    let mut header = true;
    for (at, line) in text.split('\n').enumerate() {
        header &= line.trim().is_empty() || line.starts_with('#');
        if line.ends_with('\r') {
            return Err(format!("the script has Windows line ends (CR LF), first in line {}", at + 1));
        }
        if header && line.contains('\r') {
            return Err(format!("line {} holds a carriage return", at + 1));
        }
    }
    // One inside a command, such as a quoted string, is the script's own business.
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(bytes: &[u8]) -> String {
        let fail = check(bytes.to_vec(), "job.sh").expect_err("refused");
        assert_eq!(fail.exit_code(), 2);
        assert!(fail.error.hint.is_some());
        fail.error.message
    }

    #[test]
    fn each_fault_has_its_own_sentence() {
        for (bytes, message) in [
            (&b""[..], "job.sh: the script is empty"),
            (b"\n\n", "job.sh: the script is empty"),
            (b"echo hi\n", "job.sh: the script has no interpreter line"),
            (
                b"\t#!/bin/bash\necho hi\n",
                "job.sh: the interpreter line (#!) is not at the very beginning of the script",
            ),
            (
                b"\n#!/bin/bash\necho hi\n",
                "job.sh: the interpreter line (#!) is not at the very beginning of the script",
            ),
            (
                b"\xef\xbb\xbf#!/bin/bash\n",
                "job.sh: the script begins with a byte-order mark, which hides its interpreter line",
            ),
            (b"\x7fELF\x02\x01", "job.sh: this is a program or other binary file, not a script"),
            (b"#!/bin/sh\n\0", "job.sh: this is a program or other binary file, not a script"),
            (b"#!/bin/sh\necho \xe9\n", "job.sh: the script is not UTF-8"),
            (b"#!bash\n", "job.sh: the interpreter \"bash\" is not an absolute path"),
            (b"#!\n", "job.sh: the interpreter \"\" is not an absolute path"),
            (
                b"#!/bin/bash\r\n#BATCH --job-name=crlf\r\n\r\necho hi\r\n",
                "job.sh: the script has Windows line ends (CR LF), first in line 1",
            ),
            (
                b"#!/bin/bash\n#BATCH --job-name=mix\r\necho \"a\rb\"\n",
                "job.sh: the script has Windows line ends (CR LF), first in line 2",
            ),
            (
                b"#!/bin/bash\recho hi\r",
                "job.sh: the script has old Mac line ends (CR), which make one comment of it",
            ),
            (b"#!/bin/bash\n#BATCH -J a\r b\ntrue\n", "job.sh: line 2 holds a carriage return"),
        ] {
            assert_eq!(refusal(bytes), message);
        }
        let large = [b"#!/bin/sh\n".to_vec(), vec![b'#'; SCRIPT_BYTES_MAX]].concat();
        assert_eq!(refusal(&large), "job.sh: the script is larger than 4194304 bytes");
    }

    #[test]
    fn a_script_is_kept_byte_for_byte() {
        for text in [
            "#!/bin/bash\necho \"a\rb\"",
            "#! /bin/bash -l\necho ok\n",
            "#!/usr/bin/nonesuch\n",
            "#!/bin/sh\n# ö\n",
        ] {
            assert_eq!(check(text.as_bytes().to_vec(), "x").unwrap(), text);
        }
    }

    #[test]
    fn a_script_is_looked_for_here_and_then_in_path() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("job-of-this-test.sh");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        let found = read(Some("job-of-this-test.sh".as_ref()), Some(dir.path().as_os_str())).unwrap();
        assert_eq!((found.name.as_str(), found.shown), ("job-of-this-test.sh", script.display().to_string()));
        let message = |path: &Path| read(Some(path.as_os_str()), None).unwrap_err().error.message;
        assert!(message(dir.path()).ends_with("is a directory, not a script"));
        assert!(message(&dir.path().join("none")).starts_with("there is no script"));
        assert!(
            message(Path::new("/bin/true")).ends_with("this is a program or other binary file, not a script")
        );
    }

    #[test]
    fn a_command_line_is_wrapped_whole() {
        assert_eq!(
            wrap("echo \"$1\"; true").unwrap().text,
            "#!/bin/sh\n# made by bsub --wrap\n\necho \"$1\"; true\n"
        );
        assert!(wrap(" ").is_err());
    }
}
