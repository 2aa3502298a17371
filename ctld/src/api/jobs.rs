//! Looking at jobs: lists, one in full, and why one waits. Everybody sees every job; scripts are for owners and operators.

use super::error::Answer;
use super::extract::{Job, NoParams, Params};
use crate::app::{App, Caller};
use crate::store::{read, snapshot};
use axum::Json;
use axum::extract::State;
use proto::api::{JobList, JobQuery};
use proto::error::ErrorBody;

/// List jobs
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(JobQuery), responses(
    (status = 200, description = "what runs, then what waits in its order, then what ended", body = JobList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn list(
    State(app): State<App>,
    _: Caller,
    Params(query): Params<JobQuery>,
) -> Answer<JobList> {
    Ok(Json(read::jobs(&app.db, &query).await?))
}

/// One job in full
///
/// Of an array all its tasks, or those named. The script stands in the first entry, and only for its owner and operators.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id", description = "`12`, `12_3` or `12_[1-3]`")),
    responses((status = 200, description = "its entries", body = JobList),
        (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Job(job): Job,
) -> Answer<JobList> {
    Ok(Json(read::job(&app.db, &job, &caller).await?))
}

/// Why a job waits
///
/// Worked out now, by the code that decides, with both numbers of every check that fails.
#[utoipa::path(get, path = "/v1/jobs/{id}/why", tag = "jobs", params(("id", description = "`12`, `12_3` or `12_[1-3]`")),
    responses((status = 200, description = "its entries, with reasons as of now", body = JobList),
        (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn why(
    State(app): State<App>,
    _: Caller,
    _: Params<NoParams>,
    Job(job): Job,
) -> Answer<JobList> {
    Ok(Json(snapshot::why(&app.db, &job).await?))
}
