//! What the controller's parts share, and who is asking.

use crate::clock::Clock;
use crate::config::Config;
use crate::embedded::Embedded;
use crate::events::Events;
use crate::gather::{Facts, Positions, Seen, Submissions};
use crate::leases::Leases;
use crate::membership::Membership;
use crate::metrics::Metrics;
use crate::store::leases::Owner;
use crate::wake::Wakes;
use sqlx::PgPool;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The controller's parts, shared by API handlers, reconcilers and node sessions.
#[derive(Clone)]
pub struct App {
    /// Connections to the database.
    pub db: PgPool,
    /// The configuration it was started with.
    pub config: Arc<Config>,
    /// The private PostgreSQL, where ctld runs one.
    pub embedded: Option<Arc<Embedded>>,
    /// The one clock.
    pub clock: Arc<Clock>,
    /// What this controller may do alone.
    pub leases: Arc<Leases>,
    /// Where submissions are gathered and committed in batches.
    pub submissions: Submissions,
    /// Where nodes' reports are gathered and recorded in batches.
    pub facts: Facts,
    /// Where sessions note when their nodes spoke.
    pub seen: Seen,
    /// Who is in which tenant.
    pub membership: Arc<Membership>,
    /// Where answers learn which commits they show.
    pub positions: Positions,
    /// Who wakes whom.
    pub wakes: Arc<Wakes>,
    /// What is told to those who listen.
    pub events: Arc<Events>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the controller stops.
    pub stopping: CancellationToken,
}

impl App {
    /// Starts the gatherers over a database that is migrated. Must be called in a tokio runtime.
    pub fn start(db: PgPool, config: Config, embedded: Option<Arc<Embedded>>, owner: Owner) -> App {
        let wakes = Arc::new(Wakes::default());
        let metrics = Arc::new(Metrics::default());
        App {
            submissions: Submissions::start(db.clone(), wakes.clone(), metrics.clone()),
            facts: Facts::start(db.clone(), wakes.clone(), metrics.clone()),
            positions: Positions::start(db.clone()),
            seen: Seen::start(db.clone(), &owner.controller),
            db,
            config: Arc::new(config),
            embedded,
            clock: Arc::default(),
            leases: Arc::new(Leases::new(owner, metrics.clone())),
            membership: Arc::default(),
            events: Arc::default(),
            wakes,
            metrics,
            stopping: CancellationToken::new(),
        }
    }
}

/// Who is asking: from the credentials of the connection, never from anything a request says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// User name on the controller's machine, or the number where there is none.
    pub user: String,
    /// Who is billed.
    pub tenant: String,
    /// Whether the caller administers: root, or named in `operators`.
    pub operator: bool,
}
