//! What the controller counts, and the OpenMetrics text that `/metrics` answers with.
//!
//! Owns the names. Counters and histograms are bumped where the thing happens and start from zero with the process; gauges about
//! jobs, nodes and GPUs are read from the database when somebody scrapes, at most once a [`FRESH`], so that they are right after a
//! restart and cost nothing when nobody looks. If the database cannot be read, the counters are still answered, with
//! `better_compute_database_up` 0 and the gauges as they were last seen. Every name begins with `better_compute_`:
//!
//! | name | labels | counts |
//! |---|---|---|
//! | `submissions_total` | `code`: `accepted`, `replayed` or an error code | submissions answered |
//! | `batch_size`, `batch_seconds` | `gatherer`: `submissions`, `facts`, `placements` | entries in a batch; from its start to its commit |
//! | `planner_pass_seconds` | | planner passes and how long each took |
//! | `placements_total`, `placement_conflicts_total` | | attempts placed; plans the book refused |
//! | `reports_total` | `event` | what nodes reported |
//! | `node_sessions` | | node sessions open in this process |
//! | `api_connections` | | API connections open |
//! | `api_requests_total`, `api_request_seconds` | `path`, `status` / `path` | requests answered; how long each took |
//! | `event_streams` | | streams of events open |
//! | `deliveries_total` | `outcome`: `taken`, `failed`, `gone`, `dead` | events sent to sinks; `dead` are those given up |
//! | `database_up` | | whether the last look at the database succeeded |
//! | `jobs`, `tasks_pending` | `state` / | live jobs by state; tasks not yet placed |
//! | `leases_held`, `fenced_total` | `kind`: `gateway`, `pool`, `singleton` | leases of this controller; acts that the fence refused, since the lease was another's |
//! | `audit_violations`, `audit_seconds` | `invariant` / | what the last audit found; how long it took |
//! | `nodes`, `gpus`, `gpus_booked` | `connection` / | nodes by connection; GPUs present; GPUs booked now |

