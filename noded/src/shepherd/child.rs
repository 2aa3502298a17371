//! Between fork and exec: from a root process of noded's to the user's script.
//!
//! The order matters: into the control groups before anything else, limits while still root, then the user and never back, and only then anything
//! that touches the user's files. What fails goes up a pipe that the exec closes, as a sentence; nothing of the job's runs then.

use super::script::{self, Script, Shebang};
use crate::cgroup::JobGroup;
use crate::clock::boottime_us;
use crate::spec::AttemptSpec;
use crate::sys::{errno_text, io_text, set_signal};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::SigSet;
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The names of limits as submissions spell them.
const LIMITS: [(&str, Resource); 14] = [
    ("as", Resource::RLIMIT_AS),
    ("core", Resource::RLIMIT_CORE),
    ("cpu", Resource::RLIMIT_CPU),
    ("data", Resource::RLIMIT_DATA),
    ("fsize", Resource::RLIMIT_FSIZE),
    ("locks", Resource::RLIMIT_LOCKS),
    ("memlock", Resource::RLIMIT_MEMLOCK),
    ("msgqueue", Resource::RLIMIT_MSGQUEUE),
    ("nice", Resource::RLIMIT_NICE),
    ("nproc", Resource::RLIMIT_NPROC),
    ("rss", Resource::RLIMIT_RSS),
    ("rtprio", Resource::RLIMIT_RTPRIO),
    ("sigpending", Resource::RLIMIT_SIGPENDING),
    ("stack", Resource::RLIMIT_STACK),
];
/// What a child says when only the exec is left to do.
const RUNNING: u8 = b'R';

/// Why there will be no script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exit status that a shell would give: the script itself cannot be run. Absent: the launch failed.
    pub exit_code: Option<i32>,
    /// For people.
    pub message: String,
}

/// What came up the pipe by the time it was closed.
#[derive(Debug, PartialEq)]
pub enum ChildReport {
    /// The script runs.
    Running {
        /// Since, microseconds since boot.
        at_us: u64,
    },
    /// It does not.
    Failed(Failure),
    /// The child was killed on its way.
    Nothing,
}

impl ChildReport {
    /// Reads what came.
    pub fn read(bytes: &[u8]) -> ChildReport {
        let (running, rest) = match bytes.split_first() {
            Some((&RUNNING, rest)) if rest.len() >= 8 => {
                let (at, rest) = rest.split_at(8);
                (at.try_into().ok().map(u64::from_ne_bytes), rest)
            }
            _ => (None, bytes),
        };
        match (running, serde_json::from_slice(rest)) {
            (_, Ok(failure)) => ChildReport::Failed(failure),
            (Some(at_us), Err(_)) if rest.is_empty() => ChildReport::Running { at_us },
            _ => ChildReport::Nothing,
        }
    }
}

/// Prepares and execs. Never returns.
pub fn run(
    spec: &AttemptSpec,
    group: &JobGroup<'_>,
    born_in_unified: bool,
    script: &Script,
    pipe: OwnedFd,
    nofile_soft: u64,
) -> ! {
    let mut pipe = File::from(pipe);
    let failure = prepare(spec, group, born_in_unified, script, &mut pipe, nofile_soft);
    if let Ok(bytes) = serde_json::to_vec(&failure) {
        // The shepherd is dead if this fails, and then the record says that the attempt is lost.
        let _ = pipe.write_all(&bytes);
    }
    // SAFETY: ends the process without running anything of the shepherd's.
    unsafe { libc::_exit(125) }
}

