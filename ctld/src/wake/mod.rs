//! Who wakes whom, inside a controller and among several. A wake only shortens a wait: everything that is woken also looks by
//! itself.

mod relay;

pub use relay::{listen, relay};

use crate::store::act::Acted;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

/// How many ended jobs a slow waiter may lag behind before it has to look for itself.
const ENDED_QUEUE: usize = 4096;

/// The wakes of one controller.
pub struct Wakes {
    planner: Notify,
    reservations: Notify,
    holds: Notify,
    modes: Notify,
    events: Notify,
    lines: Mutex<HashMap<i64, SessionLine>>,
    ended: broadcast::Sender<i64>,
    outgoing: relay::Outgoing,
}

/// What a node's session is told.
#[derive(Clone)]
pub struct SessionLine {
    /// Notified when the node's target may have changed.
    pub target_changed: Arc<Notify>,
    /// Notified when there are commands for the node.
    pub commands: Arc<Notify>,
    /// Cancelled when a later session has taken the line over.
    pub taken_over: CancellationToken,
}

impl Default for Wakes {
    fn default() -> Wakes {
        Wakes {
            planner: Notify::new(),
            reservations: Notify::new(),
            holds: Notify::new(),
            modes: Notify::new(),
            events: Notify::new(),
            lines: Mutex::default(),
            ended: broadcast::channel(ENDED_QUEUE).0,
            outgoing: relay::Outgoing::default(),
        }
    }
}

impl Wakes {
    /// There may be something to place: a submission, or capacity that came free.
    pub fn planner(&self) {
        self.planner.notify_one();
        self.events.notify_one();
        self.outgoing.add(|news| news.planner = true);
    }

    /// Returns when somebody called [`Wakes::planner`] since the last return.
    pub async fn planner_woken(&self) {
        self.planner.notified().await;
    }

    /// A change of a GPU's mode was booked: the next beginning may be another.
    pub fn modes(&self) {
        self.modes.notify_one();
        self.events.notify_one();
        self.outgoing.add(|news| news.modes = true);
    }

    /// Returns when somebody called [`Wakes::modes`] since the last return.
    pub async fn modes_woken(&self) {
        self.modes.notified().await;
    }

    /// A reservation was made or changed: the next beginning or end may be another.
    pub fn reservations(&self) {
        self.reservations.notify_one();
        self.events.notify_one();
        self.outgoing.add(|news| news.reservations = true);
    }

    /// Returns when somebody called [`Wakes::reservations`] since the last return.
    pub async fn reservations_woken(&self) {
        self.reservations.notified().await;
    }

    /// A hold was put or lifted: the next beginning or end may be another.
    pub fn holds(&self) {
        self.holds.notify_one();
        self.events.notify_one();
        self.outgoing.add(|news| news.holds = true);
    }

    /// Returns when somebody called [`Wakes::holds`] since the last return.
    pub async fn holds_woken(&self) {
        self.holds.notified().await;
    }

    /// Something was committed that is told as an event. Whatever else wakes somebody says this too.
    pub fn events(&self) {
        self.events.notify_one();
        self.outgoing.add(|news| news.events = true);
    }

    /// Returns when there may be events that were not there at the last return.
    pub async fn events_woken(&self) {
        self.events.notified().await;
    }

    /// Everything here looks: what another controller did, or did not do, is this one's to go on with.
    pub fn everybody(&self) {
        for one in [&self.planner, &self.reservations, &self.holds, &self.modes, &self.events] {
            one.notify_one();
        }
        self.every_node();
    }

    /// The targets of these nodes changed.
    pub fn nodes(&self, ids: impl IntoIterator<Item = i64>) {
        let elsewhere = self.nodes_here(ids);
        if !elsewhere.is_empty() {
            self.outgoing.add(|news| news.nodes.extend(elsewhere));
        }
    }

    /// Wakes the sessions of these nodes; those that have none here.
    fn nodes_here(&self, ids: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut elsewhere = Vec::new();
        for id in ids {
            match lines.get(&id) {
                Some(line) => line.target_changed.notify_one(),
                None => elsewhere.push(id),
            }
        }
        elsewhere
    }

    fn every_node(&self) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines.values() {
            line.target_changed.notify_one();
            line.commands.notify_one();
        }
    }

    /// A session has ended: its node's line goes with it, unless a later session has taken it over.
    pub fn session_over(&self, node_id: i64, line: &SessionLine) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.get(&node_id).is_some_and(|at| Arc::ptr_eq(&at.target_changed, &line.target_changed)) {
            lines.remove(&node_id);
        }
    }

    /// The line of a node's new session, which takes the place of an earlier one.
    pub fn session_of(&self, node_id: i64) -> SessionLine {
        let line = SessionLine {
            target_changed: Arc::default(),
            commands: Arc::default(),
            taken_over: CancellationToken::new(),
        };
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(earlier) = lines.insert(node_id, line.clone()) {
            earlier.taken_over.cancel();
        }
        line
    }

    /// Wakes whoever an act concerns.
    pub fn announce(&self, acted: &Acted) {
        self.events();
        if acted.queue_changed {
            self.planner();
        }
        self.nodes(acted.nodes.iter().copied());
        self.ended(acted.ended.iter().copied());
        self.commands(acted.commanded.iter().copied());
    }

    /// There are commands for these nodes.
    pub fn commands(&self, ids: impl IntoIterator<Item = i64>) {
        let elsewhere = self.commands_here(ids);
        if !elsewhere.is_empty() {
            self.outgoing.add(|news| news.commands.extend(elsewhere));
        }
    }

    /// Tells the sessions of these nodes; those that have none here.
    fn commands_here(&self, ids: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut elsewhere = Vec::new();
        for id in ids {
            match lines.get(&id) {
                Some(line) => line.commands.notify_one(),
                None => elsewhere.push(id),
            }
        }
        elsewhere
    }

    /// These jobs, or tasks of them, ended.
    pub fn ended(&self, job_ids: impl IntoIterator<Item = i64>) {
        let ids: Vec<i64> = job_ids.into_iter().collect();
        if !ids.is_empty() {
            self.events.notify_one();
            self.outgoing.add(|news| news.ended.extend(&ids));
        }
        self.ended_here(ids);
    }

    fn ended_here(&self, job_ids: impl IntoIterator<Item = i64>) {
        for id in job_ids {
            // No receiver is not an error: nobody waits.
            let _ = self.ended.send(id);
        }
    }

    /// The ids of jobs that end from now on. Subscribe, look, then listen; after lagging, look again.
    pub fn watch_ended(&self) -> broadcast::Receiver<i64> {
        self.ended.subscribe()
    }
}