use crate::store::read::fleet_counts;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use proto::ApiError;
use proto::api::{Audit, Submitted};
use sqlx::PgPool;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How old the gauges read from the database may be: several scrapers cost one look.
const FRESH: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCode {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByGatherer {
    gatherer: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByEvent {
    event: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByConnection {
    connection: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByInvariant {
    invariant: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKind {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPath {
    path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPathAndStatus {
    path: String,
    status: u16,
}

/// Everything counted by one controller.
pub struct Metrics {
    registry: Registry,
    submissions: Family<ByCode, Counter>,
    batch_size: Family<ByGatherer, Histogram, fn() -> Histogram>,
    batch_seconds: Family<ByGatherer, Histogram, fn() -> Histogram>,
    planner_pass_seconds: Histogram,
    placements: Counter,
    placement_conflicts: Counter,
    reports: Family<ByEvent, Counter>,
    node_sessions: Gauge,
    api_connections: Gauge,
    event_streams: Gauge,
    deliveries: Family<ByOutcome, Counter>,
    api_requests: Family<ByPathAndStatus, Counter>,
    api_request_seconds: Family<ByPath, Histogram, fn() -> Histogram>,
    leases_held: Family<ByKind, Gauge>,
    fenced: Family<ByKind, Counter>,
    audit_violations: Family<ByInvariant, Gauge>,
    audit_seconds: Gauge<f64, AtomicU64>,
    /// The last audit, and when it was made.
    audit: StdMutex<Option<(Instant, Audit)>>,
    seen: Seen,
    seen_at: Mutex<Option<Instant>>,
}

/// Gauges read from the database.
#[derive(Default)]
struct Seen {
    database_up: Gauge,
    jobs: Family<ByState, Gauge>,
    tasks_pending: Gauge,
    nodes: Family<ByConnection, Gauge>,
    gpus: Gauge,
    gpus_booked: Gauge,
}

/// 0.1 ms to about 26 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 4.0, 10))
}

/// 1 to 4,096 entries.
fn entries() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 13))
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("better_compute"),
            submissions: Family::default(),
            batch_size: Family::new_with_constructor(entries),
            batch_seconds: Family::new_with_constructor(seconds),
            planner_pass_seconds: seconds(),
            placements: Counter::default(),
            placement_conflicts: Counter::default(),
            reports: Family::default(),
            node_sessions: Gauge::default(),
            api_connections: Gauge::default(),
            event_streams: Gauge::default(),
            deliveries: Family::default(),
            api_requests: Family::default(),
            api_request_seconds: Family::new_with_constructor(seconds),
            leases_held: Family::default(),
            fenced: Family::default(),
            audit_violations: Family::default(),
            audit_seconds: Gauge::default(),
            audit: StdMutex::default(),
            seen: Seen::default(),
            seen_at: Mutex::new(None),
        };
        let all = &mut metrics.registry;
        all.register("submissions", "Submissions answered", metrics.submissions.clone());
        all.register("batch_size", "Entries in a batch", metrics.batch_size.clone());
        all.register(
            "batch_seconds",
            "Time from a batch's start to its commit",
            metrics.batch_seconds.clone(),
        );
        all.register("planner_pass_seconds", "Planner passes", metrics.planner_pass_seconds.clone());
        all.register("placements", "Attempts placed", metrics.placements.clone());
        all.register("placement_conflicts", "Plans the book refused", metrics.placement_conflicts.clone());
        all.register("reports", "Events nodes reported", metrics.reports.clone());
        all.register("node_sessions", "Node sessions open in this process", metrics.node_sessions.clone());
        all.register("api_connections", "API connections open", metrics.api_connections.clone());
        all.register("event_streams", "Streams of events open", metrics.event_streams.clone());
        all.register("deliveries", "Events sent to sinks", metrics.deliveries.clone());
        all.register("api_requests", "Requests answered", metrics.api_requests.clone());
        all.register("api_request_seconds", "Time to answer a request", metrics.api_request_seconds.clone());
        all.register("leases_held", "Leases of this controller", metrics.leases_held.clone());
        all.register("fenced", "Acts refused since their lease was another's", metrics.fenced.clone());
        all.register(
            "audit_violations",
            "Rows that offend an invariant, by the last audit",
            metrics.audit_violations.clone(),
        );
        all.register("audit_seconds", "How long the last audit took", metrics.audit_seconds.clone());
        let seen = &metrics.seen;
        all.register(
            "database_up",
            "Whether the last look at the database succeeded",
            seen.database_up.clone(),
        );
        all.register("jobs", "Live jobs by state", seen.jobs.clone());
        all.register("tasks_pending", "Tasks not yet placed", seen.tasks_pending.clone());
        all.register("nodes", "Nodes by connection", seen.nodes.clone());
        all.register("gpus", "GPUs present", seen.gpus.clone());
        all.register("gpus_booked", "GPUs booked now", seen.gpus_booked.clone());
        metrics
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// A submission was answered.
    pub fn submission(&self, answer: &Result<Submitted, ApiError>) {
        let code = match answer {
            Ok(submitted) if submitted.replayed => "replayed",
            Ok(_) => "accepted",
            Err(error) => error.code.name(),
        };
        self.submissions.get_or_create(&ByCode { code }).inc();
    }

    /// A gatherer (`submissions`, `facts`, `placements`) committed a batch of so many entries in so long.
    pub fn batch(&self, gatherer: &'static str, size: usize, took: Duration) {
        let label = ByGatherer { gatherer };
        self.batch_size.get_or_create(&label).observe(size as f64);
        self.batch_seconds.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// The planner made a pass.
    pub fn planner_pass(&self, took: Duration) {
        self.planner_pass_seconds.observe(took.as_secs_f64());
    }

    /// So many attempts were placed, and so many plans the book refused.
    pub fn placed(&self, placements: usize, conflicts: usize) {
        self.placements.inc_by(placements as u64);
        self.placement_conflicts.inc_by(conflicts as u64);
    }

    /// A node reported an event: `started`, `ended`, …
    pub fn report(&self, event: &'static str) {
        self.reports.get_or_create(&ByEvent { event }).inc();
    }

    /// A node session was opened.
    pub fn session_opened(&self) {
        self.node_sessions.inc();
    }

    /// A node session was closed.
    pub fn session_closed(&self) {
        self.node_sessions.dec();
    }

    /// An API connection is open for as long as the answer lives.
    #[must_use = "the connection counts as open only while this lives"]
    pub fn connection_open(&self) -> Open {
        Open::new(&self.api_connections)
    }

    /// A stream of events is open for as long as the answer lives.
    #[must_use = "the stream counts as open only while this lives"]
    pub fn stream_open(&self) -> Open {
        Open::new(&self.event_streams)
    }

    /// An event was sent to a sink: `taken`, `failed`, `gone`, and `dead` when it was given up.
    pub fn delivery(&self, outcome: &'static str) {
        self.deliveries.get_or_create(&ByOutcome { outcome }).inc();
    }

    /// A request was answered. `path` is the route's pattern, never what was asked for: labels must not grow with use.
    pub fn request(&self, path: &str, status: u16, took: Duration) {
        self.api_requests.get_or_create(&ByPathAndStatus { path: path.to_owned(), status }).inc();
        self.api_request_seconds.get_or_create(&ByPath { path: path.to_owned() }).observe(took.as_secs_f64());
    }

    /// This controller has so many leases of a kind: `gateway`, `pool`, `singleton`.
    pub fn leases_held(&self, kind: &str, held: usize) {
        let label = ByKind { kind: kind.to_owned() };
        self.leases_held.get_or_create(&label).set(i64::try_from(held).unwrap_or(i64::MAX));
    }

    /// An act was refused, since its lease, of this kind, is another's by now.
    pub fn fenced(&self, kind: &str) {
        self.fenced.get_or_create(&ByKind { kind: kind.to_owned() }).inc();
    }

    /// An audit was made. What it could not check keeps the number it had.
    pub fn audited(&self, audit: &Audit) {
        for invariant in &audit.invariants {
            let Some(violations) = invariant.violations else { continue };
            let label = ByInvariant { invariant: invariant.name.clone() };
            self.audit_violations.get_or_create(&label).set(i64::try_from(violations).unwrap_or(i64::MAX));
        }
        self.audit_seconds.set(audit.took_s);
        *self.audit.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), audit.clone()));
    }

    /// The last audit and how long ago it was.
    pub fn last_audit(&self) -> Option<(Duration, Audit)> {
        let audit = self.audit.lock().unwrap_or_else(PoisonError::into_inner);
        audit.as_ref().map(|(at, audit)| (at.elapsed(), audit.clone()))
    }

    /// Everything as OpenMetrics text.
    pub async fn scrape(&self, db: &PgPool) -> String {
        self.look(db).await;
        let mut body = String::new();
        text::encode(&mut body, &self.registry).expect("writing to a string cannot fail");
        body
    }

    async fn look(&self, db: &PgPool) {
        let mut seen_at = self.seen_at.lock().await;
        if seen_at.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        match fleet_counts(db).await {
            Ok(counts) => {
                let seen = &self.seen;
                seen.database_up.set(1);
                seen.jobs.get_or_create(&ByState { state: "pending" }).set(counts.jobs_pending);
                seen.jobs.get_or_create(&ByState { state: "running" }).set(counts.jobs_running);
                seen.tasks_pending.set(counts.tasks_pending);
                for (connection, nodes) in [
                    ("connected", counts.nodes_connected),
                    ("disconnected", counts.nodes_disconnected),
                    ("unreachable", counts.nodes_unreachable),
                    ("lost", counts.nodes_lost),
                ] {
                    seen.nodes.get_or_create(&ByConnection { connection }).set(nodes);
                }
                seen.gpus.set(counts.gpus);
                seen.gpus_booked.set(counts.gpus_booked);
            }
            Err(error) => {
                tracing::warn!(%error, "the gauges for /metrics could not be read from the database");
                self.seen.database_up.set(0);
            }
        }
        *seen_at = Some(Instant::now());
    }
}

