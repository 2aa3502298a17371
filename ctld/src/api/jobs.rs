//! Looking at jobs: lists, one in full, and why one waits. Everybody sees every job; scripts are for owners and operators.

use super::error::Failure;
use super::extract::{Job, NoParams, Params};
use super::reply;
use crate::app::{App, Caller};
use crate::store::{read, snapshot};
use axum::extract::State;
use axum::response::Response;
use proto::api::{BriefList, JobList, JobQuery};
use proto::error::ErrorBody;

/// List jobs
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(JobQuery), responses(
    (status = 200, description = "what runs, then what waits in its order, then what ended", body = JobList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn list(
    State(app): State<App>,
    _: Caller,
    Params(query): Params<JobQuery>,
) -> Result<Response, Failure> {
    reply::job_list(read::jobs(&app.db, &query).await?).await
}

/// List jobs, a line's worth of each
///
/// The same entries in the same order, with the fields that a line of a list shows.
#[utoipa::path(get, path = "/v1/jobs/brief", tag = "jobs", params(JobQuery), responses(
    (status = 200, description = "what runs, then what waits in its order, then what ended", body = BriefList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn brief(
    State(app): State<App>,
    _: Caller,
    Params(query): Params<JobQuery>,
) -> Result<Response, Failure> {
    reply::brief_list(read::brief(&app.db, &query).await?).await
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
) -> Result<Response, Failure> {
    reply::job_list(read::job(&app.db, &job, &caller).await?).await
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
) -> Result<Response, Failure> {
    reply::job_list(snapshot::why(&app.db, &job, app.config.grace_s()).await?).await
}
