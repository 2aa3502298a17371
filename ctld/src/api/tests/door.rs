//! A controller's API on a socket of its own, and callers of two kinds: the test's own user, and a plain one.

use crate::api::{Limits, serve_within};
use crate::app::App;
use crate::config::Config;
use crate::store::leases::Owner;
use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use proto::position::Position;
use serde_json::Value;
use sqlx::PgPool;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// How long a test waits for anything before it fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// The uid of nobody: a user who is not root, not the test's own and no operator.
const NOBODY: libc::uid_t = 65534;

pub(super) struct Door {
    pub app: App,
    pub socket: PathBuf,
    pub serving: JoinHandle<std::io::Result<()>>,
    _dir: TempDir,
}

/// An answer: status, headers that matter, body.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub retry_after: Option<String>,
    pub position: Option<Position>,
    pub text: String,
    pub json: Value,
}

impl Answer {
    /// The error's code and message.
    pub fn error(&self) -> (&str, &str) {
        let error = &self.json["error"];
        (error["code"].as_str().unwrap_or("no code"), error["message"].as_str().unwrap_or("no message"))
    }
}

impl Door {
    /// Opens the API over a database that has the pool "main", for the test's user as operator.
    pub async fn open(db: PgPool) -> Door {
        Door::open_within(db, Limits::default()).await
    }

    pub async fn open_within(db: PgPool, limits: Limits) -> Door {
        sqlx::query("INSERT INTO pools (name, is_default) VALUES ('main', true)").execute(&db).await.unwrap();
        let door = Door::over(db, limits);
        door.app.leases.step(&door.app).await.unwrap();
        door
    }

    /// Opens the API over whatever database.
    pub fn over(db: PgPool, limits: Limits) -> Door {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let socket = dir.path().join("ctld.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
        let listen = Some("127.0.0.1:0".parse().unwrap());
        let config = Config { operators: vec![own_name()], listen, ..Config::default() };
        let owner = Owner::new(&uuid::Uuid::now_v7().simple().to_string(), "test");
        let app = App::start(db, config, None, owner);
        tokio::spawn(crate::events::run(app.clone()));
        let serving = tokio::spawn(serve_within(app.clone(), listener, limits));
        Door { app, socket, serving, _dir: dir }
    }

    /// Asks as the test's own user, who is an operator here.
    pub async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        ask(connect(&self.socket).await, method, path, body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "").await
    }

    /// Asks as the test's own user, with these headers.
    pub async fn ask_with(&self, method: &str, path: &str, headers: Vec<(&str, String)>) -> Answer {
        ask_with(connect(&self.socket).await, method, path, "", headers).await
    }

    /// Asks as a plain user: nobody, or where the test may not become nobody, its own user, who must then be plain.
    pub async fn ask_as_nobody(&self, method: &str, path: &str, body: &str) -> Answer {
        ask(connect_as_nobody(&self.socket).await, method, path, body).await
    }
}

/// The name of the user who runs the test.
pub(super) fn own_name() -> String {
    let uid = nix::unistd::geteuid();
    nix::unistd::User::from_uid(uid).unwrap().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Whether the test can take another user's place.
pub(super) fn can_be_nobody() -> bool {
    nix::unistd::geteuid().is_root()
}

pub(super) async fn connect(socket: &Path) -> UnixStream {
    UnixStream::connect(socket).await.unwrap()
}

/// Connects as nobody. The kernel notes the user of the thread that connects, and the raw call changes that of one thread only.
async fn connect_as_nobody(socket: &Path) -> UnixStream {
    let socket = socket.to_owned();
    let connecting = std::thread::spawn(move || {
        // SAFETY: the calls take plain numbers and concern this thread, which ends right after.
        let changed = unsafe {
            libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY) == 0
                && libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0
        };
        assert!(changed, "{}", std::io::Error::last_os_error());
        StdUnixStream::connect(socket).unwrap()
    });
    let stream = connecting.join().unwrap();
    stream.set_nonblocking(true).unwrap();
    UnixStream::from_std(stream).unwrap()
}

/// One request on a connection of its own.
pub(super) async fn ask(stream: UnixStream, method: &str, path: &str, body: &str) -> Answer {
    ask_with(stream, method, path, body, vec![]).await
}

async fn ask_with(
    stream: UnixStream,
    method: &str,
    path: &str,
    body: &str,
    headers: Vec<(&str, String)>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "ctld");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    let response = send(stream, request.body(Full::from(body.to_owned())).unwrap()).await;
    let status = response.status();
    let retry_after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    let position =
        response.headers().get("bc-position").map(|value| value.to_str().unwrap().parse().unwrap());
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
    Answer { status, retry_after, position, text, json }
}

/// Sends a request and gives the response while its connection goes on in the background.
pub(super) async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> Response<hyper::body::Incoming> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap()
}

/// Waits until something is so.
pub(super) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A submission that is accepted, as JSON with these fields added or replaced.
pub(super) fn submission(changes: Value) -> String {
    let mut body = serde_json::json!({
        "idempotency_key": "key-1", "name": "job", "script": "#!/bin/sh\nexit 0\n", "chdir": "/tmp", "umask": 18,
        "cpus": 1, "nodes": 1,
    });
    for (key, value) in changes.as_object().unwrap() {
        body[key] = value.clone();
    }
    body.to_string()
}