/// Returns only if something failed.
fn prepare(
    spec: &AttemptSpec,
    group: &JobGroup<'_>,
    born_in_unified: bool,
    script: &Script,
    pipe: &mut File,
    nofile_soft: u64,
) -> Failure {
    let steps = || -> Result<(CString, Vec<CString>, Vec<CString>), Failure> {
        // 1. Into the groups.
        group.enter(born_in_unified).map_err(|e| failed(e.to_string()))?;
        plain_oom_score().map_err(|e| failed(format!("oom_score_adj: {}", io_text(&e))))?;
        // 2. A session of its own, signals as at login.
        // SAFETY: a plain system call.
        unsafe { libc::setsid() };
        plain_signals().map_err(|e| failed(format!("signals: {}", io_text(&e))))?;
        // 3. Limits, while hard ones can still be read as root's.
        let warnings = set_limits(spec, nofile_soft);
        // 4. The user, for good.
        become_user(spec).map_err(|e| failed(io_text(&e)))?;
        // 5. Only now the user's files.
        // SAFETY: a plain system call that cannot fail.
        unsafe { libc::umask(spec.umask) };
        std::env::set_current_dir(&spec.chdir)
            .map_err(|e| failed(format!("chdir {:?}: {}", spec.chdir, io_text(&e))))?;
        open_files(spec)?;
        let env = environment(spec, &warnings)?;
        // 6. What is left of ours closes at the exec; the names are taken before, since one may need a descriptor.
        // SAFETY: a plain system call. Everything is opened with close-on-exec anyway: an old kernel loses a second fence only.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        let name =
            script.reachable_name().map_err(|e| failed(format!("the script's file: {}", io_text(&e))))?;
        let Some(shebang) = Shebang::of(&spec.script) else {
            return Err(unrunnable(
                126,
                "the script does not begin with \"#!\" and an interpreter".to_owned(),
            ));
        };
        let args = script::arguments(&shebang, &name, &spec.args)
            .map_err(|_| failed("an argument of the script holds a NUL byte".to_owned()))?;
        Ok((args[0].clone(), args, env))
    };
    let (interpreter, args, env) = match steps() {
        Ok(ready) => ready,
        Err(failure) => return failure,
    };
    let mut running = vec![RUNNING];
    running.extend_from_slice(&boottime_us().to_ne_bytes());
    if let Err(e) = pipe.write_all(&running) {
        return failed(format!("pipe: {}", io_text(&e)));
    }
    let Err(errno) = nix::unistd::execve(&interpreter, &args, &env);
    let failure = exec_failure(&interpreter.to_string_lossy(), errno as i32);
    // The job's own error file has it too, as a shell would have written it.
    let _ = writeln!(io::stderr(), "better-compute: {}", failure.message);
    failure
}

fn failed(message: String) -> Failure {
    Failure { exit_code: None, message }
}

fn unrunnable(exit_code: i32, message: String) -> Failure {
    Failure { exit_code: Some(exit_code), message }
}

fn exec_failure(interpreter: &str, errno: i32) -> Failure {
    match errno {
        libc::ENOENT if !Path::new(interpreter).exists() => {
            unrunnable(127, format!("interpreter {interpreter:?} not found"))
        }
        libc::ENOENT => {
            unrunnable(127, format!("interpreter {interpreter:?} needs a program that is not found"))
        }
        libc::E2BIG => {
            failed("exec: the script's arguments and environment together are too long".to_owned())
        }
        libc::EACCES | libc::ENOEXEC | libc::EISDIR | libc::ENOTDIR | libc::ELOOP => {
            unrunnable(126, format!("interpreter {interpreter:?} cannot be executed: {}", errno_text(errno)))
        }
        _ => failed(format!("exec {interpreter:?}: {}", errno_text(errno))),
    }
}

/// The shepherd may be kept from the OOM killer; a job is not.
fn plain_oom_score() -> io::Result<()> {
    let path = "/proc/self/oom_score_adj";
    if std::fs::read_to_string(path)?.trim() == "0" { Ok(()) } else { std::fs::write(path, "0") }
}

/// The launcher gave every signal its default but those that it and the shepherds ignore.
fn plain_signals() -> io::Result<()> {
    for signal in [libc::SIGPIPE, libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        set_signal(signal, libc::SIG_DFL)?;
    }
    Ok(SigSet::empty().thread_set_mask()?)
}

/// Sets the submitter's soft limits, as far as the hard ones here allow. What could not be set is a line for the job's error file.
fn set_limits(spec: &AttemptSpec, nofile_soft: u64) -> Vec<String> {
    let mut warnings = Vec::new();
    let nofile = spec.rlimits.get("nofile").copied().unwrap_or(Some(nofile_soft));
    let asked =
        spec.rlimits.iter().filter(|(name, _)| *name != "nofile").map(|(name, soft)| (name.as_str(), *soft));
    for (name, soft) in asked.chain([("nofile", nofile)]) {
        let resource = match LIMITS.iter().find(|(known, _)| *known == name) {
            Some((_, resource)) => *resource,
            None if name == "nofile" => Resource::RLIMIT_NOFILE,
            None => {
                warnings.push(format!("resource limit {name:?} is unknown on this node and not set"));
                continue;
            }
        };
        let set = getrlimit(resource)
            .and_then(|(_, hard)| setrlimit(resource, soft.unwrap_or(RLIM_INFINITY).min(hard), hard));
        if let Err(errno) = set {
            let shown = soft.map_or("unlimited".to_owned(), |soft| soft.to_string());
            warnings.push(format!(
                "resource limit {name} cannot be set to {shown}: {}",
                errno_text(errno as i32)
            ));
        }
    }
    warnings
}

