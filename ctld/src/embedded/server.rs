//! Starting the server and waiting until it answers.
//!
//! The server gets a session of its own, so that signals to ctld's terminal or process group do not reach it, and is not tied
//! to ctld's life in any other way. After a kill -9 of the postmaster its backends may live on for a moment, and PostgreSQL
//! refuses to start beside them: they are told to quit, and the start is tried again until they are gone.

use super::binaries::Binaries;
use super::cluster::program;
use super::layout::{Layout, ServerUser, file};
use super::postmaster::{Postmaster, processes_in};
use super::{DATABASE, EmbeddedError, ORPHANS_GONE_WITHIN, READY_WITHIN, ROLE};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use std::fs::OpenOptions;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tokio::process::Child;

const RETRY_EVERY: Duration = Duration::from_millis(50);
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Idle backends see by themselves that their postmaster is gone, and leave.
const ORPHANS_LEAVE_BY_THEMSELVES: Duration = Duration::from_secs(1);
/// A backend that does not heed SIGQUIT (stopped, or stuck) is killed; it is past harm, the data directory recovers.
const ORPHANS_QUIT: Duration = Duration::from_secs(5);
/// How much of its log a failed start shows.
const LOG_LINES_SHOWN: usize = 12;

/// Starts the server and returns when it takes connections.
pub(super) async fn start(
    layout: &Layout,
    binaries: &Binaries,
    user: &ServerUser,
) -> Result<(), EmbeddedError> {
    clear_orphans(layout, user).await?;
    let began = Instant::now();
    let mut child = spawn(layout, binaries, user)?;
    let pid = child.id();
    let ready = wait_started(layout, &mut child).await;
    // Collects its exit status whenever it ends; a server that fails is noticed by whoever uses the database.
    tokio::spawn(async move {
        match child.wait().await {
            Ok(status) => tracing::info!(postgres.pid = pid, %status, "embedded PostgreSQL ended"),
            Err(error) => {
                tracing::warn!(postgres.pid = pid, %error, "cannot collect the embedded PostgreSQL's exit status")
            }
        }
    });
    ready?;
    tracing::info!(
        postgres.pid = pid,
        took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        "embedded PostgreSQL started"
    );
    Ok(())
}

