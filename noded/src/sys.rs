//! The few system calls that neither `std` nor `nix` has, and the wording of errors.
//!
//! Owns: open file description locks, pidfds, cloning a process straight into a control group, a process's start time.
//! Everything here is a thin wrapper; nothing decides anything.

use nix::errno::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// From the kernel's headers; `libc`'s constant of this name does not fit its own type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// An error's text as this project writes it: lower case, no number.
pub fn errno_text(errno: i32) -> String {
    let text = Errno::from_raw(errno).desc();
    let mut chars = text.chars();
    match chars.next() {
        // "I/O error" and its like keep their capitals.
        Some(first) if chars.clone().next().is_some_and(|c| c.is_lowercase()) => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

/// The same for an error of the standard library.
pub fn io_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => errno_text(errno),
        None => error.to_string(),
    }
}

fn lock_request() -> libc::flock {
    // SAFETY: flock is plain data; all zero is a valid value (whole file, pid 0 as OFD locks require).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Takes the write lock of the open file description, without waiting. False: another description holds it.
pub fn try_lock(file: &File) -> io::Result<bool> {
    let lock = lock_request();
    // SAFETY: the descriptor is open and the struct outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            e => Err(e),
        },
    }
}

/// Whether another open file description holds the lock. Takes nothing itself, so it never makes a starting shepherd give up.
pub fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = lock_request();
    // SAFETY: as above; the kernel writes the struct.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) } {
        0 => Ok(i32::from(lock.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes a file's write lock for this process alone, not for what it forks, for as long as it lives; waits for another that has it.
pub fn lock_for_life(file: File) -> io::Result<()> {
    let lock = lock_request();
    loop {
        // SAFETY: the descriptor is open and the struct outlives the call.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &lock) } == 0 {
            // Closing any descriptor of the file would give the lock up.
            std::mem::forget(file);
            return Ok(());
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => {}
            e => return Err(e),
        }
    }
}

/// Renames, unless something has the new name.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (from, to) = (name(from)?, name(to)?);
    // SAFETY: both names are terminated and outlive the call.
    let result = unsafe {
        libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::RENAME_NOREPLACE)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A descriptor that names a process for as long as it is open.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; a non-negative result is a descriptor that nobody else owns.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid, 0) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd as i32)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Sends a signal to the process that a pidfd names, never to another that got its number.
pub fn pidfd_signal(pidfd: impl AsFd, signal: i32) -> io::Result<()> {
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: a plain system call without memory arguments.
    match unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, std::ptr::null::<libc::siginfo_t>(), 0)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The start time of a process in clock ticks since boot: with its pid and the boot id it is an identity.
pub fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the command in brackets and may hold anything, so count from its end: field 22 is the 20th after it.
    let after = stat.rfind(')').map(|at| &stat[at + 1..]).unwrap_or_default();
    after.split_whitespace().nth(19).and_then(|field| field.parse().ok()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has no start time"))
    })
}

/// Waits until one of the descriptors can be read (or is closed at its other end), or the time is over. Says which can.
pub fn wait_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    // Rounded up, so that a deadline has passed when its wait ends.
    let timeout = timeout.map_or(-1, |t| i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    // SAFETY: the array outlives the call and its length is N.
    match unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, timeout) } {
        -1 => match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
            e => Err(e),
        },
        _ => Ok(polled.map(|fd| fd.revents != 0)),
    }
}

/// Ignores a signal (`SIG_IGN`) or gives it its default (`SIG_DFL`).
///
/// By a system call of its own: the C library keeps two signals to itself and leaves them as whoever started us had them.
pub fn set_signal(signal: i32, action: libc::sighandler_t) -> io::Result<()> {
    // The kernel's sigaction: handler, flags, restorer, mask.
    let new: [u64; 4] = [action as u64, 0, 0, 0];
    // SAFETY: no handler function is installed; the struct is the kernel's on 64-bit machines and outlives the call.
    match unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, new.as_ptr(), std::ptr::null_mut::<u64>(), 8)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a clone returned.
pub enum Forked {
    /// In the parent: the child's pid.
    Parent(i32),
    /// In the child.
    Child,
}

/// Forks.
///
/// # Safety
/// The calling process must have one thread only: the child goes on with everything that others held locked.
pub unsafe fn fork() -> io::Result<Forked> {
    // SAFETY: the caller's promise.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Forks with the child born in the control group (of the unified hierarchy) whose folder is open as `group`.
/// `Ok(None)`: this kernel cannot, fork and move instead.
///
/// # Safety
/// As [`fork`]. The C library does not learn of the child, so it should do nothing but prepare and exec.
pub unsafe fn fork_into(group: BorrowedFd<'_>) -> io::Result<Option<Forked>> {
    // SAFETY: clone_args is plain data.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = group.as_raw_fd() as u64;
    // SAFETY: without a stack the call is a fork; the caller has one thread.
    match unsafe { libc::syscall(libc::SYS_clone3, &args, std::mem::size_of::<libc::clone_args>()) } {
        0 => Ok(Some(Forked::Child)),
        pid if pid > 0 => Ok(Some(Forked::Parent(pid as i32))),
        _ => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::E2BIG)) => Ok(None),
            e => Err(e),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_the_project_writes_them() {
        assert_eq!(errno_text(libc::ENOENT), "no such file or directory");
        assert_eq!(errno_text(libc::EIO), "I/O error");
        assert_eq!(io_text(&io::Error::from_raw_os_error(libc::EACCES)), "permission denied");
    }

    #[test]
    fn a_lock_is_seen_through_another_description_and_goes_with_its_last_copy() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.path().join("l"))
                .unwrap()
        };
        let (holder, other) = (open(), open());
        assert!(try_lock(&holder).unwrap());
        let copy = holder.try_clone().unwrap();
        assert!(is_locked(&other).unwrap());
        assert!(!try_lock(&other).unwrap());
        drop(holder);
        assert!(is_locked(&other).unwrap(), "the copy holds it still");
        drop(copy);
        assert!(!is_locked(&other).unwrap());
    }

    #[test]
    fn a_process_has_a_start_time() {
        let pid = std::process::id() as i32;
        assert_eq!(start_ticks(pid).unwrap(), start_ticks(pid).unwrap());
        assert!(pidfd_open(pid).is_ok());
    }
}
