//! Join tokens and what they are traded for. A token is good once, by a guarded update and a unique key; the answer to it may be
//! asked for again by the same key only. Order of locks: the token, the node, its certificates.

use super::StoreError;
use super::holds::reachable;
use super::read::unknown_node;
use crate::pki::{Authority, Issued};
use chrono::{DateTime, Utc};
use ctld_core::liveness::Absence;
use proto::api::{NodeCertificate, NodeCertificateList};
use proto::{ApiError, ErrorCode};
use sqlx::{PgConnection, PgPool};

/// Every authority that has not ended.
pub async fn authorities(db: &PgPool) -> Result<Vec<Authority>, StoreError> {
    Ok(sqlx::query_as!(
        Authority,
        "SELECT id, certificate, key, created_at, expires_at FROM certificate_authorities
         WHERE expires_at > compute_now() ORDER BY id"
    )
    .fetch_all(db)
    .await?)
}

/// The number that the next authority would have.
pub async fn next_authority(db: &PgPool) -> Result<i32, StoreError> {
    Ok(sqlx::query_scalar!(r#"SELECT coalesce(max(id), 0) + 1 AS "next!" FROM certificate_authorities"#)
        .fetch_one(db)
        .await?)
}

/// Keeps an authority, unless another controller has made the one of that number.
pub async fn add_authority(db: &PgPool, authority: &Authority) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO certificate_authorities (id, certificate, key, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT DO NOTHING",
        authority.id,
        authority.certificate,
        authority.key,
        authority.created_at,
        authority.expires_at
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Keeps the hash of a token, and says when it ends.
pub async fn add_token(
    db: &PgPool,
    hash: &[u8; 32],
    node: Option<&str>,
    author: &str,
    ttl_s: u64,
) -> Result<DateTime<Utc>, StoreError> {
    Ok(sqlx::query_scalar!(
        "INSERT INTO node_tokens (hash, node, author, created_at, expires_at)
         VALUES ($1, $2, $3, compute_now(), compute_now() + make_interval(secs => $4)) RETURNING expires_at",
        &hash[..],
        node,
        author,
        ttl_s as f64
    )
    .fetch_one(db)
    .await?)
}

/// A node that would join.
pub struct Joining<'a> {
    /// SHA-256 of the token's secret.
    pub token_hash: &'a [u8; 32],
    /// Its name.
    pub node: &'a str,
    /// Its pool.
    pub pool: &'a str,
    /// SHA-256 of its public key.
    pub key_hash: &'a [u8; 32],
    /// The certificate that it gets.
    pub issued: &'a Issued,
    /// By which authority.
    pub authority_id: i32,
}

/// Trades a token for a certificate, and makes the node's row. For the key that the token was used for already, the answer is the
/// certificate that it was given then.
pub async fn join(db: &PgPool, joining: &Joining<'_>) -> Result<String, StoreError> {
    let mut tx = db.begin().await?;
    // Another who has the token waits here, and finds it used.
    let token = sqlx::query!(
        "UPDATE node_tokens SET used_at = compute_now(), key_hash = $2
         WHERE hash = $1 AND used_at IS NULL AND expires_at > compute_now() AND (node IS NULL OR node = $3)
         RETURNING id, node",
        &joining.token_hash[..],
        &joining.key_hash[..],
        joining.node
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(token) = token else {
        drop(tx);
        return again(db, joining).await;
    };
    let node_id = take_name(&mut tx, joining, token.node.is_some()).await?;
    insert(&mut tx, node_id, joining.authority_id, Some(token.id), joining.key_hash, joining.issued).await?;
    tx.commit().await?;
    Ok(joining.issued.certificate.clone())
}

/// The row of the node that joins. A token for no node in particular takes no name that a node has had.
async fn take_name(tx: &mut PgConnection, joining: &Joining<'_>, named: bool) -> Result<i64, StoreError> {
    let pool_id = sqlx::query_scalar!("SELECT id FROM pools WHERE name = $1", joining.pool)
        .fetch_optional(&mut *tx)
        .await?
        .ok_or_else(|| {
            ApiError::new(ErrorCode::NotFound, format!("no pool is called \"{}\"", joining.pool))
                .hint("declare it in ctld.toml, or name another in noded.toml")
        })?;
    let made = sqlx::query_scalar!(
        "INSERT INTO nodes (name, pool_id) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING id",
        joining.node,
        pool_id
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(id) = made {
        return Ok(id);
    }
    let id = sqlx::query_scalar!("SELECT id FROM nodes WHERE name = $1 FOR UPDATE", joining.node)
        .fetch_one(&mut *tx)
        .await?;
    if named {
        count_anew(tx, id).await?;
        return Ok(id);
    }
    let message =
        format!("there is a node \"{}\" already, and the token is for no node in particular", joining.node);
    Err(ApiError::new(ErrorCode::Conflict, message)
        .hint(format!("ask for `bctl node token --node {}`, or join under another name", joining.node))
        .into())
}

/// A node that has never opened a session counts from its newest certificate, not from its first: it has its time to come anew.
async fn count_anew(tx: &mut PgConnection, node_id: i64) -> Result<(), StoreError> {
    let never_seen = sqlx::query_scalar!(
        "UPDATE nodes SET connection = 'disconnected', disconnected_at = compute_now(), version = version + 1,
             unreachable_at = compute_now() + make_interval(secs => $2)
         WHERE id = $1 AND last_seen_at IS NULL AND connection IN ('disconnected', 'unreachable')
         RETURNING id",
        node_id,
        f64::from(Absence::SessionClosed.unreachable_after_s())
    )
    .fetch_optional(&mut *tx)
    .await?;
    if never_seen.is_some() {
        reachable(tx, &[node_id]).await?;
    }
    Ok(())
}

/// The answer to a token that cannot be used now.
async fn again(db: &PgPool, joining: &Joining<'_>) -> Result<String, StoreError> {
    let row = sqlx::query!(
        r#"SELECT t.node, t.key_hash, t.expires_at <= compute_now() AS "expired!",
               n.name AS "used_by?", c.certificate AS "certificate?", c.revoked_at AS "revoked_at?"
           FROM node_tokens t LEFT JOIN node_certificates c ON c.token_id = t.id LEFT JOIN nodes n ON n.id = c.node_id
           WHERE t.hash = $1"#,
        &joining.token_hash[..]
    )
    .fetch_optional(db)
    .await?;
    let refused = |message: String| {
        ApiError::new(ErrorCode::PermissionDenied, message).hint("`bctl node token` gives a new one")
    };
    let Some(row) = row else { return Err(refused("the join token is not known here".into()).into()) };
    if let (Some(certificate), Some(used_by)) = (row.certificate, row.used_by) {
        let same = row.key_hash.as_deref() == Some(&joining.key_hash[..]) && used_by == joining.node;
        return match same && row.revoked_at.is_none() {
            true => Ok(certificate),
            false => Err(refused(format!("the join token has been used, by node \"{used_by}\"")).into()),
        };
    }
    if let Some(node) = row.node.filter(|node| node != joining.node) {
        return Err(
            refused(format!("the join token is for node \"{node}\", not \"{}\"", joining.node)).into()
        );
    }
    if row.expired {
        return Err(refused("the join token has expired".into()).into());
    }
    // Whoever had it in hand gave it back between the two looks.
    Err(ApiError::new(ErrorCode::Unavailable, "the join token is in use now").hint("try again").into())
}

async fn insert(
    tx: &mut PgConnection,
    node_id: i64,
    authority_id: i32,
    token_id: Option<i64>,
    key_hash: &[u8; 32],
    issued: &Issued,
) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO node_certificates (serial, node_id, authority_id, token_id, key_hash, certificate, issued_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, compute_now(), $7)",
        issued.serial,
        node_id,
        authority_id,
        token_id,
        &key_hash[..],
        issued.certificate,
        issued.expires_at
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Whose certificate it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The node.
    pub node: String,
    /// Whether it was revoked.
    pub revoked: bool,
}

/// Whose certificate this serial number is, if one of ours has it.
pub async fn holder(db: &PgPool, serial: &str) -> Result<Option<Holder>, StoreError> {
    Ok(sqlx::query_as!(
        Holder,
        r#"SELECT n.name AS node, c.revoked_at IS NOT NULL AS "revoked!"
           FROM node_certificates c JOIN nodes n ON n.id = c.node_id WHERE c.serial = $1"#,
        serial
    )
    .fetch_optional(db)
    .await?)
}

/// Gives the holder of a certificate that is not revoked a new one. Asked again soon with the same key, as when the answer was lost,
/// it gives the same again.
pub async fn renew(
    db: &PgPool,
    serial: &str,
    key_hash: &[u8; 32],
    issued: &Issued,
    authority_id: i32,
) -> Result<String, StoreError> {
    let mut tx = db.begin().await?;
    // A revocation locks the node too: it comes before, and is seen, or after, and takes the new one along.
    let node_id = sqlx::query_scalar!(
        "SELECT n.id FROM nodes n JOIN node_certificates c ON c.node_id = n.id WHERE c.serial = $1 FOR UPDATE OF n",
        serial
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(node_id) = node_id else { return Err(not_good().into()) };
    let good = sqlx::query_scalar!(
        r#"SELECT revoked_at IS NULL AND expires_at > compute_now() AS "good!" FROM node_certificates WHERE serial = $1"#,
        serial
    )
    .fetch_one(&mut *tx)
    .await?;
    if !good {
        return Err(not_good().into());
    }
    let fresh = sqlx::query_scalar!(
        "SELECT certificate FROM node_certificates
         WHERE node_id = $1 AND key_hash = $2 AND revoked_at IS NULL
             AND expires_at - compute_now() > (expires_at - issued_at) * 0.9
         ORDER BY expires_at DESC LIMIT 1",
        node_id,
        &key_hash[..]
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(fresh) = fresh {
        return Ok(fresh);
    }
    insert(&mut tx, node_id, authority_id, None, key_hash, issued).await?;
    tx.commit().await?;
    Ok(issued.certificate.clone())
}

/// The answer to a certificate that is revoked, expired or none of ours.
pub fn not_good() -> ApiError {
    ApiError::new(ErrorCode::PermissionDenied, "the node's certificate is revoked, expired or not known here")
        .hint("remove its `tls` directory and join again, with a token of `bctl node token --node NAME`")
}

/// Revokes every certificate of a node and fences its session out. Gives the node's id.
pub async fn revoke(db: &PgPool, node: &str, author: &str) -> Result<i64, StoreError> {
    let mut tx = db.begin().await?;
    let node_id = sqlx::query_scalar!("SELECT id FROM nodes WHERE name = $1 FOR UPDATE", node)
        .fetch_optional(&mut *tx)
        .await?
        .ok_or_else(|| unknown_node(node))?;
    let revoked = sqlx::query!(
        "UPDATE node_certificates SET revoked_at = compute_now(), revoked_by = $2
         WHERE node_id = $1 AND revoked_at IS NULL",
        node_id,
        author
    )
    .execute(&mut *tx)
    .await?;
    if revoked.rows_affected() > 0 {
        // As if another session owned the node: whatever the old one still says is refused.
        sqlx::query!(
            "UPDATE nodes SET session_epoch = session_epoch + 1, version = version + 1,
                 disconnected_at = coalesce(disconnected_at, compute_now()),
                 unreachable_at = coalesce(unreachable_at, compute_now() + interval '40 seconds'),
                 connection = CASE connection WHEN 'connected' THEN 'disconnected' ELSE connection END
             WHERE id = $1",
            node_id
        )
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    Ok(node_id)
}

/// The certificates of a node, or of all, by node, the newest first.
pub async fn list(db: &PgPool, node: Option<&str>) -> Result<NodeCertificateList, StoreError> {
    let certificates = sqlx::query_as!(
        NodeCertificate,
        "SELECT n.name AS node, c.serial, c.issued_at, c.expires_at, c.revoked_at, c.revoked_by
         FROM node_certificates c JOIN nodes n ON n.id = c.node_id
         WHERE $1::text IS NULL OR n.name = $1
         ORDER BY n.name, c.issued_at DESC, c.serial LIMIT 10000",
        node
    )
    .fetch_all(db)
    .await?;
    Ok(NodeCertificateList { certificates })
}
