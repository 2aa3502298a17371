//! Changes of GPUs' modes and layouts, for operators.

use super::caller::Operator;
use super::error::{Answer, act_begins, invalid};
use super::extract::{Body, Named, NoParams, Params};
use crate::app::{App, Caller};
use crate::store::modes;
use axum::Json;
use axum::extract::State;
use proto::api::{GpuChangeAnswer, GpuChangeList, GpuChangeRequest};
use proto::error::ErrorBody;
use serde::Deserialize;

/// The query of the list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListParams {
    ended: bool,
}

/// List changes of GPUs' modes
#[utoipa::path(get, path = "/v1/gpus/changes", tag = "nodes",
    params(("ended" = Option<bool>, Query, description = "those that have ended too")), responses(
    (status = 200, description = "changes, by beginning", body = GpuChangeList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn list(
    State(app): State<App>,
    _: Caller,
    Params(params): Params<ListParams>,
) -> Answer<GpuChangeList> {
    Ok(Json(modes::list(&app.db, params.ended).await?))
}

/// Change a GPU's mode or layout
///
/// Booked if nothing is in its way, now or at a time, or refused with what is. With `preview` nothing is booked. For operators.
#[utoipa::path(post, path = "/v1/gpus/changes", tag = "nodes", request_body = GpuChangeRequest, responses(
    (status = 200, description = "booked, or what would be in the way", body = GpuChangeAnswer),
    (status = "default", description = "refused; nothing changed", body = ErrorBody)))]
pub(super) async fn change(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Body(request): Body<GpuChangeRequest>,
) -> Answer<GpuChangeAnswer> {
    let answer = modes::change(&app.db, &caller, &request).await?;
    if answer.change.is_some() {
        tracing::info!(gpu.uuid = request.gpu, mode = %request.mode, user.name = caller.user, "mode change booked");
        app.wakes.modes();
        app.wakes.planner();
    }
    Ok(Json(answer))
}

/// Cancel a change
#[utoipa::path(post, path = "/v1/gpus/changes/{id}/cancel", tag = "nodes",
    params(("id", description = "its id")), responses(
    (status = 200, description = "cancelled", body = GpuChangeList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn cancel(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Named(id): Named,
) -> Answer<GpuChangeList> {
    let id: i64 = id.parse().map_err(|_| invalid(format!("{id:?} is no change's id")))?;
    act_begins();
    let list = modes::cancel(&app.db, id).await?;
    tracing::info!(change.id = id, user.name = caller.user, "mode change cancelled");
    app.wakes.planner();
    Ok(Json(list))
}
