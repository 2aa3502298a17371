//! The launcher's own process: read a request, take the lock, fork, answer.
//!
//! One thread, no runtime, as little memory as can be, since every fork copies its page tables. What it is asked to launch it does not
//! read: the shepherd does that in a process of its own.

use super::{ANSWERS_FD, Answer, EVENTS_FD, REQUESTS_FD, Request, read_request};
use crate::attempt;
use crate::shepherd;
use crate::spec::LauncherSetup;
use crate::sys::{self, Forked};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

/// How far the kernel's OOM killer should keep off the launcher and the shepherds, if it may be told so.
const OOM_SCORE_ADJ: &str = "-900";

/// The highest signal's number.
const SIGNAL_MAX: i32 = 64;

/// The whole life of a launcher. To be called before the process has any other thread.
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("noded launcher: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> anyhow::Result<()> {
    own_descriptors()?;
    // SAFETY: noded starts this process with these descriptors, and nothing else in it owns them.
    let (mut requests, answers, events) = unsafe {
        (UnixStream::from_raw_fd(REQUESTS_FD), OwnedFd::from_raw_fd(ANSWERS_FD), File::from_raw_fd(EVENTS_FD))
    };
    let Some(setup) = read_request(&mut requests)? else { return Ok(()) };
    let setup: LauncherSetup = serde_json::from_slice(&setup)?;
    // An earlier noded that was killed may have left a launcher with requests that it has not carried out yet. What that one has begun is to be
    // found by looking; what it may still begin is not.
    sys::lock_for_life(lock_file(&setup.state_dir.launcher_lock())?)?;
    setup.layout.enter_shepherds()?;
    // Without CAP_SYS_RESOURCE it cannot be lowered; the shepherds are then as likely a victim as any small process.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    let child_ended = signals()?;
    answer(&answers, &Answer::Ready, None)?;
    loop {
        let [request_ready, child_ready] = sys::wait_readable([requests.as_fd(), child_ended.as_fd()], None)?;
        if child_ready {
            while child_ended.read_signal()?.is_some() {}
            reap();
        }
        if request_ready {
            let Some(request) = read_request(&mut requests)? else { return Ok(()) };
            launch(&setup, &Request::read(&request)?, &answers, &events)?;
        }
    }
}

fn lock_file(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Nothing that noded's own parent left open may reach a job; and what is ours closes when a script is executed.
fn own_descriptors() -> anyhow::Result<()> {
    // SAFETY: plain system calls on descriptor numbers; nothing in this process owns those from 6 on.
    unsafe {
        if libc::syscall(libc::SYS_close_range, EVENTS_FD + 1, u32::MAX, 0) != 0 {
            for entry in std::fs::read_dir("/proc/self/fd")? {
                let number = entry?.file_name().to_string_lossy().parse::<i32>()?;
                if number > EVENTS_FD {
                    libc::close(number);
                }
            }
        }
        for fd in [REQUESTS_FD, ANSWERS_FD, EVENTS_FD] {
            if libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) != 0 {
                anyhow::bail!("it is started by noded, not by hand");
            }
        }
    }
    Ok(())
}

/// Every signal as a script should find it, but those that we wait for by descriptor, and SIGPIPE.
fn signals() -> anyhow::Result<SignalFd> {
    for signal in 1..=SIGNAL_MAX {
        // noded's terminal or service manager may signal the whole session: the launcher ends with noded, by its socket.
        let action = match signal {
            libc::SIGPIPE | libc::SIGINT | libc::SIGTERM | libc::SIGHUP => libc::SIG_IGN,
            libc::SIGKILL | libc::SIGSTOP => continue,
            _ => libc::SIG_DFL,
        };
        sys::set_signal(signal, action)?;
    }
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.add(Signal::SIGUSR1);
    mask.thread_set_mask()?;
    let mut chld = SigSet::empty();
    chld.add(Signal::SIGCHLD);
    Ok(SignalFd::with_flags(&chld, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

fn reap() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}

fn launch(
    setup: &LauncherSetup,
    request: &Request<'_>,
    answers: &OwnedFd,
    events: &File,
) -> anyhow::Result<()> {
    let Request { id, spare, spec } = *request;
    let spare = spare.map(|spare| setup.state_dir.spare(spare));
    let failed = |what: &str, error: std::io::Error| Answer::Failed {
        id,
        message: format!("{what}: {}", sys::io_text(&error)),
    };
    let record = match attempt::claim(&setup.state_dir.record(id), spare.as_deref()) {
        Ok(Some(record)) => record,
        Ok(None) => return answer(answers, &Answer::Taken { id }, None),
        Err(error) => return answer(answers, &failed("the attempt's record cannot be made", error), None),
    };
    // SAFETY: this process has one thread.
    match unsafe { sys::fork() } {
        Err(error) => answer(answers, &failed("a shepherd cannot be forked", error), None),
        Ok(Forked::Child) => shepherd::run(setup, id, spec, record, events),
        Ok(Forked::Parent(pid)) => {
            // It is our child and not reaped yet, so the number is its own.
            let pidfd = sys::pidfd_open(pid)?;
            drop(record);
            answer(answers, &Answer::Forked { id }, Some(&pidfd))
        }
    }
}

fn answer(answers: &OwnedFd, answer: &Answer, pidfd: Option<&OwnedFd>) -> anyhow::Result<()> {
    let bytes = serde_json::to_vec(answer)?;
    let descriptors: Vec<i32> = pidfd.map(AsRawFd::as_raw_fd).into_iter().collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights: &[ControlMessage<'_>] = if pidfd.is_some() { &rights } else { &[] };
    sendmsg::<()>(answers.as_raw_fd(), &[IoSlice::new(&bytes)], rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}
