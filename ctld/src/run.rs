//! Wiring: from a configuration to a running controller, and its end.

use crate::app::App;
use crate::config::{Config, Database};
use crate::embedded::{self, Embedded};
use crate::node_tls::{self, NodeTls};
use crate::store::leases::Owner;
use crate::store::{self, StoreError, pools::DeclaredPool};
use crate::{api, events, leases, reconcile, wake};
use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};
use sqlx::PgPool;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often the embedded server is looked after.
const EMBEDDED_LOOK: Duration = Duration::from_millis(250);
/// How long open requests may take to end when the controller stops.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Between tries to reach a database that is not up yet.
const DATABASE_RETRY: Duration = Duration::from_millis(500);

/// Runs a controller until SIGTERM or SIGINT.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let _lock = lock_state(&config.state_dir)?;
    let controller = leases::controller_id(&config.state_dir).with_context(|| {
        format!("the file \"controller-id\" in \"{}\" cannot be used", config.state_dir.display())
    })?;
    let (url, embedded) = database(&config).await?;
    let (db, servers) = store::connect(&url)
        .map_err(|error| anyhow::anyhow!("the database's URL cannot be read: {error}"))?;
    let stopped = CancellationToken::new();
    let _watching = stopped.clone().drop_guard();
    if let Some(servers) = servers {
        let db = db.clone();
        tokio::spawn(async move { servers.watch(&db, &stopped).await });
    }
    let listener = tokio::select! {
        ready = prepare(&db, &config, &controller) => ready?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };

    let owner = Owner::new(&controller, &uuid::Uuid::now_v7().simple().to_string());
    let app = App::start(db, config, embedded, owner);
    app.clock.anchor_to(&app.db).await.context("compute_now() cannot be read")?;
    app.leases.step(&app).await.context("the leases cannot be read")?;
    let tasks = TaskTracker::new();
    tasks.spawn(reconcile::planner::run(app.clone()));
    tasks.spawn(reconcile::reservations::run(app.clone()));
    tasks.spawn(reconcile::modes::run(app.clone()));
    tasks.spawn(reconcile::audit::run(app.clone()));
    tasks.spawn(reconcile::retention::run(app.clone()));
    tasks.spawn(reconcile::sinks::run(app.clone()));
    tasks.spawn(reconcile::holds::run(app.clone()));
    tasks.spawn(reconcile::liveness::run(app.clone()));
    tasks.spawn(events::run(app.clone()));
    tasks.spawn(leases::keep(app.clone()));
    tasks.spawn(wake::relay(app.clone()));
    tasks.spawn(wake::listen(app.clone()));
    if app.embedded.is_some() {
        tasks.spawn(look_after_embedded(app.clone()));
    }
    tasks.spawn({
        let app = app.clone();
        async move {
            if let Err(error) = api::serve(app.clone(), listener).await {
                tracing::error!(error = &error as &dyn std::error::Error, "the API ended; stopping");
                app.stopping.cancel();
            }
        }
    });
    if let Some(address) = app.config.listen {
        take_nodes(&app, address, &tasks).await?;
    }
    notify_systemd("READY=1");
    tracing::info!(socket = %app.config.socket.display(), "ready");

    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
        () = app.stopping.cancelled() => {}
    }
    notify_systemd("STOPPING=1");
    app.stopping.cancel();
    tasks.close();
    if tokio::time::timeout(STOP_WITHIN, tasks.wait()).await.is_err() {
        tracing::warn!("some requests did not end within {STOP_WITHIN:?}; they are cut off");
    }
    let _ = tokio::time::timeout(STOP_WITHIN, leases::give_up(&app)).await;
    let App { db, embedded, .. } = app;
    // A connection that a cut-off task holds is closed by the server's end.
    let _ = tokio::time::timeout(STOP_WITHIN, db.close()).await;
    if let Some(embedded) = embedded {
        embedded.stop().await?;
    }
    Ok(())
}

/// Opens the door for nodes on other machines.
async fn take_nodes(app: &App, address: SocketAddr, tasks: &TaskTracker) -> anyhow::Result<()> {
    let names = match app.config.listen_names.as_slice() {
        [] => vec![
            nix::unistd::gethostname()
                .ok()
                .and_then(|name| name.into_string().ok())
                .context("the machine's host name cannot be read: set listen_names in ctld.toml")?,
        ],
        names => names.to_vec(),
    };
    let tls = Arc::new(NodeTls::prepare(app, names.clone()).await.context("TLS for nodes")?);
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    tracing::info!(%address, ?names, "nodes of other machines may connect");
    tasks.spawn(node_tls::keep(app.clone(), tls.clone()));
    let app = app.clone();
    tasks.spawn(async move {
        if let Err(error) = api::serve_nodes(app.clone(), listener, tls, api::Limits::default()).await {
            tracing::error!(error = &error as &dyn std::error::Error, "the nodes' door closed; stopping");
            app.stopping.cancel();
        }
    });
    Ok(())
}

/// Everything between a configuration and the first request: migrations, pools, the socket.
async fn prepare(db: &PgPool, config: &Config, controller: &str) -> anyhow::Result<UnixListener> {
    loop {
        match store::migrate(db).await {
            Ok(()) => break,
            Err(error) if away(&error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the database cannot be reached; trying again"
                );
                tokio::time::sleep(DATABASE_RETRY).await;
            }
            Err(error) => return Err(error).context("the migrations cannot be applied"),
        }
    }
    store::pools::declare(db, &declared(config)).await.context("the pools cannot be declared")?;
    store::mig_placements::fill(db).await.context("the MIG placements cannot be written")?;
    store::node::disconnect_all(db, controller).await.context("the nodes cannot be read")?;
    listen(&config.socket).await
}