/// Waits until a running server takes connections: true then, false when it ended meanwhile.
pub(super) async fn wait_ready(
    layout: &Layout,
    postmaster: &Postmaster,
    limit: Duration,
) -> Result<bool, EmbeddedError> {
    let began = Instant::now();
    let mut said = began;
    loop {
        let Err(why) = connect(layout).await else { return Ok(true) };
        if postmaster.gone() {
            return Ok(false);
        }
        give_up_after(layout, began, limit, &why)?;
        say_waiting(&mut said, began, &why);
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

async fn wait_started(layout: &Layout, child: &mut Child) -> Result<(), EmbeddedError> {
    let began = Instant::now();
    let mut said = began;
    // The first start takes some 30 ms; a short pause keeps a restart short.
    let mut pause = Duration::from_millis(4);
    loop {
        let Err(why) = connect(layout).await else { return Ok(()) };
        if let Some(status) = child.try_wait().map_err(|source| file("wait for", &layout.data, source))? {
            return Err(not_started(layout, format!("it ended at once ({status})")));
        }
        give_up_after(layout, began, READY_WITHIN, &why)?;
        say_waiting(&mut said, began, &why);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_EVERY);
    }
}

fn give_up_after(
    layout: &Layout,
    began: Instant,
    limit: Duration,
    why: &sqlx::Error,
) -> Result<(), EmbeddedError> {
    if began.elapsed() < limit {
        return Ok(());
    }
    Err(not_started(layout, format!("it takes no connections after {} s: {why}", limit.as_secs())))
}

fn say_waiting(said: &mut Instant, began: Instant, why: &sqlx::Error) {
    if said.elapsed() >= SAY_EVERY {
        *said = Instant::now();
        tracing::info!(waited_s = began.elapsed().as_secs(), "waiting for the embedded PostgreSQL: {why}");
    }
}

/// A connection made and closed: the only proof that the server serves. Having no connection to spare proves it too.
async fn connect(layout: &Layout) -> Result<(), sqlx::Error> {
    const TOO_MANY_CONNECTIONS: &str = "53300";
    let options = PgConnectOptions::from_str(&layout.url(DATABASE, ROLE))?;
    match PgConnection::connect_with(&options).await {
        Ok(connection) => connection.close().await,
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(TOO_MANY_CONNECTIONS) => Ok(()),
        Err(error) => Err(error),
    }
}

fn spawn(layout: &Layout, binaries: &Binaries, user: &ServerUser) -> Result<Child, EmbeddedError> {
    // What the server says before its own log collector runs, and what a crash of it says.
    let path = layout.startup_log();
    let log = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(|source| file("open", &path, source))?;
    fchown(&log, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
        .map_err(|source| file("give to its user", &path, source))?;
    let also = log.try_clone().map_err(|source| file("open", &path, source))?;
    let postgres = binaries.postgres();
    let mut command = program(&postgres, user);
    command.arg("-D").arg(&layout.data).stdout(log).stderr(also);
    // Backends give up the postmaster's protection below.
    command.env("PG_OOM_ADJUST_FILE", "/proc/self/oom_score_adj").env("PG_OOM_ADJUST_VALUE", "0");
    // SAFETY: setsid and umask are async-signal-safe and touch no memory.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0o077);
            if libc::setsid() == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let child = command.spawn().map_err(|source| file("run", &postgres, source))?;
    if let Some(pid) = child.id().filter(|_| user.switch) {
        // When a machine runs out of memory, jobs go before the book does. Where that is not ours to set, nothing is lost.
        if let Err(error) = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "-900") {
            tracing::debug!(%error, "cannot shield the embedded PostgreSQL from the kernel's out-of-memory killer");
        }
    }
    Ok(child)
}

/// Waits for what a killed postmaster left, and ends it. Then no process uses the data directory, and a `postmaster.pid` that
/// is still there is removed: its number may belong to another process of the same user by now (after a restart of a
/// container it usually does), and PostgreSQL would refuse to start for that.
async fn clear_orphans(layout: &Layout, user: &ServerUser) -> Result<(), EmbeddedError> {
    let began = Instant::now();
    let (mut quit, mut killed) = (false, false);
    loop {
        let orphans = processes_in(layout, user);
        if orphans.is_empty() {
            break;
        }
        let waited = began.elapsed();
        if waited >= ORPHANS_GONE_WITHIN {
            let pids = orphans.iter().map(|process| process.pid.to_string()).collect::<Vec<_>>().join(", ");
            let why = format!("processes of a server that was killed still use its data: pid {pids}");
            return Err(not_started(layout, why));
        }
        let signal = if !quit && waited >= ORPHANS_LEAVE_BY_THEMSELVES {
            quit = true;
            Some(libc::SIGQUIT)
        } else if !killed && waited >= ORPHANS_QUIT {
            killed = true;
            Some(libc::SIGKILL)
        } else {
            None
        };
        if let Some(signal) = signal {
            tracing::warn!(
                processes = orphans.len(),
                signal,
                "ending what a killed PostgreSQL left running, before starting it again"
            );
            orphans.iter().for_each(|process| process.signal(signal));
        }
        tokio::time::sleep(RETRY_EVERY).await;
    }
    let lock_file = layout.run.join(format!(".s.PGSQL.{}.lock", super::layout::PORT));
    for stale in [layout.pid_file(), lock_file] {
        match std::fs::remove_file(&stale) {
            Ok(()) => tracing::info!(file = %stale.display(), "removed what a killed PostgreSQL left"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(file("remove", &stale, source)),
        }
    }
    Ok(())
}

fn not_started(layout: &Layout, why: String) -> EmbeddedError {
    EmbeddedError::NotStarted { why, log_dir: layout.log.clone(), tail: log_tail(layout) }
}

/// The last lines of the newest log file, each on a line of its own.
fn log_tail(layout: &Layout) -> String {
    let Ok(entries) = std::fs::read_dir(&layout.log) else { return String::new() };
    let mut files: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    for (_, path) in files.into_iter().rev() {
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        // After the log collector starts, startup.log holds only a pointer to the collector's file.
        if lines.is_empty() || lines.iter().all(|line| line.contains("log output to log")) {
            continue;
        }
        let from = lines.len().saturating_sub(LOG_LINES_SHOWN);
        return lines[from..].iter().map(|line| format!("\n  {line}")).collect();
    }
    String::new()
}
