//! Nodes that have no session: disconnected, then unreachable, then, where that may be, lost.
//!
//! Disconnected is not dead. A node whose session closed, or whose gateway's lease expired, is `disconnected`; nothing is
//! released. When it stays away it is `unreachable`: the controller's own hold, so that nothing new is placed on it, and still
//! nothing is released. Only in a pool that says after how long, and whose machines are hired, or when a person says so, it is
//! `lost`: its allocations end as failures of the node. A node that opens a session again is `connected`, whatever it was.
//!
//! A lost node is fenced first, by a new session epoch; its allocations end in a second transaction, as facts under that
//! epoch. So a node that comes back between the two keeps its jobs, and a look that was cut off is made up for by the next.

use super::StoreError;
use super::facts::{Fact, Recorded, record};
use super::holds::{reachable, unreachable};
use super::leases::Authority;
use ctld_core::liveness::{Absence, OUTAGE_S};
use proto::api::Usage;
use proto::session::{EndCause, Ended, Event};
use proto::{ApiError, ErrorCode};
use sqlx::{PgConnection, PgPool};

/// The most nodes that one look changes, each way.
const NODES_MAX: i64 = 500;
/// The longest reason for which a person gives a node up, bytes.
const REASON_BYTES_MAX: usize = 1000;

/// What one look changed: names of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// No controller, or no database, was there for a while: every node that is away has its grace anew.
    pub outage: bool,
    /// Their gateway's lease has expired.
    pub disconnected: Vec<String>,
    /// They were away for too long.
    pub unreachable: Vec<String>,
    /// They are back, though their hold stood.
    pub reachable: Vec<String>,
    /// To be given up: see [`give_up`].
    pub lost: Vec<i64>,
}

/// One look at every node that is away.
pub async fn look(right: &impl Authority) -> Result<Looked, StoreError> {
    let mut tx = right.begin().await?;
    let outage = outage(&mut tx).await?;
    // Everything that may change, under the locks that placements take, in their order.
    sqlx::query!(
        "SELECT id FROM nodes n WHERE connection = 'connected' AND NOT EXISTS (SELECT FROM leases l
                 WHERE l.name = 'gateway:' || n.gateway AND l.expires_at > compute_now())
             OR connection = 'disconnected' AND ($1 OR unreachable_at <= compute_now())
             OR connection = 'connected' AND EXISTS (SELECT FROM holds h WHERE h.node_id = n.id
                 AND h.kind = 'unreachable' AND h.gpu_id IS NULL AND h.closed_at IS NULL)
         ORDER BY id LIMIT $2 FOR UPDATE",
        outage,
        NODES_MAX
    )
    .fetch_all(&mut *tx)
    .await?;
    let looked = Looked {
        outage,
        disconnected: gateways_lost(&mut tx, outage).await?,
        reachable: back(&mut tx).await?,
        unreachable: overdue(&mut tx, outage).await?,
        lost: given_up(&mut tx).await?,
    };
    tx.commit().await?;
    Ok(looked)
}

/// Notes the look, and whether nobody looked for so long that nodes had nobody to speak to.
async fn outage(tx: &mut PgConnection) -> Result<bool, StoreError> {
    let gap_s = sqlx::query_scalar!(
        r#"SELECT extract(epoch FROM compute_now() - looked_at)::double precision AS "gap_s!" FROM liveness WHERE id = 1 FOR UPDATE"#
    )
    .fetch_optional(&mut *tx)
    .await?;
    sqlx::query!(
        "INSERT INTO liveness (id, looked_at) VALUES (1, compute_now())
         ON CONFLICT (id) DO UPDATE SET looked_at = compute_now()"
    )
    .execute(tx)
    .await?;
    Ok(gap_s.is_some_and(|gap| gap > f64::from(OUTAGE_S)))
}

async fn gateways_lost(tx: &mut PgConnection, outage: bool) -> Result<Vec<String>, StoreError> {
    let absence = if outage { Absence::Outage } else { Absence::GatewayLost };
    Ok(sqlx::query_scalar!(
        "UPDATE nodes n SET connection = 'disconnected', disconnected_at = compute_now(), version = version + 1,
             unreachable_at = compute_now() + make_interval(secs => $1)
         WHERE connection = 'connected' AND NOT EXISTS (SELECT FROM leases l
             WHERE l.name = 'gateway:' || n.gateway AND l.expires_at > compute_now())
         RETURNING name",
        f64::from(absence.unreachable_after_s())
    )
    .fetch_all(tx)
    .await?)
}

/// Nodes with a session lose the hold that says they have none.
async fn back(tx: &mut PgConnection) -> Result<Vec<String>, StoreError> {
    let back = sqlx::query!(
        "SELECT id, name FROM nodes n WHERE connection = 'connected' AND EXISTS (SELECT FROM holds h
             WHERE h.node_id = n.id AND h.kind = 'unreachable' AND h.gpu_id IS NULL AND h.closed_at IS NULL)
         ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED",
        NODES_MAX
    )
    .fetch_all(&mut *tx)
    .await?;
    let ids: Vec<i64> = back.iter().map(|row| row.id).collect();
    reachable(tx, &ids).await?;
    Ok(back.into_iter().map(|row| row.name).collect())
}

