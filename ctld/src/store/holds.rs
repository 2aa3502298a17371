//! Drains: holds on a node that people put and lift.
//!
//! A hold has an owner, so that two people or tools do not lift each other's. The node's row is locked first and carries what a
//! placement locks (`eligible`, true while no hold on the node is open): a drain and a placement are ordered by it, and whichever
//! commits second sees the first. Other kinds of hold (unreachable, quarantine) belong to the controller and are not lifted here.

use super::StoreError;
use super::read::unknown_node;
use proto::{ApiError, ErrorCode};
use sqlx::{PgConnection, PgPool};

/// What became of a drain or a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The node.
    pub node_id: i64,
    /// Whether anything was changed; a second drain or resume by the same owner changes nothing.
    pub changed: bool,
    /// Whether the node takes new work now.
    pub eligible: bool,
}

/// Drains a node: no new work, what runs there goes on. A drain by this owner that is open already stays as it is, with the
/// reason it was given then.
pub async fn drain(db: &PgPool, node: &str, owner: &str, reason: &str) -> Result<Held, StoreError> {
    let mut tx = db.begin().await?;
    let node_id = lock(&mut tx, node).await?;
    let opened = sqlx::query!(
        r#"INSERT INTO holds (node_id, kind, owner, author, reason, opened_at, during)
           SELECT $1, 'drain', $2, $2, $3, compute_now(), tstzrange(compute_now(), NULL)
           WHERE NOT EXISTS (SELECT FROM holds
               WHERE node_id = $1 AND gpu_id IS NULL AND kind = 'drain' AND owner = $2 AND closed_at IS NULL)"#,
        node_id,
        owner,
        reason
    )
    .execute(&mut *tx)
    .await?;
    let eligible = derive_eligible(&mut tx, node_id).await?;
    tx.commit().await?;
    Ok(Held { node_id, changed: opened.rows_affected() > 0, eligible })
}

/// Lifts this owner's drain of the node, or with `all` everybody's. A node that nobody drains stays as it is; one that only
/// others drain is a CONFLICT that names them.
pub async fn resume(db: &PgPool, node: &str, owner: &str, all: bool) -> Result<Held, StoreError> {
    let mut tx = db.begin().await?;
    let node_id = lock(&mut tx, node).await?;
    let closed = sqlx::query!(
        r#"UPDATE holds SET closed_at = greatest(compute_now(), opened_at), closed_by = $2
           WHERE node_id = $1 AND gpu_id IS NULL AND kind = 'drain' AND closed_at IS NULL AND ($3 OR owner = $2)"#,
        node_id,
        owner,
        all
    )
    .execute(&mut *tx)
    .await?;
    if closed.rows_affected() == 0 {
        refuse_if_others_drain(&mut tx, node_id, node).await?;
    }
    let eligible = derive_eligible(&mut tx, node_id).await?;
    tx.commit().await?;
    Ok(Held { node_id, changed: closed.rows_affected() > 0, eligible })
}

async fn lock(db: &mut PgConnection, node: &str) -> Result<i64, StoreError> {
    let id = sqlx::query_scalar!("SELECT id FROM nodes WHERE name = $1 FOR UPDATE", node)
        .fetch_optional(db)
        .await?;
    id.ok_or_else(|| unknown_node(node))
}

async fn refuse_if_others_drain(db: &mut PgConnection, node_id: i64, node: &str) -> Result<(), StoreError> {
    let owners = sqlx::query_scalar!(
        r#"SELECT string_agg(DISTINCT format('"%s"', owner), ', ') FROM holds
           WHERE node_id = $1 AND gpu_id IS NULL AND kind = 'drain' AND closed_at IS NULL"#,
        node_id
    )
    .fetch_one(db)
    .await?;
    match owners {
        Some(owners) => Err(ApiError::new(
            ErrorCode::Conflict,
            format!("node \"{node}\" is drained by {owners}, not by you"),
        )
        .hint("lift other owners' drains too with `bctl resume --all`")
        .into()),
        None => Ok(()),
    }
}

/// Sets what a placement looks at from the holds that are open, and says what it is now.
async fn derive_eligible(db: &mut PgConnection, node_id: i64) -> Result<bool, StoreError> {
    let eligible = sqlx::query_scalar!(
        r#"SELECT NOT EXISTS (SELECT FROM holds
               WHERE node_id = $1 AND gpu_id IS NULL AND closed_at IS NULL) AS "eligible!""#,
        node_id
    )
    .fetch_one(&mut *db)
    .await?;
    sqlx::query!(
        "UPDATE nodes SET eligible = $2, version = version + 1 WHERE id = $1 AND eligible <> $2",
        node_id,
        eligible
    )
    .execute(db)
    .await?;
    Ok(eligible)
}
