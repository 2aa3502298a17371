//! noded's side of the launcher.
//!
//! Requests go out in order through one task; answers come in through another, which reads every last one before it says that the
//! launcher is gone, and says so only when it is dead and reaped: its locks are then released, and what an attempt's lock says is true.

use super::{ANSWER_BYTES_MAX, ANSWERS_FD, Answer, EVENTS_FD, MODE, REQUESTS_FD, Request, request};
use crate::spec::{AttemptSpec, LauncherSetup};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair,
};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What the launcher tells noded.
#[derive(Debug)]
pub enum LauncherEvent {
    /// A shepherd runs; the descriptor names it.
    Forked {
        /// For which allocation.
        id: i64,
        /// The shepherd.
        pidfd: OwnedFd,
    },
    /// The attempt has a shepherd or had one.
    Taken {
        /// Which.
        id: i64,
    },
    /// There will be no shepherd.
    Failed {
        /// For which allocation.
        id: i64,
        /// Why.
        message: String,
    },
    /// The launcher is dead; requests without an answer may or may not have been carried out.
    Gone,
}

/// A launcher that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A system call failed.
    #[error("the launcher cannot be started: {}", crate::sys::io_text(.0))]
    Io(#[from] io::Error),
    /// It ended before it was ready.
    #[error("the launcher ended before it was ready ({0}): its last words are in the log")]
    NotReady(String),
}

/// A running launcher.
pub struct Launcher {
    requests: UnboundedSender<Vec<u8>>,
}

impl Launcher {
    /// Starts one and waits until it is ready. `tell` is called with what it says from then on.
    pub async fn start(
        setup: &LauncherSetup,
        events: &File,
        tell: impl Fn(LauncherEvent) + Send + 'static,
    ) -> Result<Launcher, StartError> {
        let (requests, its_requests) = StdUnixStream::pair()?;
        let (answers, its_answers) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(io::Error::from)?;
        let child = spawn(its_requests.into(), its_answers, events)?;
        requests.set_nonblocking(true)?;
        let mut requests = UnixStream::from_std(requests)?;
        set_nonblocking(&answers)?;
        // SAFETY: the value owns its descriptor and never gives it away while it is registered.
        let answers = unsafe { AsyncFd::register(answers) }.map_err(io::Error::from)?;
        let setup = serde_json::to_vec(setup).map_err(io::Error::from)?;
        // A launcher that is dead already shows in the answers, with its status.
        let _ = requests.write_all(&request(&setup)).await;
        let mut child = child;
        match receive(&answers).await {
            Ok(Some((Answer::Ready, _))) => {}
            _ => return Err(StartError::NotReady(child.wait().await?.to_string())),
        }
        let (sender, queue) = unbounded_channel();
        tokio::spawn(write_requests(requests, queue));
        tokio::spawn(read_answers(answers, child, tell));
        Ok(Launcher { requests: sender })
    }

    /// Asks for a shepherd, whose record may be the spare one. Answered by an event, in order.
    pub fn launch(&self, spec: &AttemptSpec, spare: Option<i64>) {
        let mut body = Request::head(spec.id, spare);
        serde_json::to_writer(&mut body, spec).expect("a spec is plain data");
        // If the task is gone so is the launcher, and its event tells.
        let _ = self.requests.send(request(&body));
    }
}

fn spawn(requests: OwnedFd, answers: OwnedFd, events: &File) -> io::Result<Child> {
    // Out of the way of the numbers that they are to get.
    let above = |fd: i32| -> io::Result<OwnedFd> {
        // SAFETY: fcntl returns a new descriptor or -1.
        match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, EVENTS_FD + 1) } {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        }
    };
    let given = [
        (above(requests.as_raw_fd())?, REQUESTS_FD),
        (above(answers.as_raw_fd())?, ANSWERS_FD),
        (above(events.as_raw_fd())?, EVENTS_FD),
    ];
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("noded").arg(MODE).env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    let numbers: Vec<(i32, i32)> = given.iter().map(|(fd, number)| (fd.as_raw_fd(), *number)).collect();
    // SAFETY: only system calls, no allocation, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for (fd, number) in &numbers {
                if libc::dup2(*fd, *number) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            // Not in noded's session: a terminal's signals are not for it.
            libc::setsid();
            Ok(())
        });
    }
    Command::from(command).spawn()
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain fcntl calls on an open descriptor.
    let set = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

async fn write_requests(mut stream: UnixStream, mut queue: UnboundedReceiver<Vec<u8>>) {
    while let Some(request) = queue.recv().await {
        if stream.write_all(&request).await.is_err() {
            return;
        }
    }
}

async fn read_answers(answers: AsyncFd<OwnedFd>, mut child: Child, tell: impl Fn(LauncherEvent)) {
    loop {
        match receive(&answers).await {
            Ok(Some((Answer::Forked { id }, Some(pidfd)))) => tell(LauncherEvent::Forked { id, pidfd }),
            Ok(Some((Answer::Taken { id }, _))) => tell(LauncherEvent::Taken { id }),
            Ok(Some((Answer::Failed { id, message }, _))) => tell(LauncherEvent::Failed { id, message }),
            Ok(Some((answer, _))) => {
                tracing::error!("the launcher gave an answer that makes no sense: {answer:?}")
            }
            Ok(None) => break,
            Err(error) => {
                // Nothing more can be learnt from it; without its sockets it ends.
                tracing::error!("the launcher's answers cannot be read: {error}");
                let _ = child.start_kill();
                break;
            }
        }
    }
    match child.wait().await {
        Ok(status) => tracing::warn!("the launcher has ended ({status})"),
        Err(error) => tracing::error!("the launcher's end cannot be awaited: {error}"),
    }
    tell(LauncherEvent::Gone);
}

/// One answer with its descriptor. `None` at the end.
async fn receive(answers: &AsyncFd<OwnedFd>) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
    loop {
        let mut ready = answers.readable().await?;
        if let Ok(result) = ready.try_io(|fd| receive_now(fd.get_ref())) {
            return result;
        }
    }
}

fn receive_now(answers: &OwnedFd) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
    let mut bytes = [0; ANSWER_BYTES_MAX];
    let mut rights = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let message =
        recvmsg::<()>(answers.as_raw_fd(), &mut slices, Some(&mut rights), MsgFlags::MSG_CMSG_CLOEXEC)
            .map_err(io::Error::from)?;
    let mut pidfd = None;
    for control in message.cmsgs().map_err(io::Error::from)? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // SAFETY: the kernel has just made them for us.
            pidfd = descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).next();
        }
    }
    let length = message.bytes;
    if length == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..length])?, pidfd)))
}
