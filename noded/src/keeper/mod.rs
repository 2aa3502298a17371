//! The state of every allocation on this node, and the one place that changes it.
//!
//! One task takes what happens from everywhere (the session, the journal, the launcher, shepherds, the user database) as [`Input`], in order, as
//! much as is there at once, and then sends one report. It never waits for anything but that, so a slow disk, name service or controller delays only
//! what needs it. The target converges by the same path however it came: an assignment is accepted (journal), its user is looked up, it is
//! launched, its shepherd is watched, its end is journalled, reported, and forgotten when the controller has recorded it.
//!
//! `target` is what the controller wants, `attempts` how an allocation moves from stage to stage, `outbox` what is to be
//! reported, `clear` ends what has no shepherd.

mod attempts;
mod clear;
mod outbox;
mod target;

use crate::attempt::{Spares, StateDir};
use crate::cgroup::Layout;
use crate::config::Config;
use crate::identity::{Asked, Identity};
use crate::journal::{Memory, RECENT_MAX, Writer, Written};
use crate::launcher::{Launcher, LauncherEvent};
use crate::session::SessionEvent;
use crate::spec::LauncherSetup;
use outbox::Outbox;
use proto::api::Usage;
use proto::session::{Assignment, HEARTBEAT_S, Limit, NodeMessage, Stop};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// The most inputs taken before a report is sent.
const INPUTS_MAX: usize = 1024;
/// How long facts wait for company while a report is on its way; its acknowledgement sends them at once.
const GATHER: Duration = Duration::from_millis(20);
/// How long an answer of the user database is believed, and a refusal by it.
const IDENTITY_LIFE: Duration = Duration::from_secs(10);
const REFUSAL_LIFE: Duration = Duration::from_secs(1);

/// Everything that can happen to a node.
#[derive(Debug)]
pub enum Input {
    /// From the controller.
    Session(SessionEvent),
    /// The journal has written.
    Written(Written),
    /// From the launcher.
    Launcher(LauncherEvent),
    /// The user database has answered.
    Identity(Asked, Result<Identity, String>),
    /// An attempt's record has grown.
    Grown(i64),
    /// A shepherd's process has ended.
    ShepherdGone(i64),
    /// An allocation without a shepherd has been ended.
    Cleared(i64, Usage),
    /// Time to look at an attempt again whose shepherd had not said who it is, or could not be given its orders.
    LookAgain(i64),
    /// Time to start the launcher again.
    StartLauncher,
}

/// Where an allocation stands.
#[derive(Debug)]
enum Stage {
    /// Its acceptance is being written.
    Accepting,
    /// Its user is being looked up.
    Resolving,
    /// The launcher has it, or will when there is one.
    Launching,
    /// A shepherd has it that has not said who it is.
    Anonymous,
    /// This process is its shepherd.
    Shepherded(Arc<AsyncFd<OwnedFd>>),
    /// It holds its share; the script runs on another node.
    Member,
    /// Its shepherd is dead, what is left is being ended.
    Clearing,
    /// It is over, and the controller has not recorded it yet.
    Ended {
        /// Whether its acceptance is in the journal.
        journalled: bool,
    },
}

/// One allocation.
#[derive(Debug)]
struct Held {
    /// What was assigned; script and environment are dropped once it runs.
    assignment: Assignment,
    /// The boot in which it was accepted.
    boot_id: String,
    stage: Stage,
    stop: Option<Stop>,
    stop_delivered: bool,
    /// What the controller said since noded started, if it did: the orders may hold another one from before.
    limit: Option<Limit>,
    limit_delivered: bool,
    started_us: Option<u64>,
    completing: bool,
}

impl Held {
    fn new(assignment: Assignment, boot_id: String, stage: Stage) -> Held {
        Held {
            assignment,
            boot_id,
            stage,
            stop: None,
            stop_delivered: false,
            limit: None,
            limit_delivered: false,
            started_us: None,
            completing: false,
        }
    }

    fn over(&self) -> bool {
        matches!(self.stage, Stage::Ended { .. })
    }

    /// The job for people: `12`, `12_3`.
    fn job(&self) -> String {
        match self.assignment.task {
            Some(task) => format!("{}_{task}", self.assignment.job_id),
            None => self.assignment.job_id.to_string(),
        }
    }
}

/// What the keeper works with.
pub struct Tools {
    /// The configuration.
    pub config: Arc<Config>,
    /// The launcher's setup: state directory, control groups, boot.
    pub setup: Arc<LauncherSetup>,
    /// The journal.
    pub journal: Writer,
    /// The launcher.
    pub launcher: Launcher,
    /// Empty records.
    pub spares: Spares,
    /// The shepherds' FIFO, for the next launcher.
    pub events: File,
    /// Where inputs go.
    pub inputs: UnboundedSender<Input>,
}

/// A full target that is coming in parts.
#[derive(Debug, Default)]
struct Wanted {
    ids: HashSet<i64>,
    keep: Vec<i64>,
}