fn away(error: &StoreError) -> bool {
    match error {
        StoreError::Migrate(sqlx::migrate::MigrateError::Execute(
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut,
        )) => true,
        error => error.transient(),
    }
}

fn declared(config: &Config) -> Vec<DeclaredPool> {
    // The configuration's checks keep these far below i64's range.
    let signed = |s: u64| i64::try_from(s).unwrap_or(i64::MAX);
    config
        .pools
        .iter()
        .map(|(name, pool)| DeclaredPool {
            name: name.clone(),
            is_default: pool.default,
            time_limit_max_s: pool.time_limit_max_s.map(signed),
            time_limit_default_s: pool.time_limit_default_s.map(signed),
            mem_per_cpu_default_mib: signed(pool.mem_per_cpu_default_mib),
            ratios: pool.ratios,
            kind: pool.kind,
            lost_after_s: pool.lost_after_s.map(signed),
        })
        .collect()
}

/// One controller a state directory.
fn lock_state(dir: &Path) -> anyhow::Result<Flock<File>> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .with_context(|| format!("cannot make the state directory \"{}\"", dir.display()))?;
    let path = dir.join("ctld.lock");
    let file = File::create(&path).with_context(|| format!("cannot open \"{}\"", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
        anyhow::Error::new(error).context(format!("another ctld runs in \"{}\"", dir.display()))
    })
}

async fn database(config: &Config) -> anyhow::Result<(String, Option<Arc<Embedded>>)> {
    match (&config.database, config.embedded_settings()) {
        (Database::Url(url), _) => Ok((url.clone(), None)),
        (Database::Embedded, Some(settings)) => {
            let embedded = embedded::start(&settings).await?;
            Ok((embedded.url(), Some(Arc::new(embedded))))
        }
        (Database::Embedded, None) => bail!("database is \"embedded\" but has no settings"),
    }
}

/// Starts the embedded server again whenever it is gone.
async fn look_after_embedded(app: App) {
    let Some(embedded) = &app.embedded else { return };
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = tokio::time::sleep(EMBEDDED_LOOK) => {}
        }
        if embedded.pid().is_some() {
            continue;
        }
        tracing::error!("the embedded PostgreSQL is gone; starting it again");
        if let Err(error) = embedded.ensure_running().await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the embedded PostgreSQL does not start"
            );
        }
        app.wakes.planner();
    }
}

/// Binds the API's socket, taking the place of one that nobody listens on any more. Anybody on the machine may connect:
/// who they are is told by the kernel, what they may do by the API.
async fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    if UnixStream::connect(path).await.is_ok() {
        bail!("something already serves \"{}\"", path.display());
    }
    if let Some(dir) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .with_context(|| format!("cannot make the socket's directory \"{}\"", dir.display()))?;
    }
    // Made beside it, with its mode, and then put in its place: at no moment is it missing, or closed to those who ask.
    let beside = beside(path);
    let _ = std::fs::remove_file(&beside);
    let listener =
        UnixListener::bind(&beside).with_context(|| format!("cannot listen on \"{}\"", path.display()))?;
    std::fs::set_permissions(&beside, Permissions::from_mode(0o666))?;
    std::fs::rename(&beside, path)
        .with_context(|| format!("cannot replace the socket \"{}\"", path.display()))?;
    Ok(listener)
}

/// A path in the same directory that is no longer than this one, since sockets' paths are short.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().as_bytes().to_vec();
    let other = if name.last() == Some(&b'~') { b'_' } else { b'~' };
    match name.last_mut() {
        Some(last) => *last = other,
        None => name.push(other),
    }
    path.with_file_name(OsStr::from_bytes(&name))
}

/// Tells systemd, where it started us, how far we are (sd_notify(3): one datagram).
fn notify_systemd(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let path = path.to_string_lossy();
    let sent = std::os::unix::net::UnixDatagram::unbound().and_then(|socket| match path.strip_prefix('@') {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(state.as_bytes(), &address)
        }
        None => socket.send_to(state.as_bytes(), &*path),
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "systemd could not be told \"{state}\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Somebody who asked in the moment of a restart was told that there is no socket, or that it is not theirs to use.
    #[tokio::test]
    async fn a_socket_that_is_replaced_is_never_missing_and_always_everybodys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ctld.sock");
        drop(listen(&path).await.unwrap());
        let done = Arc::new(AtomicBool::new(false));
        let looking = std::thread::spawn({
            let (path, done) = (path.clone(), done.clone());
            move || {
                let mut looks = 0;
                while !done.load(Ordering::Relaxed) {
                    let mode = path.metadata().expect("it is never missing").permissions().mode() & 0o777;
                    assert_eq!(mode, 0o666);
                    looks += 1;
                }
                looks
            }
        });
        for _ in 0..300 {
            drop(listen(&path).await.unwrap());
        }
        done.store(true, Ordering::Relaxed);
        assert!(looking.join().unwrap() > 300);
        let held = listen(&path).await.unwrap();
        assert!(listen(&path).await.unwrap_err().to_string().contains("already serves"));
        drop(held);
    }

    #[test]
    fn what_is_made_beside_a_socket_has_no_longer_a_path() {
        for (path, expected) in [("/run/ctld.sock", "/run/ctld.soc~"), ("/a", "/~"), ("/run/x~", "/run/x_")] {
            assert_eq!(beside(Path::new(path)), Path::new(expected));
        }
    }
}
