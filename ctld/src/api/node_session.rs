//! The door for node daemons: from a request to a WebSocket, which the session then owns.
//!
//! On the unix socket a daemon is known by its user: root, or the controller's own where the whole cluster is one person's.

use super::error::{Failure, invalid};
use super::extract::{NoParams, Params};
use super::serve::Held;
use crate::app::{App, Caller};
use crate::session::{self, Certified};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use proto::error::ErrorBody;
use proto::session::FRAME_BYTES_MAX;
use proto::{ApiError, ErrorCode};
use std::sync::Arc;

/// Open a node's session
///
/// For `noded`: a WebSocket carrying the node session's messages.
#[utoipa::path(get, path = "/v1/node-session", tag = "controller", responses(
    (status = 101, description = "the session is open"),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn open(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    held: Option<Extension<Arc<Held>>>,
    request: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    if caller.uid != 0 && caller.uid != nix::unistd::geteuid().as_raw() {
        let message = format!("user \"{}\" may not open a node's session", caller.user);
        return Err(ApiError::new(ErrorCode::PermissionDenied, message)
            .hint("noded must run as root or as the controller's own user")
            .into());
    }
    upgrade(app, None, held, request)
}

/// Makes the node's session of a request.
pub(super) fn upgrade(
    app: App,
    certified: Option<Certified>,
    held: Option<Extension<Arc<Held>>>,
    request: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let upgrade =
        request.map_err(|rejection| invalid(format!("expected a WebSocket: {}", rejection.body_text())))?;
    let upgrade = upgrade.max_frame_size(FRAME_BYTES_MAX).max_message_size(FRAME_BYTES_MAX);
    Ok(upgrade.on_upgrade(async move |socket| {
        // The connection counts as open, and is waited for when the controller stops, until its session ends.
        let _held = held;
        session::serve(app, socket, certified).await;
    }))
}
