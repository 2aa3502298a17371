//! Node sessions: one WebSocket a node, its messages in `proto::session`.
//!
//! A session tells its node what should be so (reading the truth from the store whenever it is woken, and now and then by
//! itself) and passes the node's reports to the facts gatherer, acknowledging each after its commit. It decides nothing and
//! remembers only what it has sent. When it ends, nothing is released.

mod reports;

use crate::app::App;
use crate::gather::SeenLine;
use crate::store::commands::{self, Due};
use crate::store::leases::Under;
use crate::store::node::{Session, Terms, Told, close_session, open_session, target};
use crate::store::node_certificates::{holder, not_good};
use crate::store::{StoreError, facts::Fact};
use crate::wake::SessionLine;
use axum::extract::ws::{Message, WebSocket};
use ctld_core::liveness::Absence;
use proto::ApiError;
use proto::session::{
    Command, ControllerMessage, Event, FRAME_BYTES_MAX, Hello, NodeMessage, PROTOCOL, Target,
};
use reports::InFlight;
use std::time::Duration;

/// How long a node may take to say who it is.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// A node that says nothing for so long has no session: six heartbeats.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// How often a session pings its node, and looks at the target by itself.
const TICK: Duration = Duration::from_secs(5);

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the node closed it")]
    Closed,
    #[error("the controller is stopping")]
    Stopping,
    #[error("the controller has no lease for its sessions now")]
    NoLease,
    #[error("another session owns the node")]
    Superseded,
    #[error("the node was silent for {SILENT_MAX:?}")]
    Silent,
    #[error("refused: {0}")]
    Refused(String),
    #[error("the connection failed")]
    Socket(#[from] axum::Error),
    #[error("the node sent what cannot be read: {0}")]
    Message(String),
    #[error("the store failed")]
    Store(#[from] StoreError),
}

/// The node that a certificate names, on a connection of another machine.
#[derive(Clone, Debug)]
pub struct Certified {
    /// The certificate's serial number.
    pub serial: String,
    /// The node.
    pub node: String,
}

/// Serves one node until its session ends. On this machine's socket, where the daemon is known by its user, there is no certificate.
pub async fn serve(app: App, mut socket: WebSocket, certified: Option<Certified>) {
    let (session, node) = match open(&app, &mut socket, certified.as_ref()).await {
        Ok(opened) => opened,
        Err(Ended::Refused(message)) => {
            tracing::warn!(reason = %message, "a node session is refused");
            let _ = send(&mut socket, &ControllerMessage::Refused { message }).await;
            return;
        }
        Err(error) => {
            tracing::info!(error = &error as &dyn std::error::Error, "a node session did not open");
            return;
        }
    };
    tracing::info!(node.name = %node, session.epoch = session.epoch, "node connected");
    app.metrics.session_opened();
    let line = app.wakes.session_of(session.node_id);
    // Capacity has come: a node that can be placed on.
    app.wakes.planner();
    let mut open = Open::new(&app, session, line, app.seen.session(session));
    let ended = open.run(&mut socket).await;
    app.wakes.session_over(session.node_id, &open.line);
    app.metrics.session_closed();
    let absence = match ended {
        Ended::Stopping => Absence::GatewayLost,
        _ => Absence::SessionClosed,
    };
    if let Err(error) = close_session(&app.db, session, absence).await {
        tracing::warn!(node.name = %node, error = &error as &dyn std::error::Error, "the session's end is not recorded");
    }
    app.wakes.events();
    tracing::info!(node.name = %node, session.epoch = session.epoch, reason = %ended, "node disconnected");
}

async fn open(
    app: &App,
    socket: &mut WebSocket,
    certified: Option<&Certified>,
) -> Result<(Session, String), Ended> {
    let first = tokio::time::timeout(HELLO_WITHIN, socket.recv()).await.map_err(|_| Ended::Silent)?;
    let Some(message) = first else { return Err(Ended::Closed) };
    let hello = match read(&message?)? {
        Some(NodeMessage::Hello(hello)) => hello,
        _ => return Err(Ended::Message("the first message is not a hello".to_owned())),
    };
    check(&hello).map_err(Ended::Refused)?;
    if let Some(certified) = certified.filter(|certified| certified.node != hello.node) {
        return Err(Ended::Refused(format!(
            "the certificate is node \"{}\"'s, and the daemon says that it is \"{}\": set `node` in noded.toml, or join again",
            certified.node, hello.node
        )));
    }
    let lease = app.leases.held(&app.leases.owner().gateway()).ok_or(Ended::NoLease)?;
    let opened = open_session(&Under { db: &app.db, lease: &lease }, &hello).await;
    let session = app.leases.heed(&lease, opened).map_err(|error| match error {
        StoreError::Api(ApiError { message, .. }) => Ended::Refused(message),
        error => Ended::Store(error),
    })?;
    // A revocation raises the node's epoch: one that came before the session's opening is seen here, a later one fences it.
    if let Some(certified) = certified
        && holder(&app.db, &certified.serial).await?.is_none_or(|holder| holder.revoked)
    {
        return Err(Ended::Refused(not_good().message));
    }
    let welcome = ControllerMessage::Welcome { node_id: session.node_id, session_epoch: session.epoch };
    send(socket, &welcome).await?;
    Ok((session, hello.node))
}

fn check(hello: &Hello) -> Result<(), String> {
    if hello.protocol != PROTOCOL {
        return Err(format!(
            "node \"{}\" speaks protocol {}, this controller {PROTOCOL}: install the same version on both",
            hello.node, hello.protocol
        ));
    }
    let name_ok = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let first_ok = hello.node.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !first_ok || hello.node.len() > 254 || !hello.node.chars().all(name_ok) {
        return Err(format!(
            "{:?} is not a node name: letters, digits, \".\", \"_\" and \"-\" accepted",
            hello.node
        ));
    }
    Ok(())
}

/// A session that is open.
struct Open<'a> {
    app: &'a App,
    session: Session,
    line: SessionLine,
    told: Told,
    generation: u64,
    seen: SeenLine,
    in_flight: InFlight,
}