async fn overdue(tx: &mut PgConnection, outage: bool) -> Result<Vec<String>, StoreError> {
    if outage {
        // Whoever was away had nobody to come back to.
        sqlx::query!(
            "UPDATE nodes SET unreachable_at = GREATEST(unreachable_at, compute_now() + make_interval(secs => $1))
             WHERE connection = 'disconnected'",
            f64::from(Absence::Outage.unreachable_after_s())
        )
        .execute(&mut *tx)
        .await?;
    }
    let overdue = sqlx::query!(
        "WITH overdue AS (SELECT id FROM nodes WHERE connection = 'disconnected' AND unreachable_at <= compute_now()
             ORDER BY id LIMIT $1)
         UPDATE nodes n SET connection = 'unreachable', version = version + 1 FROM overdue o WHERE n.id = o.id
         RETURNING n.id, n.name",
        NODES_MAX
    )
    .fetch_all(&mut *tx)
    .await?;
    let ids: Vec<i64> = overdue.iter().map(|row| row.id).collect();
    unreachable(tx, &ids).await?;
    Ok(overdue.into_iter().map(|row| row.name).collect())
}

/// The nodes whose pool gives them up by now, and those that were given up but still have allocations.
async fn given_up(tx: &mut PgConnection) -> Result<Vec<i64>, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT n.id FROM nodes n JOIN pools p ON p.id = n.pool_id
           WHERE n.connection = 'unreachable'
                   AND n.unreachable_at + make_interval(secs => p.lost_after_s::double precision) <= compute_now()
               OR n.connection = 'lost' AND EXISTS (SELECT FROM allocations a WHERE a.node_id = n.id AND a.released_at IS NULL)
           ORDER BY n.id LIMIT $1"#,
        NODES_MAX
    )
    .fetch_all(tx)
    .await?)
}

/// Gives a node up that is to be, by a look: its allocations end, and its jobs are started elsewhere if they may be. `None`: it
/// has come back meanwhile.
pub async fn give_up(right: &impl Authority, node_id: i64) -> Result<Option<Recorded>, StoreError> {
    let mut tx = right.begin().await?;
    let epoch = sqlx::query_scalar!(
        "UPDATE nodes n SET connection = 'lost', lost_at = coalesce(lost_at, compute_now()), version = n.version + 1,
             session_epoch = n.session_epoch + CASE WHEN n.connection = 'lost' THEN 0 ELSE 1 END,
             lost_reason = coalesce(lost_reason, format('no session for %s', compute_now() - n.disconnected_at))
         FROM pools p
         WHERE p.id = n.pool_id AND n.id = $1 AND (n.connection = 'lost' OR n.connection = 'unreachable'
             AND n.unreachable_at + make_interval(secs => p.lost_after_s::double precision) <= compute_now())
         RETURNING n.session_epoch",
        node_id
    )
    .fetch_optional(&mut *tx)
    .await?;
    tx.commit().await?;
    match epoch {
        Some(epoch) => end_allocations(right.db(), node_id, epoch).await.map(Some),
        None => Ok(None),
    }
}

/// Gives a node up since a person says that its machine is gone, in whatever pool it is. One that has a session is refused.
pub async fn declare_lost(db: &PgPool, node: &str, by: &str, reason: &str) -> Result<Recorded, StoreError> {
    let reason = reason.trim();
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX || reason.contains(char::is_control) {
        return Err(ApiError::new(
            ErrorCode::InvalidArgument,
            format!("the reason is not accepted: expected 1 to {REASON_BYTES_MAX} bytes in one line"),
        )
        .into());
    }
    let mut tx = db.begin().await?;
    let row = sqlx::query!("SELECT id, connection FROM nodes WHERE name = $1 FOR UPDATE", node)
        .fetch_optional(&mut *tx)
        .await?
        .ok_or_else(|| super::read::unknown_node(node))?;
    if row.connection == "connected" {
        return Err(ApiError::new(
            ErrorCode::Conflict,
            format!("node \"{node}\" has a session: it is not lost"),
        )
        .hint("stop its daemon first if its machine is to be given up, or cancel its jobs")
        .into());
    }
    let epoch = sqlx::query_scalar!(
        "UPDATE nodes SET connection = 'lost', lost_at = coalesce(lost_at, compute_now()), version = version + 1,
             lost_reason = coalesce(lost_reason, $2), session_epoch = session_epoch + 1
         WHERE id = $1 RETURNING session_epoch",
        row.id,
        format!("declared lost by {by}: {reason}")
    )
    .fetch_one(&mut *tx)
    .await?;
    unreachable(&mut tx, &[row.id]).await?;
    tx.commit().await?;
    end_allocations(db, row.id, epoch).await
}

/// Ends what a lost node had, as a report of a session that has this epoch would.
async fn end_allocations(db: &PgPool, node_id: i64, epoch: i64) -> Result<Recorded, StoreError> {
    let live = sqlx::query!(
        r#"SELECT a.id, n.lost_reason AS "reason!",
               extract(epoch FROM compute_now() - a.started_at)::double precision AS started_age_s
           FROM allocations a JOIN nodes n ON n.id = a.node_id
           WHERE a.node_id = $1 AND a.released_at IS NULL AND n.lost_reason IS NOT NULL ORDER BY a.id"#,
        node_id
    )
    .fetch_all(db)
    .await?;
    let facts: Vec<Fact> = live
        .into_iter()
        .map(|row| Fact {
            node_id,
            session_epoch: epoch,
            allocation_id: row.id,
            event: Event::Ended(Ended {
                age_us: 0,
                started_age_us: row.started_age_s.map(|s| (s.max(0.0) * 1e6) as u64),
                cause: EndCause::Lost,
                exit_code: None,
                signal: None,
                message: Some(format!("its node was given up: {}", row.reason)),
                usage: Usage::default(),
            }),
        })
        .collect();
    if facts.is_empty() {
        return Ok(Recorded::default());
    }
    record(db, &facts).await
}
