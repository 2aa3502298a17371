//! A controller that only knows the protocol: it remembers what it wants of one node and what the node said.

use futures_util::{SinkExt, StreamExt};
use proto::session::{
    Assignment, Command, CommandAct, ControllerMessage, Ended, Event, Hello, Limit, NodeMessage, Stop, Target,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::Message;

/// What it wants and what it has heard.
#[derive(Default)]
pub struct Book {
    pub hellos: Vec<Hello>,
    pub wanted: BTreeMap<i64, Assignment>,
    pub stops: BTreeMap<i64, Stop>,
    pub started: BTreeMap<i64, [String; 3]>,
    pub started_times: HashMap<i64, u32>,
    pub completing: BTreeSet<i64>,
    pub ended: BTreeMap<i64, Vec<Ended>>,
    pub answers: HashMap<i64, Option<String>>,
    pub observed: u64,
    /// Reports are recorded but not acknowledged.
    pub deaf: bool,
    /// Sessions are refused with this.
    pub refuse: Option<String>,
    generation: u64,
    session: Option<mpsc::UnboundedSender<ControllerMessage>>,
}

impl Book {
    /// Closes the session that is open.
    pub fn end_session(&mut self) {
        self.session = None;
    }
}

#[derive(Clone)]
pub struct FakeCtld {
    book: Arc<Mutex<Book>>,
    changed: watch::Sender<u64>,
}

impl FakeCtld {
    pub fn start(socket: &Path) -> FakeCtld {
        let listener = UnixListener::bind(socket).unwrap();
        let ctld = FakeCtld { book: Arc::default(), changed: watch::channel(0).0 };
        let serving = ctld.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // A session that breaks is a noded that was killed.
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        ctld
    }

    pub fn book<T>(&self, look: impl FnOnce(&mut Book) -> T) -> T {
        look(&mut self.book.lock().unwrap())
    }

    fn touch(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    async fn serve(self, stream: UnixStream) -> Option<()> {
        let mut stream = tokio_tungstenite::accept_async(stream).await.ok()?;
        let Message::Text(text) = stream.next().await?.ok()? else { return None };
        let NodeMessage::Hello(hello) = serde_json::from_str(text.as_str()).unwrap() else {
            panic!("no hello")
        };
        if let Some(message) = self.book(|b| b.refuse.clone()) {
            self.book(|b| b.hellos.push(hello));
            self.touch();
            stream.send(frame(&ControllerMessage::Refused { message })).await.ok()?;
            return None;
        }
        let (sender, mut queue) = mpsc::unbounded_channel();
        let (welcome, target) = self.book(|b| {
            b.hellos.push(hello);
            b.session = Some(sender);
            b.generation = 1;
            let live = |id: &&i64| !b.ended.contains_key(id);
            let target = Target {
                generation: 1,
                full: true,
                more: false,
                run: b
                    .wanted
                    .values()
                    .filter(|a| live(&&a.allocation_id) && !b.started.contains_key(&a.allocation_id))
                    .cloned()
                    .collect(),
                keep: b.started.keys().filter(live).copied().collect(),
                stop: b.stops.values().filter(|s| live(&&s.allocation_id)).cloned().collect(),
                limits: b
                    .wanted
                    .values()
                    .map(|a| Limit { allocation_id: a.allocation_id, time_limit_s: a.time_limit_s })
                    .filter(|l| live(&&l.allocation_id) && b.started.contains_key(&l.allocation_id))
                    .collect(),
            };
            (ControllerMessage::Welcome { node_id: 1, session_epoch: b.hellos.len() as i64 }, target)
        });
        stream.send(frame(&welcome)).await.ok()?;
        stream.send(frame(&ControllerMessage::Target(target))).await.ok()?;
        self.touch();
        loop {
            tokio::select! {
                message = stream.next() => {
                    let Message::Text(text) = message?.ok()? else { continue };
                    let answer = self.take(serde_json::from_str(text.as_str()).unwrap());
                    self.touch();
                    if let Some(answer) = answer {
                        stream.send(frame(&answer)).await.ok()?;
                    }
                }
                message = queue.recv() => stream.send(frame(&message?)).await.ok()?,
            }
        }
    }

    fn take(&self, message: NodeMessage) -> Option<ControllerMessage> {
        self.book(|b| match message {
            NodeMessage::Report(report) => {
                for event in report.events {
                    let id = event.allocation_id;
                    match event.event {
                        Event::Started { paths, .. } => {
                            b.started.insert(id, paths);
                            *b.started_times.entry(id).or_default() += 1;
                        }
                        Event::Completing => {
                            b.completing.insert(id);
                        }
                        Event::Ended(ended) => b.ended.entry(id).or_default().push(ended),
                    }
                }
                b.observed = report.observed_generation;
                (!b.deaf).then_some(ControllerMessage::Ack { seq: report.seq })
            }
            NodeMessage::CommandResult { id, error } => {
                b.answers.insert(id, error);
                None
            }
            NodeMessage::Heartbeat { observed_generation } => {
                b.observed = observed_generation;
                None
            }
            NodeMessage::Hello(_) => panic!("a second hello"),
        })
    }

    fn push(&self, change: impl FnOnce(&mut Book) -> Target) {
        self.book(|b| {
            let mut target = change(b);
            b.generation += 1;
            target.generation = b.generation;
            if let Some(session) = &b.session {
                // Without a session the next one begins with the whole target.
                let _ = session.send(ControllerMessage::Target(target));
            }
        });
    }

    /// Wants these to run.
    pub fn run(&self, assignments: Vec<Assignment>) {
        self.push(|b| {
            b.wanted.extend(assignments.iter().map(|a| (a.allocation_id, a.clone())));
            Target { run: assignments, ..Target::default() }
        });
    }

    /// Wants this one to end.
    pub fn stop(&self, id: i64, grace_s: u32) {
        let stop = Stop { allocation_id: id, grace_s, banner: "CANCELLED by alice".to_owned() };
        self.push(|b| {
            b.stops.insert(id, stop.clone());
            Target { stop: vec![stop], ..Target::default() }
        });
    }

    /// Wants this one to run for so long, and says it as often.
    pub fn limit(&self, id: i64, time_limit_s: Option<u64>, times: u32) {
        for _ in 0..times {
            self.push(|b| {
                b.wanted.get_mut(&id).expect("one that is wanted").time_limit_s = time_limit_s;
                let limits = vec![Limit { allocation_id: id, time_limit_s }];
                Target { limits, ..Target::default() }
            });
        }
    }

    /// Sends a command and waits for its answer.
    pub async fn signal(
        &self,
        command: i64,
        key: &str,
        allocation_id: i64,
        signal: i32,
        script_only: bool,
    ) -> Option<String> {
        let act = CommandAct::Signal { allocation_id, signal, script_only };
        let idempotency_key = key.to_owned();
        self.send(Command { id: command, idempotency_key, min_generation: 0, retry_safe: false, act });
        self.answer(command).await
    }

    /// The last generation of the target that was sent.
    pub fn generation(&self) -> u64 {
        self.book(|b| b.generation)
    }

    /// Sends a command.
    pub fn send(&self, command: Command) {
        self.book(|b| {
            b.answers.remove(&command.id);
            b.session.as_ref().expect("a session").send(ControllerMessage::Command(command)).unwrap();
        });
    }

    /// Waits for the answer to a command.
    pub async fn answer(&self, command: i64) -> Option<String> {
        self.until("the command is answered", |b| b.answers.get(&command).cloned()).await
    }

    /// Waits until `look` finds something.
    pub async fn until<T>(&self, what: &str, look: impl Fn(&mut Book) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        let wait = async {
            loop {
                if let Some(found) = self.book(|b| look(b)) {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(super::site::patience(), wait).await {
            Ok(found) => found,
            Err(_) => panic!("waited in vain until {what}"),
        }
    }

    pub async fn started(&self, id: i64) -> [String; 3] {
        self.until(&format!("{id} starts"), |b| {
            assert!(
                !b.ended.contains_key(&id) || b.started.contains_key(&id),
                "{id} ended: {:?}",
                b.ended[&id]
            );
            b.started.get(&id).cloned()
        })
        .await
    }

    pub async fn ended(&self, id: i64) -> Ended {
        self.until(&format!("{id} ends"), |b| b.ended.get(&id).map(|all| all[0].clone())).await
    }
}

fn frame(message: &ControllerMessage) -> Message {
    Message::text(serde_json::to_string(message).unwrap())
}
