//! The nodes' door: TCP with TLS, for machines other than the controller's.
//!
//! Only what nodes ask is served ([`node_router`]); users and operators have no identities here yet, so theirs is the unix socket. A
//! connection that does not finish its handshake in time is closed, one that does not speak TLS at once, and no more are taken than
//! [`Limits::connections`].

use super::error;
use super::extract::BODY_BYTES_MAX;
use super::node_join::{self, Shown};
use super::serve::{Guard, Limits, talk};
use crate::app::App;
use crate::node_tls::NodeTls;
use crate::pki;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use axum::routing::{get, post};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower_http::catch_panic::CatchPanicLayer;

/// How long to wait before taking connections again after the process ran out of file descriptors or the like.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves nodes until the controller stops.
pub async fn serve_nodes(
    app: App,
    listener: TcpListener,
    tls: Arc<NodeTls>,
    limits: Limits,
) -> io::Result<()> {
    let router = node_router(app.clone());
    let guard = Guard::new(&app, limits);
    let taking = async {
        loop {
            let room = guard.room().await;
            match listener.accept().await {
                Ok((stream, from)) => {
                    let held = guard.hold(room);
                    let (app, router, tls) = (app.clone(), router.clone(), tls.clone());
                    tokio::spawn(async move {
                        if let Some((stream, shown)) = shake_hands(&tls, stream, from, limits).await {
                            let extend = move |request: &mut hyper::Request<hyper::body::Incoming>| {
                                request.extensions_mut().insert(shown.clone());
                            };
                            talk(&app, router, stream, extend, held, limits).await;
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a node's connection could not be taken");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    app.stopping.run_until_cancelled(taking).await;
    drop(listener);
    guard.let_go().await;
    Ok(())
}

/// The paths that nodes on other machines have.
fn node_router(app: App) -> Router {
    Router::new()
        .route("/v1/node-join", post(node_join::join))
        .route("/v1/node-renewal", post(node_join::renew))
        .route("/v1/node-session", get(node_join::session))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX.min(64 << 10)))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(middleware::from_fn_with_state(app.clone(), super::observe::count))
        .with_state(app)
}

async fn shake_hands(
    tls: &NodeTls,
    stream: TcpStream,
    from: SocketAddr,
    limits: Limits,
) -> Option<(tokio_rustls::server::TlsStream<TcpStream>, Shown)> {
    // Messages are small and each waits for an answer.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, %from, "a node's connection is gone already");
        return None;
    }
    let shaking = TlsAcceptor::from(tls.server()).accept(stream);
    let stream = match tokio::time::timeout(limits.handshake_within, shaking).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::info!(%error, %from, "a node's connection did not pass TLS");
            return None;
        }
        Err(_) => {
            tracing::info!(%from, "a node's connection was too slow with TLS");
            return None;
        }
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    match certificate.map(pki::serial_of).transpose() {
        Ok(serial) => Some((stream, Shown(serial))),
        Err(error) => {
            tracing::warn!(%error, %from, "a certificate that TLS accepted cannot be read");
            None
        }
    }
}
