//! Taking submissions. Each is answered after the commit that holds it, or with why it was refused.

use super::deadline::Deadline;
use super::error::{Answer, Failure, invalid};
use super::extract::{Body, NoParams, Params};
use crate::app::{App, Caller};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use proto::api::{
    SUBMISSION_BATCH_MAX, Submission, SubmissionBatch, Submitted, SubmittedBatch, SubmittedResult,
};
use proto::error::ErrorBody;
use proto::{ApiError, ErrorCode};

/// Submit a job
///
/// The key makes it safe to ask again: the same key and body are answered with the same job.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = Submission, responses(
    (status = 201, description = "committed", body = Submitted),
    (status = "default", description = "refused; nothing was stored", body = ErrorBody)))]
pub(super) async fn submit(
    State(app): State<App>,
    caller: Caller,
    Deadline(deadline): Deadline,
    _: Params<NoParams>,
    Body(submission): Body<Submission>,
) -> Result<(StatusCode, Json<Submitted>), Failure> {
    let answer = app.submissions.submit(&caller, vec![submission], deadline).await.pop();
    let missing = || ApiError::new(ErrorCode::Internal, "the submission was not answered");
    let submitted = answer.ok_or_else(missing)??;
    Ok((StatusCode::CREATED, Json(submitted)))
}

/// Submit many jobs
///
/// Each succeeds or fails by itself; the results stand in the order of the submissions.
#[utoipa::path(post, path = "/v1/jobs/batch", tag = "jobs", request_body = SubmissionBatch, responses(
    (status = 200, description = "a result for each", body = SubmittedBatch),
    (status = "default", description = "refused; nothing was stored", body = ErrorBody)))]
pub(super) async fn submit_batch(
    State(app): State<App>,
    caller: Caller,
    Deadline(deadline): Deadline,
    _: Params<NoParams>,
    Body(batch): Body<SubmissionBatch>,
) -> Answer<SubmittedBatch> {
    let count = batch.jobs.len();
    if count == 0 {
        return Err(invalid("the batch has no jobs: expected 1 or more").into());
    }
    if count > SUBMISSION_BATCH_MAX {
        let message = format!("the batch has {count} jobs, over the most accepted, {SUBMISSION_BATCH_MAX}");
        return Err(ApiError::new(ErrorCode::TooLarge, message).hint("send them in several batches").into());
    }
    let answers = app.submissions.submit(&caller, batch.jobs, deadline).await;
    let results = answers.into_iter().map(|answer| match answer {
        Ok(submitted) => SubmittedResult::Job(submitted),
        Err(error) => SubmittedResult::Error(error),
    });
    Ok(Json(SubmittedBatch { results: results.collect() }))
}
