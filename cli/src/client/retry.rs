//! Asking again: a request under an idempotency key, sent until an answer comes or the time is up.
//!
//! Only for requests that name an operation by key, so that a second one can do no harm. Passing refusals (too busy, database
//! away, connection lost) are tried again with growing, jittered pauses, `Retry-After` honoured; lasting ones are given
//! back at once. If time runs out after anything was sent, the outcome is unknown, and that is what is said.

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
    loop {
        let left = total.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
        let (fail, wait) = match client.send(Method::POST, path, Some(body.clone()), TRY_TIME.min(left)).await
        {
            Ok(answer) if answer.status.is_success() => return Ok(answer.body),
            Ok(answer) => {
                let error = answer.error();
                maybe_done |= error.code == ErrorCode::OutcomeUnknown || passing_but_unclear(&answer);
                if !error.retryable {
                    return Err(error.into());
                }
                (Fail::from(error), answer.retry_after)
            }
            Err(trouble @ Trouble::Unreachable { .. }) if !maybe_done => return Err(trouble.into()),
            Err(trouble) => {
                maybe_done |= matches!(trouble, Trouble::Lost { .. });
                (Fail::from(trouble), None)
            }
        };
        let rest = jittered(pause).max(wait.unwrap_or_default());
        if started.elapsed() + rest >= total {
            return Err(if maybe_done { unknown(fail, key) } else { fail });
        }
        tokio::time::sleep(rest).await;
        pause = (pause * 2).min(PAUSE_MAX);
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