/// Something open, counted until it is dropped.
#[derive(Debug)]
pub struct Open {
    gauge: Gauge,
}

impl Open {
    fn new(gauge: &Gauge) -> Open {
        gauge.inc();
        Open { gauge: gauge.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::ErrorCode;
    use sqlx::postgres::PgPoolOptions;

    #[tokio::test]
    async fn counters_are_answered_while_the_database_is_away() {
        let metrics = Metrics::default();
        metrics.submission(&Ok(Submitted { id: 1, replayed: false }));
        metrics.submission(&Err(ApiError::new(ErrorCode::TooLarge, "a script of 5 MiB")));
        metrics.batch("facts", 3, Duration::from_millis(2));
        metrics.request("/v1/jobs/{id}", 404, Duration::from_millis(1));
        metrics.session_opened();
        let connection = metrics.connection_open();
        let nowhere = PgPoolOptions::new()
            .acquire_timeout(Duration::from_millis(200))
            .connect_lazy("postgres:///none?host=/nonexistent&user=nobody")
            .unwrap();
        let text = metrics.scrape(&nowhere).await;
        for line in [
            "better_compute_submissions_total{code=\"accepted\"} 1",
            "better_compute_submissions_total{code=\"TOO_LARGE\"} 1",
            "better_compute_batch_size_sum{gatherer=\"facts\"} 3.0",
            "better_compute_api_requests_total{path=\"/v1/jobs/{id}\",status=\"404\"} 1",
            "better_compute_node_sessions 1",
            "better_compute_api_connections 1",
            "better_compute_database_up 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line:?} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        metrics.session_closed();
        drop(connection);
        let text = metrics.scrape(&nowhere).await;
        assert!(text.contains("better_compute_node_sessions 0\n"), "{text}");
        assert!(text.contains("better_compute_api_connections 0\n"), "{text}");
    }
}
