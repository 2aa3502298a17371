//! Nodes and pools: looking, and for operators draining and resuming.

use super::caller::Operator;
use super::error::{Answer, invalid};
use super::extract::{Body, Named, NoParams, Params};
use crate::app::{App, Caller};
use crate::store::{holds, read};
use axum::Json;
use axum::extract::State;
use proto::api::{DrainRequest, NodeList, PoolList, ResumeRequest};
use proto::error::ErrorBody;

/// The longest reason of a drain, in bytes.
const REASON_BYTES_MAX: usize = 1000;

/// List nodes
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", responses(
    (status = 200, description = "every node, by name", body = NodeList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn list(State(app): State<App>, _: Caller, _: Params<NoParams>) -> Answer<NodeList> {
    Ok(Json(read::nodes(&app.db).await?))
}

/// One node
#[utoipa::path(get, path = "/v1/nodes/{name}", tag = "nodes", params(("name", description = "its name")), responses(
    (status = 200, description = "the node", body = NodeList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn show(
    State(app): State<App>,
    _: Caller,
    _: Params<NoParams>,
    Named(name): Named,
) -> Answer<NodeList> {
    Ok(Json(read::node(&app.db, &name).await?))
}

/// Drain a node
///
/// It takes no new work; what runs there goes on. For operators.
#[utoipa::path(post, path = "/v1/nodes/{name}/drain", tag = "nodes", request_body = DrainRequest,
    params(("name", description = "its name")), responses(
    (status = 200, description = "the node as it is now", body = NodeList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn drain(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Named(name): Named,
    Body(request): Body<DrainRequest>,
) -> Answer<NodeList> {
    let reason = request.reason.trim();
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX || reason.contains(char::is_control) {
        let message =
            format!("the reason is not accepted: expected 1 to {REASON_BYTES_MAX} bytes in one line");
        return Err(invalid(message).into());
    }
    let held = holds::drain(&app.db, &name, &caller.user, reason).await?;
    tracing::info!(node.name = name, user.name = caller.user, reason, changed = held.changed, "node drained");
    // The planner works out anew why those wait that would have gone there.
    app.wakes.planner();
    Ok(Json(read::node(&app.db, &name).await?))
}

/// End a drain
///
/// Lifts the caller's own drain of the node, or with `all` everybody's. For operators.
#[utoipa::path(post, path = "/v1/nodes/{name}/resume", tag = "nodes", request_body = ResumeRequest,
    params(("name", description = "its name")), responses(
    (status = 200, description = "the node as it is now", body = NodeList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn resume(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Named(name): Named,
    Body(request): Body<ResumeRequest>,
) -> Answer<NodeList> {
    let held = holds::resume(&app.db, &name, &caller.user, request.all).await?;
    tracing::info!(node.name = name, user.name = caller.user, changed = held.changed, "node resumed");
    app.wakes.planner();
    Ok(Json(read::node(&app.db, &name).await?))
}

/// List pools
#[utoipa::path(get, path = "/v1/pools", tag = "pools", responses(
    (status = 200, description = "every pool, by name", body = PoolList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn pools(State(app): State<App>, _: Caller, _: Params<NoParams>) -> Answer<PoolList> {
    Ok(Json(read::pools(&app.db).await?))
}
