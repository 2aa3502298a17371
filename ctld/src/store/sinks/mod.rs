//! Sinks: who made them, where they go, and up to where they have been served. What is done for them is in [`serve`].

mod serve;

pub use serve::{Failed, Round, Serving, Waiting, active, due, next_s, save, waiting_subjects};

use super::StoreError;
use super::tenants;
use crate::app::Caller;
use chrono::{DateTime, Utc};
use proto::api::{DeadLetter, DeadLetterList, Sink, SinkList, SinkRequest};
use proto::{ApiError, Cursor, ErrorCode};
use sqlx::PgPool;

/// The most sinks there may be: each is served by itself.
pub const SINKS_MAX: i64 = 200;
/// The most dead letters of one list.
const DEAD_LETTERS_MAX: i64 = 1000;

struct Row {
    id: i64,
    url: String,
    tenant: Option<String>,
    kinds: Vec<String>,
    state: String,
    note: Option<String>,
    created_by: String,
    created_at: DateTime<Utc>,
    txid: String,
    seq: i64,
    waiting: i64,
    dead: i64,
}

/// Makes a sink that is served with what happens from now on; its number.
pub async fn add(
    db: &PgPool,
    caller: &Caller,
    request: &SinkRequest,
    secret: &str,
) -> Result<i64, StoreError> {
    let tenant = match &request.tenant {
        Some(name) => Some(tenants::id(db, name).await?),
        None => None,
    };
    let mut tx = db.begin().await?;
    let id = sqlx::query_scalar!(
        "INSERT INTO event_sinks (url, secret, tenant_id, kinds, created_by)
         SELECT $1, $2, $3, $4, $5 WHERE (SELECT count(*) FROM event_sinks) < $6 RETURNING id",
        request.url,
        secret,
        tenant,
        &request.types,
        caller.user,
        SINKS_MAX
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(id) = id else {
        let message = format!("there are {SINKS_MAX} sinks already, which is the most");
        return Err(ApiError::new(ErrorCode::QuotaExceeded, message)
            .hint("delete one: `bctl sink list`")
            .into());
    };
    sqlx::query!(
        "INSERT INTO outbox_cursors (sink_id, txid, seq)
         VALUES ($1, ((pg_snapshot_xmin(pg_current_snapshot())::text)::bigint - 1)::text::xid8, 9223372036854775807)",
        id
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(id)
}

/// Every sink, or this one.
pub async fn list(db: &PgPool, id: Option<i64>) -> Result<SinkList, StoreError> {
    let rows = sqlx::query_as!(
        Row,
        r#"SELECT s.id, s.url, t.name AS "tenant?", s.kinds, s.state, s.note, s.created_by, s.created_at, c.txid::text AS "txid!", c.seq,
               (SELECT count(*) FROM event_deliveries d WHERE d.sink_id = s.id AND d.state = 'waiting') AS "waiting!",
               (SELECT count(*) FROM event_deliveries d WHERE d.sink_id = s.id AND d.state = 'dead') AS "dead!"
           FROM event_sinks s JOIN outbox_cursors c ON c.sink_id = s.id LEFT JOIN tenants t ON t.id = s.tenant_id
           WHERE $1::bigint IS NULL OR s.id = $1 ORDER BY s.id"#,
        id
    )
    .fetch_all(db)
    .await?;
    if let (Some(id), true) = (id, rows.is_empty()) {
        return Err(unknown(id));
    }
    let sinks = rows.into_iter().map(|row| Sink {
        id: row.id,
        url: row.url,
        tenant: row.tenant,
        types: row.kinds,
        state: row.state,
        note: row.note,
        created_by: row.created_by,
        created_at: row.created_at,
        cursor: format!("{}-{}", row.txid, row.seq),
        waiting: row.waiting,
        dead: row.dead,
    });
    Ok(SinkList { sinks: sinks.collect() })
}

/// Pauses a sink, or lets it be served again from where it was; a note is then forgotten.
pub async fn set_state(db: &PgPool, id: i64, state: &str, note: Option<&str>) -> Result<(), StoreError> {
    let done = sqlx::query!(
        "UPDATE event_sinks SET state = $2, note = $3, version = version + 1 WHERE id = $1",
        id,
        state,
        note
    )
    .execute(db)
    .await?;
    if done.rows_affected() == 0 { Err(unknown(id)) } else { Ok(()) }
}

/// Forgets a sink, with what waits for it and its dead letters.
pub async fn delete(db: &PgPool, id: i64) -> Result<(), StoreError> {
    let done = sqlx::query!("DELETE FROM event_sinks WHERE id = $1", id).execute(db).await?;
    if done.rows_affected() == 0 { Err(unknown(id)) } else { Ok(()) }
}

/// What a sink did not take, the oldest first.
pub async fn dead_letters(db: &PgPool, id: i64) -> Result<DeadLetterList, StoreError> {
    list(db, Some(id)).await?;
    let rows = sqlx::query!(
        r#"SELECT txid::text AS "txid!", seq, attempts, error, changed_at, event FROM event_deliveries
           WHERE sink_id = $1 AND state = 'dead' ORDER BY txid, seq LIMIT $2"#,
        id,
        DEAD_LETTERS_MAX
    )
    .fetch_all(db)
    .await?;
    let dead_letters = rows.into_iter().map(|row| DeadLetter {
        cursor: format!("{}-{}", row.txid, row.seq),
        attempts: row.attempts,
        error: row.error,
        given_up_at: row.changed_at,
        event: row.event,
    });
    Ok(DeadLetterList { dead_letters: dead_letters.collect() })
}

/// Has dead letters sent again: these, or without any named all. How many.
pub async fn replay(db: &PgPool, id: i64, cursors: &[Cursor]) -> Result<u64, StoreError> {
    list(db, Some(id)).await?;
    let txids: Vec<String> = cursors.iter().map(|c| c.txid.to_string()).collect();
    let seqs: Vec<i64> = cursors.iter().map(|c| c.seq).collect();
    let done = sqlx::query!(
        "UPDATE event_deliveries SET state = 'waiting', attempts = 0, next_at = compute_now(), changed_at = compute_now()
         WHERE sink_id = $1 AND state = 'dead' AND ($2::text[] = '{}' OR (txid, seq) IN (
             SELECT t::xid8, s FROM unnest($2::text[], $3::bigint[]) AS i (t, s)))",
        id,
        &txids,
        &seqs
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected())
}

fn unknown(id: i64) -> StoreError {
    ApiError::new(ErrorCode::NotFound, format!("there is no sink {id}"))
        .hint("`bctl sink list` lists them")
        .into()
}
