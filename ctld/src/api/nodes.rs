//! Looking at nodes and pools.

use super::error::Answer;
use super::extract::{Named, NoParams, Params};
use crate::app::{App, Caller};
use crate::store::read;
use axum::Json;
use axum::extract::State;
use proto::api::{NodeList, PoolList};
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

/// List pools
#[utoipa::path(get, path = "/v1/pools", tag = "pools", responses(
    (status = 200, description = "every pool, by name", body = PoolList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn pools(State(app): State<App>, _: Caller, _: Params<NoParams>) -> Answer<PoolList> {
    Ok(Json(read::pools(&app.db).await?))
}