/// The keeper.
pub struct Keeper {
    config: Arc<Config>,
    setup: Arc<LauncherSetup>,
    layout: Arc<Layout>,
    state_dir: StateDir,
    journal: Writer,
    launcher: Option<Launcher>,
    spares: Spares,
    events: File,
    inputs: UnboundedSender<Input>,
    session: Option<UnboundedSender<NodeMessage>>,
    held: HashMap<i64, Held>,
    outbox: Outbox,
    recent: VecDeque<i64>,
    recent_set: HashSet<i64>,
    commands: HashMap<String, Option<Option<String>>>,
    commands_order: VecDeque<String>,
    /// Seen and about to be carried out, with the id to answer under: none if its session has closed.
    commands_waiting: HashMap<String, (Option<i64>, proto::session::CommandAct)>,
    /// For a generation of the target that is not applied yet.
    commands_early: Vec<proto::session::Command>,
    identities: HashMap<Asked, (Instant, Result<Identity, String>)>,
    identities_waiting: HashMap<Asked, BTreeSet<i64>>,
    /// Found at the start and in no journal: being ended, and not to be launched.
    strangers: HashSet<i64>,
    wanted: Option<Wanted>,
    observed_generation: u64,
}

impl Keeper {
    /// A keeper that knows what the journal remembers, and has looked at every attempt in it.
    pub fn recover(tools: Tools, memory: Memory) -> Keeper {
        let Tools { config, setup, journal, launcher, spares, events, inputs } = tools;
        let mut keeper = Keeper {
            config,
            layout: Arc::new(setup.layout.clone()),
            state_dir: setup.state_dir.clone(),
            setup,
            journal,
            launcher: Some(launcher),
            spares,
            events,
            inputs,
            session: None,
            held: HashMap::new(),
            outbox: Outbox::default(),
            recent_set: memory.recent.iter().copied().collect(),
            recent: memory.recent,
            commands_order: memory.commands.iter().map(|(key, _)| key.clone()).collect(),
            commands: memory.commands.into_iter().collect(),
            commands_waiting: HashMap::new(),
            commands_early: Vec::new(),
            identities: HashMap::new(),
            identities_waiting: HashMap::new(),
            strangers: HashSet::new(),
            wanted: None,
            observed_generation: 0,
        };
        keeper.readopt(memory.accepted, memory.ended);
        keeper.sweep();
        keeper
    }

    /// Works until `inputs` closes or the future is dropped.
    pub async fn run(mut self, mut inputs: UnboundedReceiver<Input>) {
        let mut heartbeat = tokio::time::interval(Duration::from_secs(HEARTBEAT_S));
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut batch = Vec::with_capacity(INPUTS_MAX);
        let mut gathering: Option<tokio::time::Instant> = None;
        loop {
            tokio::select! {
                taken = inputs.recv_many(&mut batch, INPUTS_MAX) => {
                    if taken == 0 {
                        return;
                    }
                    for input in batch.drain(..) {
                        self.take(input).await;
                    }
                    let now = tokio::time::Instant::now();
                    let due = gathering.is_some_and(|at| at <= now) || !self.outbox.better_to_wait();
                    if self.outbox.ready() && !due {
                        gathering.get_or_insert(now + GATHER);
                    } else {
                        gathering = None;
                        self.report();
                    }
                }
                () = tokio::time::sleep_until(gathering.unwrap_or_else(tokio::time::Instant::now)), if gathering.is_some() => {
                    gathering = None;
                    self.report();
                }
                _ = heartbeat.tick() => {
                    let observed_generation = self.observed_generation;
                    self.say(NodeMessage::Heartbeat { observed_generation });
                }
            }
        }
    }

    async fn take(&mut self, input: Input) {
        match input {
            Input::Session(event) => self.take_session(event),
            Input::Written(written) => self.take_written(written),
            Input::Launcher(event) => self.take_launcher(event).await,
            Input::Identity(asked, answer) => self.take_identity(asked, answer),
            Input::Grown(id) => self.look(id, false),
            Input::ShepherdGone(id) => self.look(id, true),
            Input::Cleared(id, usage) => self.take_cleared(id, usage),
            Input::LookAgain(id) => self.look_again(id),
            Input::StartLauncher => self.start_launcher().await,
        }
    }

    fn report(&mut self) {
        if self.session.is_none() {
            return;
        }
        while let Some(report) = self.outbox.next(self.observed_generation) {
            self.say(NodeMessage::Report(report));
        }
    }

    fn say(&self, message: NodeMessage) {
        if let Some(session) = &self.session {
            // A session that has just closed says so by an input of its own.
            let _ = session.send(message);
        }
    }

    fn remember_recent(&mut self, id: i64) {
        self.recent.push_back(id);
        self.recent_set.insert(id);
        while self.recent.len() > RECENT_MAX
            && let Some(old) = self.recent.pop_front()
        {
            self.recent_set.remove(&old);
        }
    }

    fn later(&self, after: Duration, input: Input) {
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _ = inputs.send(input);
        });
    }
}
