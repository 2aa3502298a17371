//! The API's doors: connections taken, bounded, served over HTTP/1.1 and let go.
//!
//! Our own loop over hyper, because nothing ready-made closes a connection that says nothing: a connection must send a whole
//! header within [`Limits::header_within`], which is also how long an idle one is kept. Stopping lets requests under way finish.
//! This is the unix socket's door; the nodes' over TLS ([`super::tls`]) holds and serves its connections the same way.

use super::caller::Users;
use super::extract::BodyWithin;
use super::router;
use super::slow_reader::SlowReader;
use crate::app::App;
use crate::metrics::Open;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::ServiceExt;

/// How much the API takes on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections open at once; further ones wait in the listener's queue.
    pub connections: usize,
    /// How long a header may take to arrive, and an idle connection is kept.
    pub header_within: Duration,
    /// How long a TLS handshake may take.
    pub handshake_within: Duration,
    /// How long a body may take to arrive.
    pub body_within: Duration,
    /// How long a client may go without reading what it is sent.
    pub read_within: Duration,
    /// How long requests under way may take to finish when the controller stops.
    pub stop_within: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 4096,
            header_within: Duration::from_secs(60),
            handshake_within: Duration::from_secs(10),
            body_within: Duration::from_secs(60),
            read_within: Duration::from_secs(30),
            stop_within: Duration::from_secs(4),
        }
    }
}

/// The most headers of one request.
const HEADERS_MAX: usize = 64;
/// How long to wait before taking connections again after the process ran out of file descriptors or the like.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a connection holds while it is open. A WebSocket made of it keeps this too, since hyper lets go of it.
#[derive(Debug)]
pub(super) struct Held {
    _room: OwnedSemaphorePermit,
    _tracked: TaskTrackerToken,
    _counted: Open,
}

/// Serves the API on a unix socket until the controller stops.
pub async fn serve(app: App, listener: UnixListener) -> io::Result<()> {
    serve_within(app, listener, Limits::default()).await
}

/// The same within other limits.
pub async fn serve_within(app: App, listener: UnixListener, limits: Limits) -> io::Result<()> {
    let door = Door {
        router: router(app.clone()),
        users: Arc::new(Users::default()),
        guard: Guard::new(&app, limits),
        app,
    };
    door.app.stopping.run_until_cancelled(door.take_connections(&listener)).await;
    // No more connections are taken; those that wait in the queue are refused.
    drop(listener);
    door.guard.let_go().await;
    Ok(())
}

/// Bounds a door's connections and knows which are open.
pub(super) struct Guard {
    app: App,
    room: Arc<Semaphore>,
    open: TaskTracker,
    limits: Limits,
}

impl Guard {
    pub(super) fn new(app: &App, limits: Limits) -> Guard {
        let room = Arc::new(Semaphore::new(limits.connections));
        Guard { app: app.clone(), room, open: TaskTracker::new(), limits }
    }

    /// Waits until another connection may be taken.
    pub(super) async fn room(&self) -> OwnedSemaphorePermit {
        self.room.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// What a connection that was taken holds.
    pub(super) fn hold(&self, room: OwnedSemaphorePermit) -> Arc<Held> {
        let (_tracked, _counted) = (self.open.token(), self.app.metrics.connection_open());
        Arc::new(Held { _room: room, _tracked, _counted })
    }

    /// Waits until every connection is closed, but not for ever.
    pub(super) async fn let_go(&self) {
        self.open.close();
        if tokio::time::timeout(self.limits.stop_within, self.open.wait()).await.is_err() {
            let open = self.open.len();
            tracing::warn!(connections = open, "API connections are still open, and are cut off");
        }
    }
}

struct Door {
    app: App,
    router: Router,
    users: Arc<Users>,
    guard: Guard,
}

impl Door {
    async fn take_connections(&self, listener: &UnixListener) {
        loop {
            let room = self.guard.room().await;
            match listener.accept().await {
                Ok((stream, _)) => self.open(stream, room),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn open(&self, stream: UnixStream, room: OwnedSemaphorePermit) {
        let (held, limits) = (self.guard.hold(room), self.guard.limits);
        let (app, router, users) = (self.app.clone(), self.router.clone(), self.users.clone());
        tokio::spawn(async move {
            match stream.peer_cred() {
                Ok(peer) => {
                    let peer = users.caller(peer, &app.config).await;
                    let extend = move |request: &mut hyper::Request<hyper::body::Incoming>| {
                        request.extensions_mut().insert(peer.clone());
                    };
                    talk(&app, router, stream, extend, held, limits).await;
                }
                Err(error) => tracing::warn!(%error, "a connection does not say whose it is, and is closed"),
            }
        });
    }
}

/// Serves one connection, each request of which carries what `extend` says of the other side.
pub(super) async fn talk(
    app: &App,
    router: Router,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    extend: impl Fn(&mut hyper::Request<hyper::body::Incoming>) + Clone + Send + 'static,
    held: Arc<Held>,
    limits: Limits,
) {
    let service = router.map_request(move |mut request: hyper::Request<hyper::body::Incoming>| {
        extend(&mut request);
        request.extensions_mut().insert(BodyWithin(limits.body_within));
        request.extensions_mut().insert(held.clone());
        request.map(axum::body::Body::new)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_within)
        .max_headers(HEADERS_MAX)
        .serve_connection(
            TokioIo::new(SlowReader::new(stream, limits.read_within)),
            TowerToHyperService::new(service),
        )
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = app.stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Clients that go away or stall: odd only to the one who is looking.
        tracing::debug!(%error, "an API connection ended early");
    }
}
