//! Looking at nodes and pools, and giving nodes up.

use super::caller::Operator;
use super::error::Answer;
use super::extract::{Body, Named, NoParams, Params};
use crate::app::{App, Caller};
use crate::store::liveness::declare_lost;
use crate::store::read;
use axum::Json;
use axum::extract::State;
use proto::api::{LostRequest, NodeList, PoolList};
use proto::error::ErrorBody;

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

/// Give a node up
///
/// Its machine is gone: what is booked there ends as a failure of the node, and jobs that may be run again are. Refused while the
/// node has a session. A node that comes back is told to end what it still has of it. For operators.
#[utoipa::path(post, path = "/v1/nodes/{name}/lost", tag = "nodes", params(("name", description = "its name")),
    request_body = LostRequest, responses(
    (status = 200, description = "the node", body = NodeList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn lost(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Named(name): Named,
    Body(request): Body<LostRequest>,
) -> Answer<NodeList> {
    let recorded = declare_lost(&app.db, &name, &caller.user, &request.reason).await?;
    tracing::warn!(node.name = name, user.name = caller.user, reason = request.reason, "given up as lost");
    app.wakes.nodes(recorded.nodes);
    app.wakes.ended(recorded.ended_jobs);
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