impl<'a> Open<'a> {
    fn new(app: &'a App, session: Session, line: SessionLine, seen: SeenLine) -> Open<'a> {
        Open {
            app,
            session,
            line,
            told: Told::default(),
            generation: session.epoch.unsigned_abs() << 32,
            seen,
            in_flight: InFlight::default(),
        }
    }

    async fn run(&mut self, socket: &mut WebSocket) -> Ended {
        if let Err(ended) = self.send_target(socket, true).await {
            return ended;
        }
        // Whatever an earlier session left unanswered.
        if let Err(ended) = self.send_commands(socket).await {
            return ended;
        }
        let mut tick = tokio::time::interval(TICK);
        loop {
            let step = tokio::select! {
                () = self.app.stopping.cancelled() => Err(Ended::Stopping),
                message = socket.recv() => match message {
                    Some(Ok(message)) => self.hear(message).await,
                    Some(Err(error)) => Err(Ended::Socket(error)),
                    None => Err(Ended::Closed),
                },
                () = self.line.target_changed.notified() => self.send_target(socket, false).await,
                () = self.line.commands.notified() => self.send_commands(socket).await,
                () = self.line.taken_over.cancelled() => Err(Ended::Superseded),
                acked = self.in_flight.next() => match acked {
                    Ok(seq) => send(socket, &ControllerMessage::Ack { seq }).await,
                    Err(reports::Superseded) => Err(Ended::Superseded),
                },
                () = self.seen.superseded() => Err(Ended::Superseded),
                _ = tick.tick() => self.tick(socket).await,
            };
            if let Err(ended) = step {
                return ended;
            }
        }
    }

    async fn hear(&mut self, message: Message) -> Result<(), Ended> {
        self.seen.heard();
        match read(&message)? {
            None => Ok(()),
            Some(NodeMessage::Hello(_)) => Err(Ended::Message("a second hello".to_owned())),
            Some(NodeMessage::Heartbeat { observed_generation }) => {
                self.seen.observed(observed_generation);
                Ok(())
            }
            Some(NodeMessage::CommandResult { id, error }) => {
                if let Some(error) = &error {
                    tracing::info!(command.id = id, reason = %error, "a command failed on its node");
                }
                // Where that fails the session ends, and the next one sends it again: the node answers from its journal.
                commands::answered(&self.app.db, self.session, id, error.as_deref()).await?;
                Ok(())
            }
            Some(NodeMessage::Report(report)) => {
                self.seen.observed(report.observed_generation);
                let facts = report
                    .events
                    .into_iter()
                    .inspect(|e| self.app.metrics.report(event_name(&e.event)))
                    .map(|e| Fact {
                        node_id: self.session.node_id,
                        session_epoch: self.session.epoch,
                        allocation_id: e.allocation_id,
                        event: e.event,
                    })
                    .collect();
                let answer = self.app.facts.report(facts).await.ok_or(Ended::Stopping)?;
                self.in_flight.push(report.seq, answer);
                Ok(())
            }
        }
    }

    async fn tick(&mut self, socket: &mut WebSocket) -> Result<(), Ended> {
        if self.seen.silent_for() > SILENT_MAX {
            return Err(Ended::Silent);
        }
        socket.send(Message::Ping(Default::default())).await?;
        self.send_target(socket, false).await?;
        self.send_commands(socket).await
    }

    /// Sends what the node has not been told, in parts that fit a frame.
    async fn send_target(&mut self, socket: &mut WebSocket, first: bool) -> Result<(), Ended> {
        let config = &self.app.config;
        let grace_s = config.grace_s();
        let terms = Terms { cluster: &config.cluster, grace_s };
        let target = match target(&self.app.db, self.session, &mut self.told, first, terms).await {
            Ok(Some(target)) => target,
            Ok(None) => return Ok(()),
            // Without the first target there is no session; later ones are tried again with the next tick.
            Err(error) if error.transient() && !first => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for part in parts(target) {
            self.generation += 1;
            send(socket, &ControllerMessage::Target(Target { generation: self.generation, ..part })).await?;
        }
        Ok(())
    }

    /// Sends the commands that wait for the node, each once the node has applied what it has been told so far.
    async fn send_commands(&mut self, socket: &mut WebSocket) -> Result<(), Ended> {
        loop {
            let due = match commands::due(&self.app.db, self.session).await {
                Ok(Some(due)) => due,
                Ok(None) => return Err(Ended::Superseded),
                // They are looked for again with the next tick.
                Err(error) if error.transient() => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if due.is_empty() {
                return Ok(());
            }
            for Due { id, idempotency_key, act, retry_safe } in due {
                let command =
                    Command { id, idempotency_key, min_generation: self.generation, retry_safe, act };
                send(socket, &ControllerMessage::Command(command)).await?;
            }
        }
    }
}

/// Splits a target whose assignments would not fit one frame.
fn parts(mut target: Target) -> Vec<Target> {
    let budget = FRAME_BYTES_MAX / 2;
    let mut parts = Vec::new();
    let mut part = Target {
        full: target.full,
        keep: std::mem::take(&mut target.keep),
        stop: target.stop,
        limits: target.limits,
        ..Target::default()
    };
    let mut bytes = 0;
    for assignment in target.run {
        // JSON escapes at most six bytes for one, but scripts and environments hardly need any.
        let size = 2
            * (assignment.script.len()
                + assignment.env.iter().map(|(k, v)| k.len() + v.len() + 8).sum::<usize>())
            + 1024;
        if bytes + size > budget && !part.run.is_empty() {
            let full = part.full;
            parts.push(Target { more: true, ..std::mem::take(&mut part) });
            part.full = full;
            bytes = 0;
        }
        bytes += size;
        part.run.push(assignment);
    }
    parts.push(part);
    parts
}

fn event_name(event: &Event) -> &'static str {
    match event {
        Event::Started { .. } => "started",
        Event::Completing => "completing",
        Event::Ended(_) => "ended",
    }
}

fn read(message: &Message) -> Result<Option<NodeMessage>, Ended> {
    match message {
        Message::Text(text) => {
            serde_json::from_str(text).map(Some).map_err(|e| Ended::Message(e.to_string()))
        }
        Message::Ping(_) | Message::Pong(_) => Ok(None),
        Message::Close(_) => Err(Ended::Closed),
        Message::Binary(_) => Err(Ended::Message("a binary frame".to_owned())),
    }
}

async fn send(socket: &mut WebSocket, message: &ControllerMessage) -> Result<(), Ended> {
    let text = serde_json::to_string(message).map_err(|e| Ended::Message(e.to_string()))?;
    socket.send(Message::Text(text.into())).await?;
    Ok(())
}
