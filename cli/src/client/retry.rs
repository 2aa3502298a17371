//! Asking again: a request under an idempotency key, sent until an answer comes or the time or the tries are used up.
//!
//! Only for requests that name an operation by key, so that a second one can do no harm, at whichever controller. Passing
//! refusals (too busy, database away, connection lost) are tried again with growing, jittered pauses, `Retry-After` honoured;
//! one that could not answer or gave none leaves the turn to the next controller, each once before a pause. Lasting refusals are
//! given back at once. If time runs out after anything was sent, the outcome is unknown, and that is what is said.

use super::{Answer, Client, Trouble};
use crate::fail::Fail;
use bytes::Bytes;
use hyper::Method;
use proto::ErrorCode;
use std::time::{Duration, Instant};

/// How long a request is asked again in all.
pub const RETRY_TIME: Duration = Duration::from_secs(60);
/// One try's deadline; longer than the controller's own, so that it answers first.
pub const TRY_TIME: Duration = Duration::from_secs(20);

/// The most times one request is sent: what no controller answers by then is not helped by more of the same.
const TRIES_MAX: usize = 32;
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Posts a body that holds `key`, until there is an answer. `total` is the time for all tries.
pub async fn post(
    client: &mut Client,
    path: &str,
    body: Bytes,
    key: &str,
    total: Duration,
) -> Result<Bytes, Fail> {
    let started = Instant::now();
    let mut pause = PAUSE_FIRST;
    // Once a request may have arrived, "unreachable" says nothing about it any more.
    let mut maybe_done = false;
    // Controllers that have not been asked since the last pause, beside this one.
    let mut others = client.controllers() - 1;
    let mut tries = 0;
    loop {
        tries += 1;
        let left = total.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
        let (fail, wait, busy) =
            match client.send(Method::POST, path, Some(body.clone()), TRY_TIME.min(left)).await {
                Ok(answer) if answer.status.is_success() => return Ok(answer.body),
                Ok(answer) => {
                    let error = answer.error();
                    maybe_done |= error.code == ErrorCode::OutcomeUnknown || passing_but_unclear(&answer);
                    if !error.retryable {
                        return Err(error.into());
                    }
                    let busy = error.code == ErrorCode::Overloaded;
                    (Fail::from(error), answer.retry_after, busy)
                }
                Err(trouble @ Trouble::Unreachable { .. }) if !maybe_done => return Err(trouble.into()),
                Err(trouble) => {
                    maybe_done |= matches!(trouble, Trouble::Lost { .. });
                    (Fail::from(trouble), None, false)
                }
            };
        // One that is too busy is left alone; going on elsewhere with what it could not take would only spread the load.
        if !busy && others > 0 && tries < TRIES_MAX && started.elapsed() < total {
            others -= 1;
            client.turn_to_another();
            continue;
        }
        others = client.controllers() - 1;
        let rest = jittered(pause).max(wait.unwrap_or_default());
        if started.elapsed() + rest >= total || tries >= TRIES_MAX {
            return Err(if maybe_done { unknown(fail, key) } else { fail });
        }
        tokio::time::sleep(rest).await;
        pause = (pause * 2).min(PAUSE_MAX);
        if !busy {
            client.turn_to_another();
        }
    }
}

/// A 5xx without our error body came from something in between: it may have passed the request on.
fn passing_but_unclear(answer: &Answer) -> bool {
    answer.status.is_server_error()
        && serde_json::from_slice::<proto::error::ErrorBody>(&answer.body).is_err()
}

fn unknown(last: Fail, key: &str) -> Fail {
    let message = format!("outcome unknown: {}", last.error.message);
    let mut fail = Fail::new(ErrorCode::OutcomeUnknown, message).hint(format!(
        "the request may have been carried out; the same command with --idempotency-key={key} finds out, and does nothing twice"
    ));
    fail.idempotency_key = Some(key.to_owned());
    fail
}

/// Between half of the pause and all of it, so that clients do not come back all at once.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}
