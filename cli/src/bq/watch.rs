//! `bq --watch`: the list, drawn anew whenever something in it may have changed, until interrupted.
//!
//! The controller's events say when. A plain user is told of their own jobs only, and what is told comes a moment late, so the list
//! is looked at every [`LOOK_EVERY`] as well; without events, more often. On a terminal each list takes the place of the last;
//! anywhere else they follow one another with an empty line between.

use super::args::BqArgs;
use super::{Layout, NAME, list_body};
use crate::client::Client;
use crate::client::stream::{Follow, Told};
use crate::fail::{Fail, warn};
use crate::out;
use crate::table::terminal_width;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// How long the list stays when nothing is told.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long it stays where there are no events.
const POLL_EVERY: Duration = Duration::from_secs(2);
/// How long it stays at least, whatever happens.
const STAY: Duration = Duration::from_millis(250);
/// Clears the screen and goes to its corner.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Shows the list until interrupted.
pub(super) async fn watch(args: &BqArgs, layout: &Layout) -> Result<(), Fail> {
    let mut client = Client::find()?;
    let mut events = Some(Follow::new(Client::find()?, "/v1/events?type=job,reservation".to_owned(), None));
    let terminal = std::io::stdout().is_terminal();
    let mut shown = String::new();
    loop {
        match list_body(&mut client, args, layout).await {
            Ok(body) => {
                let text = layout.render(args, &body, terminal_width())?.text;
                if text != shown {
                    let before = if terminal {
                        CLEAR
                    } else if shown.is_empty() {
                        ""
                    } else {
                        "\n"
                    };
                    if !out::write_while_read(format!("{before}{text}").as_bytes())? {
                        return Ok(());
                    }
                    shown = text;
                }
            }
            Err(fail) if fail.error.retryable => {
                warn(NAME, &format!("{}; trying again", fail.error.message));
                client.turn_to_another();
            }
            Err(fail) => return Err(fail),
        }
        let drawn = Instant::now();
        if let Some(follow) = &mut events
            && let Err(fail) = change(follow, drawn + LOOK_EVERY).await
        {
            warn(
                NAME,
                &format!("no events: {}; looking every {} s", fail.error.message, POLL_EVERY.as_secs()),
            );
            events = None;
        }
        match events {
            Some(_) => sleep_until(drawn + STAY).await,
            None => sleep_until(drawn + POLL_EVERY).await,
        }
    }
}

/// Returns when something was told, or at this time.
async fn change(follow: &mut Follow, until: Instant) -> Result<(), Fail> {
    while let Ok(told) = timeout_at(until, follow.next()).await {
        let Told { kind, .. } = told?;
        if !kind.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}
