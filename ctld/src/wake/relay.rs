//! Wakes for other controllers, where there are any: what happens here may be another's to act on.
//!
//! What is to be told is gathered for a few milliseconds and told in one text, in a transaction of its own: a NOTIFY inside
//! every transaction would halve their rate. A controller that lives alone tells nobody.

use super::Wakes;
use crate::app::App;
use crate::store::wakes::{Ear, TEXT_BYTES_MAX, tell};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How long wakes are gathered before they are told.
const GATHER: Duration = Duration::from_millis(3);
/// How soon an ear that could not be opened is opened again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is to be told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct News {
    /// The process that tells: it need not hear itself.
    from: String,
    pub planner: bool,
    pub reservations: bool,
    pub holds: bool,
    pub modes: bool,
    /// Events were written, of which nothing else here tells.
    pub events: bool,
    /// Nodes whose targets changed.
    pub nodes: BTreeSet<i64>,
    /// Nodes for which there are commands.
    pub commands: BTreeSet<i64>,
    /// Jobs that ended.
    pub ended: BTreeSet<i64>,
    /// More nodes and jobs than the text has room for: everybody look.
    pub more: bool,
}

/// What waits to be told.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    news: Mutex<News>,
    some: Notify,
}

impl Outgoing {
    pub fn add(&self, add: impl FnOnce(&mut News)) {
        add(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        self.some.notify_one();
    }

    fn take(&self) -> News {
        std::mem::take(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl News {
    /// As text that PostgreSQL takes.
    fn text(mut self, from: &str) -> String {
        from.clone_into(&mut self.from);
        let text = |news: &News| serde_json::to_string(news).expect("news are plain data");
        let whole = text(&self);
        if whole.len() <= TEXT_BYTES_MAX {
            return whole;
        }
        let none = BTreeSet::new;
        text(&News { nodes: none(), commands: none(), ended: none(), more: true, ..self })
    }
}

/// Tells other controllers, until this one stops.
pub async fn relay(app: App) {
    let from = app.leases.owner().to_string();
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = app.wakes.outgoing.some.notified() => {}
        }
        tokio::time::sleep(GATHER).await;
        let news = app.wakes.outgoing.take();
        if app.leases.others_alive() == 0 || news == News::default() {
            continue;
        }
        // One that is lost costs the others a wait.
        if let Err(error) = tell(&app.db, &news.text(&from)).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "other controllers could not be woken");
        }
    }
}

/// Hears what other controllers tell, until this one stops.
pub async fn listen(app: App) {
    tokio::select! {
        () = app.stopping.cancelled() => {}
        () = hear(&app) => {}
    }
}

async fn hear(app: &App) {
    let me = app.leases.owner().to_string();
    loop {
        let mut ear = match Ear::open(&app.db).await {
            Ok(ear) => ear,
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the ear could not be opened");
                tokio::time::sleep(RETRY_AFTER).await;
                continue;
            }
        };
        loop {
            match ear.hear().await {
                Ok(Some(text)) => match serde_json::from_str::<News>(&text) {
                    Ok(news) if news.from == me => {}
                    Ok(news) => app.wakes.heard(news),
                    Err(_) => app.wakes.everybody(),
                },
                Ok(None) => app.wakes.everybody(),
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "the ear was lost");
                    tokio::time::sleep(RETRY_AFTER).await;
                    break;
                }
            }
        }
    }
}

impl Wakes {
    /// Passes on what another controller tells, to those who wait here.
    fn heard(&self, news: News) {
        self.events.notify_one();
        if news.planner || news.more {
            self.planner.notify_one();
        }
        if news.reservations {
            self.reservations.notify_one();
        }
        if news.holds {
            self.holds.notify_one();
        }
        if news.modes {
            self.modes.notify_one();
        }
        if news.more {
            self.every_node();
        }
        self.nodes_here(news.nodes);
        self.commands_here(news.commands);
        self.ended_here(news.ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_that_have_no_room_say_that_there_are_more() {
        let some = News { planner: true, nodes: (0..10).collect(), ..News::default() };
        let read: News = serde_json::from_str(&some.clone().text("me/1")).unwrap();
        assert_eq!(read, News { from: "me/1".into(), ..some });

        let many = News { nodes: (0..100_000).collect(), ..News::default() };
        let text = many.text("me/1");
        assert!(text.len() <= TEXT_BYTES_MAX);
        let read: News = serde_json::from_str(&text).unwrap();
        assert!(read.more && read.nodes.is_empty());
    }
}
