//! Commands: one-shot acts on nodes, kept until the node has answered.
//!
//! `pending → sent → done | failed`. A command is written in the transaction that asks for it, sent by whichever session owns
//! the node, sent again by the next session if that one ended before the answer, and answered by the node from its journal if
//! it has seen it. A node that comes with another journal has lost its memory: what was under way and may not be carried out
//! twice has then failed. One that could not be sent in time fails by [`expire`].

use super::StoreError;
use super::leases::Authority;
use super::node::Session;
use proto::session::CommandAct;
use sqlx::{PgConnection, PgPool};

/// Seconds for which a signal is kept for a node without a session.
pub const SIGNAL_KEPT_S: u32 = 600;
/// The most sent at once.
const SEND_MAX: i64 = 256;

/// A command that is to be kept.
#[derive(Clone, Debug)]
pub struct NewCommand<'a> {
    /// For this node.
    pub node_id: i64,
    /// What it is known by.
    pub idempotency_key: String,
    /// What to do.
    pub act: CommandAct,
    /// Whether it may be carried out twice.
    pub retry_safe: bool,
    /// Who asks.
    pub by: &'a str,
    /// Seconds after which it is not sent any more.
    pub kept_s: u32,
}

/// A command that is to be sent now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Its id.
    pub id: i64,
    /// What the node knows it by.
    pub idempotency_key: String,
    /// What to do.
    pub act: CommandAct,
    /// Whether it may be carried out twice.
    pub retry_safe: bool,
}

/// Keeps commands. One with a key that the node was given before is that one.
pub async fn add(tx: &mut PgConnection, commands: &[NewCommand<'_>]) -> Result<(), StoreError> {
    if commands.is_empty() {
        return Ok(());
    }
    let nodes: Vec<i64> = commands.iter().map(|c| c.node_id).collect();
    let keys: Vec<String> = commands.iter().map(|c| c.idempotency_key.clone()).collect();
    let acts: Vec<serde_json::Value> = commands
        .iter()
        .map(|c| serde_json::to_value(&c.act).unwrap_or_else(|error| unreachable!("command: {error}")))
        .collect();
    let safe: Vec<bool> = commands.iter().map(|c| c.retry_safe).collect();
    let by: Vec<String> = commands.iter().map(|c| c.by.to_owned()).collect();
    let kept: Vec<f64> = commands.iter().map(|c| f64::from(c.kept_s)).collect();
    sqlx::query!(
        "INSERT INTO commands (node_id, idempotency_key, act, retry_safe, asked_by, asked_at, expires_at)
         SELECT node_id, key, act, safe, asked_by, compute_now(), compute_now() + make_interval(secs => kept_s)
         FROM unnest($1::bigint[], $2::text[], $3::jsonb[], $4::boolean[], $5::text[], $6::double precision[])
             AS i(node_id, key, act, safe, asked_by, kept_s)
         ON CONFLICT (node_id, idempotency_key) DO NOTHING",
        &nodes,
        &keys,
        &acts,
        &safe,
        &by,
        &kept
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// What this session has to send its node: what nobody has sent, and what an earlier session sent without hearing the answer. `None`:
/// the session no longer owns the node.
pub async fn due(db: &PgPool, session: Session) -> Result<Option<Vec<Due>>, StoreError> {
    let mut tx = db.begin().await?;
    // Dispatch locks the session's row: one that is opened meanwhile waits, or is there already.
    let owns = sqlx::query_scalar!(
        "SELECT id FROM nodes WHERE id = $1 AND session_epoch = $2 FOR SHARE",
        session.node_id,
        session.epoch
    )
    .fetch_optional(&mut *tx)
    .await?;
    if owns.is_none() {
        return Ok(None);
    }
    let rows = sqlx::query!(
        "WITH due AS (
             SELECT id FROM commands WHERE node_id = $1 AND expires_at > compute_now()
                 AND (state = 'pending' OR state = 'sent' AND sent_epoch < $2)
             ORDER BY id LIMIT $3 FOR UPDATE)
         UPDATE commands c SET state = 'sent', sent_epoch = $2 FROM due WHERE c.id = due.id
         RETURNING c.id, c.idempotency_key, c.act, c.retry_safe",
        session.node_id,
        session.epoch,
        SEND_MAX
    )
    .fetch_all(&mut *tx)
    .await?;
    tx.commit().await?;
    let mut due: Vec<Due> = rows
        .into_iter()
        .map(|row| {
            let act = serde_json::from_value(row.act.clone())
                .map_err(|_| super::row_error("commands", "act", row.act.to_string()))?;
            Ok(Due { id: row.id, idempotency_key: row.idempotency_key, act, retry_safe: row.retry_safe })
        })
        .collect::<Result<_, StoreError>>()?;
    due.sort_by_key(|command| command.id);
    Ok(Some(due))
}

/// Records a node's answer, said in the session in which the command was sent. `false`: it had ended, or was sent in another.
pub async fn answered(
    db: &PgPool,
    session: Session,
    id: i64,
    error: Option<&str>,
) -> Result<bool, StoreError> {
    let done = sqlx::query!(
        "UPDATE commands SET state = CASE WHEN $4::text IS NULL THEN 'done' ELSE 'failed' END, error = $4, ended_at = compute_now()
         WHERE id = $1 AND node_id = $2 AND sent_epoch = $3 AND state = 'sent'",
        id,
        session.node_id,
        session.epoch,
        error
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A node has another journal than before: what it was told and may not do twice has failed, since it no longer knows whether it
/// did it.
pub(super) async fn memory_lost(tx: &mut PgConnection, node_id: i64) -> Result<u64, StoreError> {
    let failed = sqlx::query!(
        "UPDATE commands SET state = 'failed', ended_at = compute_now(),
             error = 'the node lost its journal: whether it was carried out is not known'
         WHERE node_id = $1 AND state = 'sent' AND NOT retry_safe",
        node_id
    )
    .execute(tx)
    .await?;
    Ok(failed.rows_affected())
}

/// Fails what could not be sent, or was not answered, in its time. How many.
pub async fn expire(right: &impl Authority) -> Result<u64, StoreError> {
    let mut tx = right.begin().await?;
    let failed = sqlx::query!(
        "UPDATE commands SET state = 'failed', ended_at = compute_now(), error = CASE state
                 WHEN 'pending' THEN 'its node had no session in time: it was not sent'
                 ELSE 'its node did not answer in time: whether it was carried out is not known' END
         WHERE state IN ('pending', 'sent') AND expires_at <= compute_now()"
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(failed.rows_affected())
}
