//! Waiting for a job's end without asking again and again.
//!
//! Listens before it looks, so that an end between the two is not missed. Ends that this controller records wake at once, those
//! of others as they are told, and at the latest as events; what is waited for is also looked at every [`LOOK_EVERY`].

use super::error::{Failure, invalid};
use super::extract::{Job, Params};
use super::reply;
use crate::app::{App, Caller};
use crate::store::events::Placed;
use crate::store::read;
use axum::extract::State;
use axum::response::Response;
use proto::api::JobList;
use proto::error::ErrorBody;
use proto::{ApiError, ErrorCode, JobRef};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long a caller waits that does not say.
const TIMEOUT_DEFAULT_S: u64 = 60;
/// The longest wait; who wants more asks again.
const TIMEOUT_MAX_S: u64 = 600;
/// How often the database is looked at when nothing wakes.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The events that say of an end.
const ENDS: [&str; 2] = ["job.ended", "job.task_ended"];

/// The longest pause between looks while tasks of the same job keep ending: a wide array must not cost a look a task.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// How long to wait.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitParams {
    /// Seconds, 0 to 600; 60 when absent.
    timeout_s: Option<u64>,
}

/// Wait for a job's end
///
/// Answers when every task named has ended, or at the timeout with the job as it then is.
#[utoipa::path(get, path = "/v1/jobs/{id}/wait", tag = "jobs",
    params(("id", description = "`12`, `12_3` or `12_[1-3]`"), WaitParams),
    responses((status = 200, description = "its entries, ended or not", body = JobList),
        (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn wait(
    State(app): State<App>,
    _: Caller,
    Job(job): Job,
    Params(params): Params<WaitParams>,
) -> Result<Response, Failure> {
    let timeout_s = params.timeout_s.unwrap_or(TIMEOUT_DEFAULT_S);
    if timeout_s > TIMEOUT_MAX_S {
        let message = format!("timeout_s {timeout_s} is not accepted: expected 0 to {TIMEOUT_MAX_S}");
        return Err(invalid(message).hint("wait again after the answer").into());
    }
    let deadline = Instant::now() + Duration::from_secs(timeout_s);
    tokio::select! {
        ended = until_ended(&app, &job) => ended?,
        () = sleep_until(deadline) => {}
        () = app.stopping.cancelled() => {}
    }
    reply::job_list(read::jobs_of(&app.db, &job).await?).await
}

async fn until_ended(app: &App, job: &JobRef) -> Result<(), Failure> {
    let mut ends = app.wakes.watch_ended();
    let subject = format!("job/{}", job.job);
    let mut events = None;
    let mut pause = Duration::ZERO;
    loop {
        match read::ended(&app.db, job).await? {
            Some(true) => return Ok(()),
            Some(false) => {}
            None => {
                return Err(
                    ApiError::new(ErrorCode::NotFound, format!("job {} is not known", job.job)).into()
                );
            }
        }
        let Some(events) = &mut events else {
            // Most jobs that are asked for have ended: those that have not are listened for, and looked at again.
            events = Some(app.events.listen().await.events);
            continue;
        };
        // The first end is looked at at once; later ones of the same job, which is then an array, more and more at leisure.
        sleep(pause).await;
        let woken = async {
            tokio::select! {
                () = end_of(job.job, &mut ends) => {}
                () = told_end_of(&subject, events) => {}
            }
        };
        let woken = timeout(LOOK_EVERY, woken).await.is_ok();
        if woken {
            pause = (pause * 2 + Duration::from_millis(1)).min(PAUSE_MAX);
        }
    }
}

/// Returns when the job, or a task of it, ended, or when that may have been missed.
async fn end_of(job: i64, ends: &mut Receiver<i64>) {
    loop {
        match ends.recv().await {
            Ok(ended) if ended != job => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            // Nobody will tell any more: leave it to the regular look.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// The same by its events.
async fn told_end_of(subject: &str, events: &mut Receiver<Arc<Placed>>) {
    loop {
        match events.recv().await {
            Ok(placed) if placed.event.subject != subject || !ENDS.contains(&placed.event.kind.as_str()) => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
