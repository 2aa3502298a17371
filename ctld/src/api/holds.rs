//! Holds: looking, and for operators putting and lifting them.

use super::caller::Operator;
use super::error::Answer;
use super::extract::{Body, NoParams, Params};
use crate::app::{App, Caller};
use crate::store::holds;
use axum::Json;
use axum::extract::State;
use proto::api::{HoldImpact, HoldList, HoldRequest, ResumeRequest};
use proto::error::ErrorBody;
use serde::Deserialize;

/// Which holds to list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListParams {
    target: Option<String>,
}

/// List holds
///
/// Those that are open, also those to come; with a target, those that keep it or a part of it from work.
#[utoipa::path(get, path = "/v1/holds", tag = "nodes",
    params(("target" = Option<String>, Query, description = "a node, a GPU or a part of a GPU")), responses(
    (status = 200, description = "holds, by node", body = HoldList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn list(
    State(app): State<App>,
    _: Caller,
    Params(params): Params<ListParams>,
) -> Answer<HoldList> {
    Ok(Json(holds::list(&app.db, params.target.as_deref()).await?))
}

/// Hold a node, a GPU or a part of a GPU
///
/// It takes no new work while the hold is in effect; what runs there goes on. For operators.
#[utoipa::path(post, path = "/v1/holds", tag = "nodes", request_body = HoldRequest, responses(
    (status = 200, description = "the one hold that stands now", body = HoldList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn put(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Body(request): Body<HoldRequest>,
) -> Answer<HoldList> {
    let done = holds::put(&app.db, &caller, &request).await?;
    let (target, kind) = (&request.target, request.kind.name());
    tracing::info!(
        target,
        kind,
        user.name = caller.user,
        reason = request.reason,
        opened = done.opened,
        "held"
    );
    app.wakes.holds();
    // The planner works out anew why those wait that would have gone there.
    app.wakes.planner();
    Ok(Json(done.list))
}

/// Look at what a hold would touch
///
/// Which jobs run there until when, and which reservations would lose their place. Changes nothing. For operators.
#[utoipa::path(post, path = "/v1/holds/preview", tag = "nodes", request_body = HoldRequest, responses(
    (status = 200, description = "what the hold would touch", body = HoldImpact),
    (status = "default", description = "refused as the hold itself would be", body = ErrorBody)))]
pub(super) async fn preview(
    State(app): State<App>,
    Operator(_): Operator,
    _: Params<NoParams>,
    Body(request): Body<HoldRequest>,
) -> Answer<HoldImpact> {
    Ok(Json(holds::impact(&app.db, &request).await?))
}

/// Lift holds
///
/// The caller's own on exactly this target, another owner's, or every person's. For operators.
#[utoipa::path(post, path = "/v1/holds/resume", tag = "nodes", request_body = ResumeRequest, responses(
    (status = 200, description = "what was lifted", body = HoldList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn resume(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Body(request): Body<ResumeRequest>,
) -> Answer<HoldList> {
    let list = holds::resume(&app.db, &caller, &request).await?;
    tracing::info!(target = request.target, user.name = caller.user, lifted = list.holds.len(), "resumed");
    app.wakes.holds();
    app.wakes.planner();
    Ok(Json(list))
}
