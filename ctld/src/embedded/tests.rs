//! The private server against the machine's real PostgreSQL. As root the server runs as `postgres`; one test then runs the
//! same path as an ordinary user, by running this very test program as that user.

use super::*;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Instant;
use tempfile::TempDir;

/// A directory for one server, which is ended when the test ends, also by a panic.
struct Scratch {
    top: TempDir,
}

impl Scratch {
    fn new() -> Scratch {
        let top = tempfile::Builder::new().prefix("bc-pg-").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        Scratch { top }
    }

    fn settings(&self) -> EmbeddedSettings {
        EmbeddedSettings { dir: self.top.path().join("state").join("postgres"), user: None }
    }

    fn data(&self) -> PathBuf {
        self.settings().dir.join("data")
    }

    async fn start(&self) -> Embedded {
        start(&self.settings()).await.unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.settings().dir.exists() {
            return;
        }
        let user = ServerUser::resolve(None).unwrap();
        let layout = Layout::prepare(&self.settings().dir, &user).unwrap();
        for process in postmaster::processes_in(&layout, &user) {
            process.signal(libc::SIGKILL);
        }
    }
}

/// Connects, as soon as the server has a slot: the connection by which it was found ready may still be ending.
async fn connect(embedded: &Embedded) -> PgConnection {
    let options = PgConnectOptions::from_str(&embedded.url()).unwrap();
    let begun = std::time::Instant::now();
    loop {
        match options.connect().await {
            Ok(connection) => return connection,
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("53300") => {
                assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn number(connection: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

fn kill(pid: u32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
}

#[tokio::test]
async fn starts_is_adopted_and_stops_with_its_data_kept() {
    let scratch = Scratch::new();
    let first = scratch.start().await;
    let pid = first.pid().expect("it runs");
    let mut connection = connect(&first).await;
    sqlx::query("CREATE TABLE kept AS SELECT 42::bigint AS n").execute(&mut connection).await.unwrap();
    for (setting, wanted) in
        [("fsync", "on"), ("synchronous_commit", "on"), ("full_page_writes", "on"), ("listen_addresses", "")]
    {
        let found: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(setting)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(found, wanted, "{setting}");
    }
    let encoding: String = sqlx::query_scalar(
        "SELECT pg_encoding_to_char(encoding) || ' ' || datcollate FROM pg_database WHERE datname = current_database()",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(encoding, "UTF8 C.UTF-8");

    // A ctld killed with -9 runs no destructor either.
    std::mem::forget(first);
    let began = Instant::now();
    let second = scratch.start().await;
    let took = began.elapsed();
    assert_eq!(second.pid(), Some(pid), "the running server is adopted");
    // A few milliseconds; the bound leaves room for a machine busy with other tests.
    assert!(took < Duration::from_secs(2), "adopting took {took:?}");
    assert_eq!(number(&mut connection, "SELECT n FROM kept").await, 42, "the old connection still works");

    drop(connection);
    second.stop().await.unwrap();
    assert!(!scratch.data().join("postmaster.pid").exists(), "a clean stop leaves no pid file");
    let third = scratch.start().await;
    assert_ne!(third.pid(), Some(pid));
    assert_eq!(number(&mut connect(&third).await, "SELECT n FROM kept").await, 42);
    third.stop().await.unwrap();
}

#[tokio::test]
async fn killed_with_a_backend_stopped_it_is_started_again_with_what_was_committed() {
    let scratch = Scratch::new();
    let embedded = scratch.start().await;
    let mut connection = connect(&embedded).await;
    sqlx::query("CREATE TABLE kept AS SELECT 7::bigint AS n").execute(&mut connection).await.unwrap();
    let backend: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await.unwrap();
    let pid = embedded.pid().unwrap();
    // A stopped backend cannot see that its postmaster is gone: the worst kind of left-over.
    kill(backend.try_into().unwrap(), nix::sys::signal::SIGSTOP);
    kill(pid, nix::sys::signal::SIGKILL);
    embedded.ensure_running().await.unwrap();
    assert_ne!(embedded.pid().unwrap(), pid);
    assert_eq!(number(&mut connect(&embedded).await, "SELECT n FROM kept").await, 7);
    embedded.stop().await.unwrap();
}

#[tokio::test]
async fn ensure_running_leaves_a_running_server_alone() {
    let scratch = Scratch::new();
    let embedded = scratch.start().await;
    let pid = embedded.pid();
    let (one, two) = tokio::join!(embedded.ensure_running(), embedded.ensure_running());
    one.unwrap();
    two.unwrap();
    assert_eq!(embedded.pid(), pid);
    embedded.stop().await.unwrap();
}

#[tokio::test]
async fn two_starts_at_once_give_one_server() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    let (one, two) = tokio::join!(start(&settings), start(&settings));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.pid(), two.pid());
    one.stop().await.unwrap();
}

#[tokio::test]
async fn a_cluster_that_was_not_finished_is_made_anew() {
    let scratch = Scratch::new();
    let half = scratch.settings().dir.join("data.new");
    std::fs::create_dir_all(half.join("base/1")).unwrap();
    std::fs::write(half.join("PG_VERSION"), "15\n").unwrap();
    let embedded = scratch.start().await;
    assert_eq!(number(&mut connect(&embedded).await, "SELECT 1::bigint").await, 1);
    assert!(!half.exists());
    embedded.stop().await.unwrap();
}

#[tokio::test]
async fn a_stranger_with_the_pid_of_a_dead_postmaster_is_left_alone() {
    let scratch = Scratch::new();
    let embedded = scratch.start().await;
    let settings = scratch.settings();
    embedded.stop().await.unwrap();
    let user = ServerUser::resolve(None).unwrap();
    let mut stranger = Stranger::start(&user);
    let text = format!("{}\n{}\n1764532000\n5432\n", stranger.0.id(), scratch.data().display());
    std::fs::write(scratch.data().join("postmaster.pid"), text).unwrap();

    let embedded = start(&settings).await.unwrap();
    assert_ne!(embedded.pid(), Some(stranger.0.id()));
    embedded.stop().await.unwrap();
    assert!(stranger.0.try_wait().unwrap().is_none(), "the stranger was ended");
}

/// A process of the server's user that has nothing to do with the server.
struct Stranger(Child);

impl Stranger {
    fn start(user: &ServerUser) -> Stranger {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).current_dir("/");
        if user.switch {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        Stranger(command.spawn().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn a_start_that_fails_shows_the_servers_own_words() {
    let scratch = Scratch::new();
    scratch.start().await.stop().await.unwrap();
    std::fs::write(scratch.data().join("local.conf"), "shared_buffers = 'plenty'\n").unwrap();
    let error = start(&scratch.settings()).await.unwrap_err().to_string();
    assert!(error.contains("shared_buffers") && error.contains("plenty"), "{error}");
}

#[tokio::test]
async fn a_directory_that_holds_something_else_is_refused_untouched() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.data()).unwrap();
    let treasure = scratch.data().join("thesis.tex");
    std::fs::write(&treasure, "draft").unwrap();
    let user = ServerUser::resolve(None).unwrap();
    nix::unistd::chown(&scratch.data(), Some(user.uid), Some(user.gid)).unwrap();
    let error = start(&scratch.settings()).await.unwrap_err().to_string();
    assert!(error.contains("PG_VERSION"), "{error}");
    assert_eq!(std::fs::read_to_string(treasure).unwrap(), "draft");
}

#[tokio::test]
async fn a_socket_path_that_is_too_long_is_refused_with_both_numbers() {
    let scratch = Scratch::new();
    let dir = scratch.top.path().join("d".repeat(90)).join("postgres");
    let error = start(&EmbeddedSettings { dir, user: None }).await.unwrap_err().to_string();
    assert!(error.contains("107") && error.contains(".s.PGSQL.5432"), "{error}");
}

#[tokio::test]
async fn a_user_that_will_not_do_is_refused() {
    let scratch = Scratch::new();
    let settings = |user: &str| EmbeddedSettings { user: Some(user.into()), ..scratch.settings() };
    let missing = start(&settings("no-such-user")).await.unwrap_err().to_string();
    assert!(missing.contains("no-such-user") && missing.contains("embedded_user"), "{missing}");
    if nix::unistd::Uid::effective().is_root() {
        let root = start(&settings("root")).await.unwrap_err().to_string();
        assert!(root.contains("refuses to run as root"), "{root}");
        // /root-like directories: root passes, the server's user would not.
        let closed = scratch.top.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
        let settings = EmbeddedSettings { dir: closed.join("postgres"), user: None };
        let error = start(&settings).await.unwrap_err().to_string();
        assert!(error.contains("cannot pass through") && error.contains("closed"), "{error}");
    }
}

#[tokio::test]
async fn only_the_private_directories_and_their_user_can_reach_it() {
    let scratch = Scratch::new();
    let embedded = scratch.start().await;
    for name in ["", "data", "run", "log"] {
        let mode = std::fs::metadata(scratch.settings().dir.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{name}");
    }
    // Also a client that the directories would let pass is turned away unless the kernel says who it is.
    if nix::unistd::Uid::effective().is_root() {
        for path in [scratch.settings().dir, scratch.settings().dir.join("run")] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let socket = scratch.settings().dir.join("run/.s.PGSQL.5432");
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Command::new("psql")
            .arg(embedded.url())
            .args(["-Atc", "SELECT 1"])
            .uid(65534)
            .gid(65534)
            .output();
        let refused = refused.unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("Peer authentication failed"), "{said}");
    }
    embedded.stop().await.unwrap();
}

#[tokio::test]
async fn an_ordinary_user_runs_it_as_itself() {
    if !nix::unistd::Uid::effective().is_root() {
        return starts_and_stops_as_this_user().await;
    }
    let user = ServerUser::resolve(None).unwrap();
    let place = Scratch::new();
    let program = place.top.path().join("tests");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let ran = Command::new(&program)
        .args(["--exact", "embedded::tests::as_an_ordinary_user", "--ignored", "--nocapture"])
        .current_dir("/")
        .env_remove("TMPDIR")
        .uid(user.uid.as_raw())
        .gid(user.gid.as_raw())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
#[ignore = "run by an_ordinary_user_runs_it_as_itself, as that user"]
async fn as_an_ordinary_user() {
    starts_and_stops_as_this_user().await;
}

async fn starts_and_stops_as_this_user() {
    assert!(!nix::unistd::Uid::effective().is_root());
    let scratch = Scratch::new();
    let embedded = scratch.start().await;
    let pid = embedded.pid().unwrap();
    assert_eq!(number(&mut connect(&embedded).await, "SELECT 1::bigint").await, 1);
    kill(pid, nix::sys::signal::SIGKILL);
    embedded.ensure_running().await.unwrap();
    embedded.stop().await.unwrap();
    assert!(!Path::new("/proc").join(pid.to_string()).exists());
}

#[tokio::test]
async fn a_server_without_a_connection_to_spare_is_running() {
    let scratch = Scratch::new();
    scratch.start().await.stop().await.unwrap();
    std::fs::write(
        scratch.data().join("local.conf"),
        "max_connections = 4\nsuperuser_reserved_connections = 3\n",
    )
    .unwrap();
    let embedded = scratch.start().await;
    let _the_only_one = connect(&embedded).await;
    tokio::time::timeout(Duration::from_secs(20), embedded.ensure_running()).await.unwrap().unwrap();
    embedded.stop().await.unwrap();
}