/// Takes the user's identity, and proves that there is no way back.
///
/// By system calls of its own: the C library would try to change all threads of a process that it no longer knows.
pub(super) fn become_user(spec: &AttemptSpec) -> io::Result<()> {
    let check = |what: &str, result: libc::c_long| match result {
        0 => Ok(()),
        _ => {
            let error = io::Error::last_os_error();
            Err(io::Error::new(error.kind(), format!("{what}: {}", io_text(&error))))
        }
    };
    let (uid, gid) = (spec.uid, spec.gid);
    // SAFETY: plain system calls; the groups outlive the call.
    unsafe {
        check("setgroups", libc::syscall(libc::SYS_setgroups, spec.groups.len(), spec.groups.as_ptr()))?;
        check("setresgid", libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check("setresuid", libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
        if uid != 0 && libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0 {
            return Err(io::Error::other("root could be taken back after setresuid"));
        }
    }
    Ok(())
}

fn open_files(spec: &AttemptSpec) -> Result<(), Failure> {
    let refused = |what: &str, path: &str, error: io::Error| {
        let parent = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty());
        let hint = match parent {
            Some(parent) if error.kind() == io::ErrorKind::NotFound && !parent.exists() => {
                format!(": its directory {:?} does not exist, and is not made", parent.display().to_string())
            }
            _ => String::new(),
        };
        failed(format!("{what} {path:?}: {}{hint}", io_text(&error)))
    };
    // Always at the end, so that several writers and the banner do not overwrite one another.
    let output = |what: &str, path: &str| {
        let mut options = File::options();
        options.append(true).create(true).mode(0o666).custom_flags(libc::O_NOCTTY);
        let file = options.open(path).map_err(|e| refused(what, path, e))?;
        if !spec.append && file.metadata().is_ok_and(|meta| meta.is_file()) {
            file.set_len(0).map_err(|e| refused(what, path, e))?;
        }
        Ok(file)
    };
    let input = spec.input.as_deref().unwrap_or("/dev/null");
    let stdin = File::options()
        .read(true)
        .custom_flags(libc::O_NOCTTY)
        .open(input)
        .map_err(|e| refused("input", input, e))?;
    let stdout = output("output", &spec.output)?;
    let stderr = spec.error.as_deref().map(|path| output("error", path)).transpose()?;
    let stderr_fd = stderr.as_ref().unwrap_or(&stdout).as_raw_fd();
    for (fd, number) in [(stdin.as_raw_fd(), 0), (stdout.as_raw_fd(), 1), (stderr_fd, 2)] {
        // SAFETY: both are open descriptors of ours; the copies do not close at exec.
        if unsafe { libc::dup2(fd, number) } < 0 {
            return Err(failed(format!("dup2: {}", io_text(&io::Error::last_os_error()))));
        }
    }
    Ok(())
}

/// The environment with what only this process knows, the warnings written to the error file on the way.
fn environment(spec: &AttemptSpec, warnings: &[String]) -> Result<Vec<CString>, Failure> {
    let mut warnings = warnings.to_vec();
    let mut env = spec.env.clone();
    env.insert("SLURM_TASK_PID".to_owned(), std::process::id().to_string());
    if let Some(home) = spec.home.as_deref().filter(|home| !Path::new(home).is_dir()) {
        warnings.push(format!("home directory {home:?} does not exist here: HOME is \"/\""));
        env.insert("HOME".to_owned(), "/".to_owned());
    }
    for warning in warnings {
        // A full disk is the job's own affair, from its first line on.
        let _ = writeln!(io::stderr(), "better-compute: warning: {warning}");
    }
    let joined = env.iter().map(|(name, value)| CString::new(format!("{name}={value}")));
    joined
        .collect::<Result<_, _>>()
        .map_err(|_| failed("an environment variable holds a NUL byte".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_up_the_pipe_says_how_far_the_child_got() {
        assert_eq!(ChildReport::read(b""), ChildReport::Nothing);
        let mut bytes = vec![RUNNING];
        bytes.extend_from_slice(&7u64.to_ne_bytes());
        assert_eq!(ChildReport::read(&bytes[..5]), ChildReport::Nothing);
        assert_eq!(ChildReport::read(&bytes), ChildReport::Running { at_us: 7 });
        let failure = exec_failure("/usr/bin/nonesuch", libc::ENOENT);
        assert_eq!(failure.message, "interpreter \"/usr/bin/nonesuch\" not found");
        assert_eq!(failure.exit_code, Some(127));
        let json = serde_json::to_vec(&failure).unwrap();
        assert_eq!(ChildReport::read(&json), ChildReport::Failed(failure.clone()));
        bytes.extend_from_slice(&json);
        assert_eq!(ChildReport::read(&bytes), ChildReport::Failed(failure));
    }
}
