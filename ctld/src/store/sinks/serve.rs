//! Serving a sink: what it is to get, and what became of it, saved in one fenced transaction a round.
//!
//! A round that is not saved is made again: at least once. What a sink did not take stands in `event_deliveries`, and everything
//! later of the same subject behind it; so one bad event holds back nothing but its own subject.

use crate::store::StoreError;
use crate::store::events::Filter;
use crate::store::leases::Authority;
use proto::Cursor;
use sqlx::PgPool;

/// A sink that is to be served.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// Its number.
    pub id: i64,
    /// Raised by whatever changes it.
    pub version: i64,
    /// Where events go.
    pub url: String,
    /// The key of the signatures.
    pub secret: String,
    /// What it gets.
    pub filter: Filter,
    /// Up to where it has been served.
    pub cursor: Cursor,
}

/// An event that is to be tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// Its place.
    pub cursor: Cursor,
    /// What it is about.
    pub subject: String,
    /// The event.
    pub event: serde_json::Value,
    /// How often it was tried.
    pub attempts: i32,
}

/// An event that was not taken, or stands behind one that was not.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// The event, and how often it was tried by now.
    pub waiting: Waiting,
    /// In how long it is tried again; `None`: never, a dead letter.
    pub again_in_s: Option<f64>,
    /// Why it was not taken.
    pub error: Option<String>,
}

/// What became of a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// Those of the waiting that were taken.
    pub taken: Vec<Cursor>,
    /// Those that were not.
    pub failed: Vec<Failed>,
    /// Up to where the sink is served now.
    pub cursor: Cursor,
    /// Why it is to be paused.
    pub pause: Option<String>,
}

/// The sinks that are to be served.
pub async fn active(db: &PgPool) -> Result<Vec<Serving>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT s.id, s.version, s.url, s.secret, s.tenant_id, s.kinds, c.txid::text AS "txid!", c.seq
           FROM event_sinks s JOIN outbox_cursors c ON c.sink_id = s.id WHERE s.state = 'active' ORDER BY s.id"#
    )
    .fetch_all(db)
    .await?;
    let serving = rows.into_iter().map(|row| {
        Ok(Serving {
            id: row.id,
            version: row.version,
            url: row.url,
            secret: row.secret,
            filter: Filter { tenant_id: row.tenant_id, kinds: row.kinds, ..Filter::default() },
            cursor: cursor("outbox_cursors", &row.txid, row.seq)?,
        })
    });
    serving.collect()
}

/// What is to be tried again now: the first of each subject.
pub async fn due(db: &PgPool, id: i64, limit: i64) -> Result<Vec<Waiting>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT txid::text AS "txid!", seq AS "seq!", subject AS "subject!", event AS "event!", attempts AS "attempts!" FROM (
               SELECT DISTINCT ON (subject) txid, seq, subject, event, attempts, next_at FROM event_deliveries
               WHERE sink_id = $1 AND state = 'waiting' ORDER BY subject, txid, seq) first
           WHERE next_at <= compute_now() ORDER BY txid, seq LIMIT $2"#,
        id,
        limit
    )
    .fetch_all(db)
    .await?;
    let waiting = rows.into_iter().map(|row| {
        Ok(Waiting {
            cursor: cursor("event_deliveries", &row.txid, row.seq)?,
            subject: row.subject,
            event: row.event,
            attempts: row.attempts,
        })
    });
    waiting.collect()
}

/// The subjects of which something waits: what comes of them later must wait too.
pub async fn waiting_subjects(db: &PgPool, id: i64) -> Result<Vec<String>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT DISTINCT subject FROM event_deliveries WHERE sink_id = $1 AND state = 'waiting'",
        id
    )
    .fetch_all(db)
    .await?)
}

/// Seconds until the next try.
pub async fn next_s(db: &PgPool, id: i64) -> Result<Option<f64>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT extract(epoch FROM min(next_at) - compute_now())::double precision FROM (
             SELECT DISTINCT ON (subject) next_at FROM event_deliveries
             WHERE sink_id = $1 AND state = 'waiting' ORDER BY subject, txid, seq) first",
        id
    )
    .fetch_one(db)
    .await?)
}

/// Saves a round.
pub async fn save(authority: &impl Authority, id: i64, round: &Round) -> Result<(), StoreError> {
    let mut tx = authority.begin().await?;
    let txids: Vec<String> = round.taken.iter().map(|c| c.txid.to_string()).collect();
    let seqs: Vec<i64> = round.taken.iter().map(|c| c.seq).collect();
    sqlx::query!(
        "DELETE FROM event_deliveries d USING unnest($2::text[], $3::bigint[]) AS i (t, s)
         WHERE d.sink_id = $1 AND d.txid = i.t::xid8 AND d.seq = i.s",
        id,
        &txids,
        &seqs
    )
    .execute(&mut *tx)
    .await?;
    let each = || round.failed.iter();
    let txids: Vec<String> = each().map(|f| f.waiting.cursor.txid.to_string()).collect();
    let seqs: Vec<i64> = each().map(|f| f.waiting.cursor.seq).collect();
    let subjects: Vec<String> = each().map(|f| f.waiting.subject.clone()).collect();
    let events: Vec<serde_json::Value> = each().map(|f| f.waiting.event.clone()).collect();
    let attempts: Vec<i32> = each().map(|f| f.waiting.attempts).collect();
    let again: Vec<Option<f64>> = each().map(|f| f.again_in_s).collect();
    let errors: Vec<Option<String>> = each().map(|f| f.error.clone()).collect();
    // A sink that was deleted meanwhile has nothing to save.
    sqlx::query!(
        "INSERT INTO event_deliveries AS d (sink_id, txid, seq, subject, event, state, attempts, next_at, error)
         SELECT $1, i.t::xid8, i.s, i.subject, i.event, CASE WHEN i.again IS NULL THEN 'dead' ELSE 'waiting' END, i.attempts,
             compute_now() + make_interval(secs => coalesce(i.again, 0)), i.error
         FROM unnest($2::text[], $3::bigint[], $4::text[], $5::jsonb[], $6::int[], $7::double precision[], $8::text[])
             AS i (t, s, subject, event, attempts, again, error)
         WHERE EXISTS (SELECT 1 FROM event_sinks WHERE id = $1)
         ON CONFLICT (sink_id, txid, seq) DO UPDATE SET state = excluded.state, attempts = excluded.attempts,
             next_at = excluded.next_at, error = excluded.error, changed_at = compute_now()",
        id,
        &txids,
        &seqs,
        &subjects,
        &events,
        &attempts,
        &again as &[Option<f64>],
        &errors as &[Option<String>]
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE outbox_cursors SET txid = $2::text::xid8, seq = $3, saved_at = compute_now()
         WHERE sink_id = $1 AND (txid, seq) < ($2::text::xid8, $3::bigint)",
        id,
        round.cursor.txid.to_string(),
        round.cursor.seq
    )
    .execute(&mut *tx)
    .await?;
    if let Some(why) = &round.pause {
        sqlx::query!(
            "UPDATE event_sinks SET state = 'paused', note = $2, version = version + 1 WHERE id = $1 AND state = 'active'",
            id,
            why
        )
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    Ok(())
}

fn cursor(table: &'static str, txid: &str, seq: i64) -> Result<Cursor, StoreError> {
    let txid = txid.parse().map_err(|_| crate::store::row_error(table, "txid", txid))?;
    Ok(Cursor { txid, seq })
}
