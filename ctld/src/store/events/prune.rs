//! Retention: old events and dead letters go, a batch at a time.
//!
//! An event stays for as long as it is kept, and longer where an active sink has not been served with it; past the hard limit it
//! goes all the same, and the sink says that it missed some.

use crate::store::StoreError;
use crate::store::leases::Authority;
use std::time::Duration;

/// The most rows one transaction deletes.
pub const PRUNE_MAX: i64 = 5000;

/// How long things are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Events.
    pub events: Duration,
    /// Events that an active sink has not been served with.
    pub unserved: Duration,
    /// Dead letters.
    pub dead_letters: Duration,
}

/// What went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Events.
    pub events: i64,
    /// Dead letters.
    pub dead_letters: i64,
}

/// Deletes what is too old, a batch of each. A full batch: there may be more.
pub async fn prune(authority: &impl Authority, keep: Keep) -> Result<Pruned, StoreError> {
    let mut tx = authority.begin().await?;
    // Only the oldest are looked at: places are nearly in the order of time.
    let events = sqlx::query_scalar!(
        r#"WITH oldest AS (
               SELECT txid, seq, time, row_number() OVER (ORDER BY txid, seq) AS at FROM (
                   SELECT txid, seq, time FROM outbox WHERE txid < pg_snapshot_xmin(pg_current_snapshot())
                   ORDER BY txid, seq LIMIT $3) o
           ), doomed AS (
               -- Up to the first that must stay, so that what is gone is all before one place.
               SELECT txid, seq FROM oldest WHERE at < coalesce((
                   SELECT min(o.at) FROM oldest o
                   WHERE o.time >= compute_now() - make_interval(secs => $1)
                       OR o.time >= compute_now() - make_interval(secs => $2) AND EXISTS (
                           SELECT 1 FROM outbox_cursors c JOIN event_sinks s ON s.id = c.sink_id
                           WHERE s.state = 'active' AND (c.txid, c.seq) < (o.txid, o.seq))), 9223372036854775807)
           ), gone AS (
               DELETE FROM outbox o USING doomed d WHERE o.txid = d.txid AND o.seq = d.seq RETURNING o.seq
           ), marked AS (
               UPDATE outbox_pruned p SET txid = l.txid, seq = l.seq
               FROM (SELECT txid, seq FROM doomed ORDER BY txid DESC, seq DESC LIMIT 1) l
               WHERE (p.txid, p.seq) < (l.txid, l.seq)
               RETURNING p.txid, p.seq
           ), told AS (
               UPDATE event_sinks s SET note = 'missed events that were kept no longer', version = s.version + 1
               FROM outbox_cursors c, marked m WHERE c.sink_id = s.id AND (c.txid, c.seq) < (m.txid, m.seq) AND s.note IS NULL
           )
           SELECT count(*) AS "count!" FROM gone"#,
        keep.events.as_secs_f64(),
        keep.unserved.max(keep.events).as_secs_f64(),
        PRUNE_MAX
    )
    .fetch_one(&mut *tx)
    .await?;
    let dead_letters = sqlx::query_scalar!(
        r#"WITH gone AS (
               DELETE FROM event_deliveries WHERE ctid IN (SELECT ctid FROM event_deliveries
                   WHERE state = 'dead' AND changed_at < compute_now() - make_interval(secs => $1) LIMIT $2)
               RETURNING 1)
           SELECT count(*) AS "count!" FROM gone"#,
        keep.dead_letters.as_secs_f64(),
        PRUNE_MAX
    )
    .fetch_one(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(Pruned { events, dead_letters })
}
