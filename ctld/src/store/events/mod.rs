//! Events, read from the outbox, where triggers write them in the transaction of the change (`migrations/0014_outbox.sql`).
//!
//! Commit order is not sequence order, so a reader that goes by the sequence alone skips what commits late. This one takes only
//! rows whose `txid` is below every transaction that still runs; nothing can then appear behind its cursor. The price: one old
//! transaction anywhere in the database server holds every reader back, which `bctl check` tells ([`holding_back`]).
//!
//! At least once: a cursor is saved after what it covers was handed on.

mod behind;
mod prune;

pub use behind::{HoldingBack, holding_back};
pub use prune::{Keep, PRUNE_MAX, Pruned, prune};

use super::{StoreError, row_error};
use chrono::{DateTime, Utc};
use proto::{Cursor, Event};
use sqlx::PgPool;

/// The most events one read returns.
pub const BATCH_MAX: i64 = 1000;

/// Who may see what: operators everything, users the events of what is theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only what belongs to this user.
    pub owner: Option<String>,
    /// Only what belongs to this tenant.
    pub tenant_id: Option<i32>,
    /// Only these types, or those of these families.
    pub kinds: Vec<String>,
    /// Only what is about this.
    pub subject: Option<String>,
}

/// An event, the place behind it, and who may see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The place behind it.
    pub cursor: Cursor,
    /// Its tenant, by number.
    pub tenant_id: Option<i32>,
    /// Its user.
    pub owner: Option<String>,
    /// What happened.
    pub event: Event,
}

impl Filter {
    /// Whether an event passes: what [`read`] asks of the database, for one already read.
    pub fn passes(&self, placed: &Placed) -> bool {
        let all = |wanted: Option<&String>, is: Option<&String>| wanted.is_none() || wanted == is;
        all(self.owner.as_ref(), placed.owner.as_ref())
            && (self.tenant_id.is_none() || self.tenant_id == placed.tenant_id)
            && all(self.subject.as_ref(), Some(&placed.event.subject))
            && (self.kinds.is_empty()
                || self.kinds.iter().any(|kind| proto::event::matches(kind, &placed.event.kind)))
    }
}

struct Row {
    txid: String,
    seq: i64,
    id: uuid::Uuid,
    kind: String,
    tenant_id: Option<i32>,
    tenant: Option<String>,
    owner: Option<String>,
    subject: String,
    data: serde_json::Value,
    time: DateTime<Utc>,
}

/// Up to `limit` events behind this place that pass the filter, in order. Fewer: there are no more that can be read yet.
pub async fn read(
    db: &PgPool,
    after: Cursor,
    filter: &Filter,
    limit: i64,
) -> Result<Vec<Placed>, StoreError> {
    let rows = sqlx::query_as!(
        Row,
        r#"SELECT o.txid::text AS "txid!", o.seq, o.id, o.type AS kind, o.tenant_id, t.name AS "tenant?", o.owner, o.subject, o.data,
               o.time
           FROM outbox o LEFT JOIN tenants t ON t.id = o.tenant_id
           WHERE o.txid < pg_snapshot_xmin(pg_current_snapshot()) AND (o.txid, o.seq) > ($1::text::xid8, $2::bigint)
               AND ($3::text IS NULL OR o.owner = $3) AND ($4::int IS NULL OR o.tenant_id = $4)
               AND ($5::text IS NULL OR o.subject = $5)
               AND ($6::text[] = '{}' OR o.type = ANY($6) OR split_part(o.type, '.', 1) = ANY($6))
           ORDER BY o.txid, o.seq LIMIT $7"#,
        after.txid.to_string(),
        after.seq,
        filter.owner,
        filter.tenant_id,
        filter.subject,
        &filter.kinds,
        limit.min(BATCH_MAX)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(placed).collect()
}

fn placed(row: Row) -> Result<Placed, StoreError> {
    Ok(Placed {
        cursor: Cursor { txid: txid(&row.txid)?, seq: row.seq },
        tenant_id: row.tenant_id,
        owner: row.owner,
        event: Event {
            id: row.id.to_string(),
            kind: row.kind,
            tenant: row.tenant,
            subject: row.subject,
            data: row.data,
            time: row.time,
        },
    })
}

fn txid(text: &str) -> Result<u64, StoreError> {
    text.parse().map_err(|_| row_error("outbox", "txid", text))
}

/// The place behind everything that can be read now: whoever begins here hears what is told from now on.
pub async fn head(db: &PgPool) -> Result<Cursor, StoreError> {
    let xmin = sqlx::query_scalar!(r#"SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS "xmin!""#)
        .fetch_one(db)
        .await?;
    Ok(Cursor { txid: txid(&xmin)?.saturating_sub(1), seq: i64::MAX })
}

/// Whether there are events behind this place that cannot be read yet, or were written since.
pub async fn more(db: &PgPool, after: Cursor) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT 1 FROM outbox o WHERE (o.txid, o.seq) > ($1::text::xid8, $2::bigint)) AS "more!""#,
        after.txid.to_string(),
        after.seq
    )
    .fetch_one(db)
    .await?)
}

/// Up to where events have been pruned: who reads from before it has missed some.
pub async fn pruned_to(db: &PgPool) -> Result<Cursor, StoreError> {
    let row = sqlx::query!(r#"SELECT txid::text AS "txid!", seq FROM outbox_pruned"#).fetch_one(db).await?;
    Ok(Cursor { txid: txid(&row.txid)?, seq: row.seq })
}
