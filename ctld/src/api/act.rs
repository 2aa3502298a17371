//! Acting on jobs: cancel, hold, release, requeue. Who may act on which job is decided with the job, in the store.

use super::error::{Answer, invalid};
use super::extract::{Body, NoParams, Params};
use crate::app::{App, Caller};
use crate::store::act::{self, Acted};
use axum::Json;
use axum::extract::State;
use proto::api::{ACT_IDS_MAX, ActRequest, ActResults, CancelRequest};
use proto::error::ErrorBody;
use proto::{ApiError, ErrorCode};

/// Cancel or signal jobs
///
/// By id, or by filter. What runs is told to end; the answer comes after the commit, not after the end.
#[utoipa::path(post, path = "/v1/jobs/cancel", tag = "jobs", request_body = CancelRequest, responses(
    (status = 200, description = "a result for each id, or for each job found", body = ActResults),
    (status = "default", description = "refused as a whole", body = ErrorBody)))]
pub(super) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Body(request): Body<CancelRequest>,
) -> Answer<ActResults> {
    refuse_many(request.ids.len())?;
    Ok(done(&app, act::cancel(&app.db, &caller, &request).await?))
}

/// Hold jobs that wait
#[utoipa::path(post, path = "/v1/jobs/hold", tag = "jobs", request_body = ActRequest, responses(
    (status = 200, description = "a result for each id", body = ActResults),
    (status = "default", description = "refused as a whole", body = ErrorBody)))]
pub(super) async fn hold(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Body(request): Body<ActRequest>,
) -> Answer<ActResults> {
    Ok(done(&app, act::hold(&app.db, &caller, some(&request)?).await?))
}

/// Release held jobs
#[utoipa::path(post, path = "/v1/jobs/release", tag = "jobs", request_body = ActRequest, responses(
    (status = 200, description = "a result for each id", body = ActResults),
    (status = "default", description = "refused as a whole", body = ErrorBody)))]
pub(super) async fn release(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Body(request): Body<ActRequest>,
) -> Answer<ActResults> {
    Ok(done(&app, act::release(&app.db, &caller, some(&request)?).await?))
}

/// Send running jobs back to the queue
#[utoipa::path(post, path = "/v1/jobs/requeue", tag = "jobs", request_body = ActRequest, responses(
    (status = 200, description = "a result for each id", body = ActResults),
    (status = "default", description = "refused as a whole", body = ErrorBody)))]
pub(super) async fn requeue(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Body(request): Body<ActRequest>,
) -> Answer<ActResults> {
    Ok(done(&app, act::requeue(&app.db, &caller, some(&request)?).await?))
}

/// Wakes those whom the act concerns and gives the caller its results.
fn done(app: &App, acted: Acted) -> Json<ActResults> {
    app.wakes.announce(&acted);
    Json(acted.results)
}

fn some(request: &ActRequest) -> Result<&[String], ApiError> {
    refuse_many(request.ids.len())?;
    if request.ids.is_empty() {
        return Err(invalid("no ids were given: expected 1 or more"));
    }
    Ok(&request.ids)
}

fn refuse_many(ids: usize) -> Result<(), ApiError> {
    if ids <= ACT_IDS_MAX {
        return Ok(());
    }
    let message = format!("{ids} ids are over the most accepted in one request, {ACT_IDS_MAX}");
    Err(ApiError::new(ErrorCode::TooLarge, message).hint("send them in several requests"))
}
