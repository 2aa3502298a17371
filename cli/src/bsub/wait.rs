//! `bsub --wait`: blocks until the job ended, and becomes its exit status.
//!
//! The controller holds each question open until the end or a timeout, so nothing is polled. A controller that is away for a
//! while is asked again, since the job goes on without it. The first interrupt leaves the job alone and says how to cancel it.

use crate::client::{Client, Trouble, decode, retry};
use crate::fail::{Fail, say, warn};
use hyper::Method;
use proto::ErrorCode;
use proto::api::{Job, JobList};
use std::time::{Duration, Instant};

/// How long the controller holds one question.
const HOLD: Duration = Duration::from_secs(60);
/// How long the controller may be away before waiting is given up.
const AWAY_MAX: Duration = Duration::from_secs(600);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Waits for the end of every task, and gives the exit status of the job: of an array the largest.
pub async fn wait(client: &mut Client, id: i64, quiet: bool) -> Result<u8, Fail> {
    let path = format!("/v1/jobs/{id}/wait?timeout_s={}", HOLD.as_secs());
    let mut away: Option<Instant> = None;
    let mut pause = Duration::from_millis(100);
    loop {
        let asked = Instant::now();
        let fail = match client.send(Method::GET, &path, None, HOLD + Duration::from_secs(30)).await {
            Ok(answer) if answer.status.is_success() => {
                let list: JobList = decode(&answer.body)?;
                if !list.jobs.is_empty() && list.jobs.iter().all(|job| job.state.terminal()) {
                    return Ok(status(&list.jobs, quiet));
                }
                (away, pause) = (None, Duration::from_millis(100));
                // A controller that answers at once though nothing ended must not be asked in a circle.
                if asked.elapsed() < HOLD / 2 {
                    tokio::time::sleep(pause).await;
                }
                continue;
            }
            Ok(answer) => {
                let error = answer.error();
                if !error.retryable {
                    return Err(error.into());
                }
                Fail::from(error)
            }
            Err(trouble @ (Trouble::Unreachable { .. } | Trouble::Lost { .. })) => Fail::from(trouble),
        };
        let since = *away.get_or_insert_with(|| {
            if !quiet {
                warn("bsub", &format!("{}; job {id} goes on, and is asked for again", fail.error.message));
            }
            Instant::now()
        });
        if since.elapsed() > AWAY_MAX {
            let message = format!("waiting for job {id} is given up: {}", fail.error.message);
            return Err(Fail::new(ErrorCode::Unavailable, message)
                .hint(format!("the job goes on: `bq {id}` shows it")));
        }
        client.turn_to_another();
        tokio::time::sleep(retry::jittered(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The exit status of a job that ended; one line on stderr for what a status cannot say.
fn status(jobs: &[Job], quiet: bool) -> u8 {
    for job in jobs.iter().filter(|_| !quiet) {
        let without_status = job.exit_code.is_none() && job.signal.is_none();
        let unexpected = job.state != proto::State::Completed && job.exit_code.unwrap_or(0) == 0;
        if without_status || unexpected {
            let why =
                job.reasons.first().map_or(job.state.sentence(), |condition| condition.message.as_str());
            say("bsub", "", &format!("job {}: {}: {why}", job.display_id, job.state));
        }
    }
    jobs.iter().map(status_of).max().unwrap_or(0)
}

/// The script's own status, 128 + N for signal N; 1 for a job that has none, or that did not end well all the same.
fn status_of(job: &Job) -> u8 {
    let own = match (job.exit_code, job.signal) {
        (_, Some(signal)) => 128 + signal.clamp(0, 64),
        (Some(code), None) => code.clamp(0, 255),
        (None, None) => 0,
    };
    match (own, job.state) {
        (0, proto::State::Completed) => 0,
        (0, _) => 1,
        (own, _) => own as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bq::sample::job;
    use proto::State;

    fn ended(state: State, exit_code: Option<i32>, signal: Option<i32>) -> Job {
        Job { state, exit_code, signal, ..job(7) }
    }

    #[test]
    fn the_scripts_own_status_comes_through() {
        for (state, exit_code, signal, want) in [
            (State::Completed, Some(0), None, 0),
            (State::Failed, Some(3), None, 3),
            (State::Failed, Some(255), None, 255),
            (State::Failed, None, Some(9), 137),
            (State::Timeout, None, Some(15), 143),
            (State::Timeout, Some(0), None, 1),
            (State::Cancelled, None, None, 1),
            (State::OutOfMemory, Some(0), None, 1),
        ] {
            assert_eq!(status_of(&ended(state, exit_code, signal)), want, "{state} {exit_code:?} {signal:?}");
        }
    }

    #[test]
    fn of_an_array_the_largest_counts() {
        let tasks = [0, 4, 2]
            .map(|code| ended(if code == 0 { State::Completed } else { State::Failed }, Some(code), None));
        assert_eq!(status(&tasks, true), 4);
    }
}
