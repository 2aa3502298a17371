//! The API's doors: connections taken, bounded, served over HTTP/1.1 and let go.
//!
//! Our own loop over hyper, because nothing ready-made closes a connection that says nothing: a connection must send a whole
//! header within [`Limits::header_within`], which is also how long an idle one is kept. Stopping lets requests under way finish.
//! The unix socket is the one door now; a TCP door with TLS would take its connections here beside it and find its caller in a
//! certificate or token instead of the kernel's credentials.

use super::caller::{Peer, Users};
use super::router;
use crate::app::App;
use crate::metrics::Open;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
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
    /// How long requests under way may take to finish when the controller stops.
    pub stop_within: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 4096,
            header_within: Duration::from_secs(60),
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
        room: Arc::new(Semaphore::new(limits.connections)),
        open: TaskTracker::new(),
        limits,
        app,
    };
    let stopping = door.app.stopping.clone();
    stopping.run_until_cancelled(door.take_connections(&listener)).await;
    // No more connections are taken; those that wait in the queue are refused.
    drop(listener);
    door.open.close();
    if tokio::time::timeout(limits.stop_within, door.open.wait()).await.is_err() {
        let open = door.open.len();
        tracing::warn!(connections = open, "API connections are still open, and are cut off");
    }
    Ok(())
}

struct Door {
    app: App,
    router: Router,
    users: Arc<Users>,
    room: Arc<Semaphore>,
    open: TaskTracker,
    limits: Limits,
}

impl Door {
    async fn take_connections(&self, listener: &UnixListener) {
        // The semaphore is never closed.
        while let Ok(room) = self.room.clone().acquire_owned().await {
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
        let held = Arc::new(Held {
            _room: room,
            _tracked: self.open.token(),
            _counted: self.app.metrics.connection_open(),
        });
        let (app, router, users, limits) =
            (self.app.clone(), self.router.clone(), self.users.clone(), self.limits);
        tokio::spawn(async move {
            match stream.peer_cred() {
                Ok(peer) => {
                    let peer = users.caller(peer, &app.config).await;
                    talk(&app, router, stream, peer, held, limits).await;
                }
                Err(error) => tracing::warn!(%error, "a connection does not say whose it is, and is closed"),
            }
        });
    }
}

async fn talk(app: &App, router: Router, stream: UnixStream, peer: Peer, held: Arc<Held>, limits: Limits) {
    let service = router.map_request(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(held.clone());
        request.map(axum::body::Body::new)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_within)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
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
