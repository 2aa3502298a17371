//! Wiring: from a configuration to a running node daemon, and down again.
//!
//! The order at the start matters. The state directory's lock first: two daemons never share one. Then everything that may be refused (control groups,
//! journal) before anything is launched. A stop leaves every job running: the next start finds them.

use crate::attempt::StateDir;
use crate::cgroup::Layout;
use crate::clock;
use crate::config::Config;
use crate::credentials::Place;
use crate::journal::{Journal, Writer};
use crate::keeper::{Input, Keeper, Tools};
use crate::launcher::Launcher;
use crate::notify::notify;
use crate::renewal;
use crate::session;
use crate::spec::LauncherSetup;
use crate::spool;
use crate::sys;
use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use proto::session::{Hello, PROTOCOL};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The file in the state directory whose lock says that a noded runs on it.
pub const LOCK_FILE: &str = "lock";
/// How often and in what steps a lock is waited for.
const LOCK_TRIES: usize = 20;
const LOCK_WAIT: Duration = Duration::from_millis(25);

/// Runs the daemon until it is told to stop.
pub async fn run(config: Config) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("noded must run as root: it starts jobs as their users, in control groups");
    }
    // Dropped last: another daemon may start only when this one has let go of everything.
    let _lock = prepare_state_dir(&config.state_dir)?;
    let layout = Layout::detect(&config.cgroup_base, &config.node)?;
    layout.prepare().context("jobs are never run without their control groups")?;
    let _guard = guard_groups(&layout, &config.node)?;
    let state_dir = StateDir { root: config.state_dir.clone(), scripts: spool::prepare(&config.state_dir)? };
    let (journal, memory) = Journal::open(&state_dir.journal())?;
    let events = open_events(&state_dir.events())?;
    let setup = Arc::new(LauncherSetup {
        state_dir: state_dir.clone(),
        layout,
        node: config.node.clone(),
        boot_id: clock::boot_id().context("/proc/sys/kernel/random/boot_id")?,
        nofile_soft: raise_open_files()?,
    });
    let hello = Hello {
        protocol: PROTOCOL,
        node: config.node.clone(),
        pool: config.pool.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: setup.boot_id.clone(),
        journal_id: memory.journal_id.clone(),
        cgroup_mode: setup.layout.mode.name().to_owned(),
        inventory: config.inventory.clone(),
    };

    let (inputs, queue) = unbounded_channel();
    let launcher = Launcher::start(&setup, &events, tell(&inputs, Input::Launcher)).await?;
    let spares = state_dir.spares().with_context(|| format!("{}", config.state_dir.display()))?;
    let written = tell(&inputs, Input::Written);
    let journal =
        Writer::start(journal, state_dir.clone(), spares.clone(), written).context("the journal's thread")?;
    tokio::spawn(read_events(events.try_clone()?, inputs.clone()));
    let config = Arc::new(config);
    let tools = Tools {
        config: config.clone(),
        setup: setup.clone(),
        journal,
        launcher,
        spares,
        events,
        inputs: inputs.clone(),
    };
    let keeper = Keeper::recover(tools, memory);
    let place = Place::below(&config.state_dir);
    let renewal = tokio::spawn(renewal::keep(config.controllers.clone(), place.clone()));
    let session =
        tokio::spawn(session::keep(config.controllers.clone(), place, hello, tell(&inputs, Input::Session)));

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tracing::info!(node.name = config.node, mode = setup.layout.mode.name(), "noded is ready");
    notify("READY=1").context("NOTIFY_SOCKET")?;
    let stopped = tokio::select! {
        // It returns only if every sender is gone, and `inputs` is one.
        () = keeper.run(queue) => "by itself",
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    session.abort();
    renewal.abort();
    spool::leave(&state_dir.scripts);
    tracing::info!("noded stops ({stopped}); jobs go on");
    notify("STOPPING=1").context("NOTIFY_SOCKET")
}

fn tell<T: Send + 'static>(
    inputs: &UnboundedSender<Input>,
    wrap: impl Fn(T) -> Input + Send + 'static,
) -> impl Fn(T) + Send + 'static {
    let inputs = inputs.clone();
    move |what| {
        // At a stop the queue goes first; what happens then is found at the next start.
        let _ = inputs.send(wrap(what));
    }
}

/// The state directory can be entered by everybody and read by nobody: scripts are reached by name.
fn prepare_state_dir(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .with_context(|| format!("state_dir {shown}"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o711))
        .with_context(|| format!("state_dir {shown}"))?;
    let lock = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path.join(LOCK_FILE));
    let lock = lock.with_context(|| format!("state_dir {shown}"))?;
    if !within_a_moment(|| sys::try_lock(&lock))? {
        bail!("state_dir {shown} is in use by another noded: give each its own");
    }
    let jobs = path.join("jobs");
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&jobs);
    made.with_context(|| format!("{}", jobs.display()))?;
    Ok(lock)
}

/// A noded that was killed while it forked leaves its locks with a process that is about to execute something, and then gone.
fn within_a_moment(take: impl Fn() -> io::Result<bool>) -> io::Result<bool> {
    for _ in 0..LOCK_TRIES {
        if take()? {
            return Ok(true);
        }
        std::thread::sleep(LOCK_WAIT);
    }
    take()
}

/// Two nodeds of one name with different state directories would each end the other's jobs as strangers.
fn guard_groups(layout: &Layout, node: &str) -> anyhow::Result<File> {
    let dir = layout.guard_dir();
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(&dir)
        .with_context(|| format!("{}", dir.display()))?;
    let taken = within_a_moment(|| match file.try_lock().map_err(io::Error::from) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    });
    if !taken.with_context(|| format!("control group {}", dir.display()))? {
        bail!(
            "another noded runs here under the name {node:?}: give each a \"node\" name of its own, or a \"cgroup_base\""
        );
    }
    Ok(file)
}

/// The FIFO in which shepherds say that their records have grown. Open for writing too, so that it never ends.
fn open_events(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_fifo() => {}
        Ok(_) => bail!("{shown} is no FIFO: remove it"),
        Err(_) => nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o600))
            .with_context(|| format!("{shown}"))?,
    }
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    file.with_context(|| format!("{shown}"))
}

async fn read_events(events: File, inputs: UnboundedSender<Input>) {
    // SAFETY: the value owns its descriptor and never gives it away while it is registered.
    let events = match unsafe { AsyncFd::register(events) } {
        Ok(events) => events,
        Err(error) => return tracing::error!("the shepherds' FIFO cannot be watched: {error}"),
    };
    let mut buffer = [0; 4096];
    loop {
        let Ok(mut ready) = events.readable().await else { return };
        match ready.try_io(|events| events.get_ref().read(&mut buffer)) {
            Ok(Ok(length)) => {
                // Each shepherd writes its eight bytes at once, so they are never mixed or cut.
                for id in buffer[..length].chunks_exact(8) {
                    let id = i64::from_ne_bytes(id.try_into().expect("chunks of eight bytes"));
                    if inputs.send(Input::Grown(id)).is_err() {
                        return;
                    }
                }
            }
            Ok(Err(error)) => return tracing::error!("the shepherds' FIFO cannot be read: {error}"),
            Err(_would_block) => {}
        }
    }
}

/// noded holds a descriptor for each running job. Returns the soft limit as it was.
fn raise_open_files() -> anyhow::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(soft)
}
