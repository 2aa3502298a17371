//! Submissions: a batch of them in one transaction, each under its idempotency key.
//!
//! A key that is new gets a job; a key seen before gets the job it named then, if the body is the same, and CONFLICT
//! otherwise. Two statements: the first inserts keys, jobs and scripts; only when some keys were not new, the second looks
//! them up, with a snapshot that sees whoever inserted them.

use super::{StoreError, condition_value};
use chrono::{DateTime, Utc};
use ctld_core::admission::Admitted;
use proto::api::{Begin, Submission, Submitted};
use proto::{ApiError, Condition, ErrorCode, IndexSet, Reason};
use sha2::{Digest, Sha256};
use sqlx::PgPool;
use std::collections::HashMap;

/// A submission that passed admission.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Who is billed.
    pub tenant_id: i32,
    /// Who submits.
    pub user: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// What was asked.
    pub submission: Submission,
    /// What admission made of it.
    pub admitted: Admitted,
    /// The reservation it runs in.
    pub reservation_id: Option<i64>,
}

type Key = (i32, String, String);

/// The work of a job that is no array: the one task 0.
fn indices(submission: &Submission) -> IndexSet {
    submission.array.as_ref().map_or_else(|| IndexSet::one(0), |array| array.indices.clone())
}

/// The hash that tells whether two requests under one key are the same.
fn body_hash(json: &str) -> Vec<u8> {
    Sha256::digest(json.as_bytes()).to_vec()
}

/// Stores a batch and answers each submission in order. Nothing is stored if this is an error; when the connection fails
/// during the commit it may have been, and the same batch may be tried again: its keys make that safe.
pub async fn commit(db: &PgPool, batch: &[Prepared]) -> Result<Vec<Result<Submitted, ApiError>>, StoreError> {
    let bodies: Vec<String> = batch
        .iter()
        .map(|p| serde_json::to_string(&p.submission).map_err(|e| sqlx::Error::Encode(e.into())))
        .collect::<Result<_, _>>()?;
    let hashes: Vec<Vec<u8>> = bodies.iter().map(|body| body_hash(body)).collect();
    let key_of = |i: usize| -> Key {
        (batch[i].tenant_id, batch[i].user.clone(), batch[i].submission.idempotency_key.clone())
    };

    // 1. One entry a key, in key order, so that two batches with the same keys cannot wait for each other.
    let mut first_of: HashMap<Key, usize> = HashMap::new();
    for i in 0..batch.len() {
        first_of.entry(key_of(i)).or_insert(i);
    }
    let mut firsts: Vec<usize> = first_of.values().copied().collect();
    firsts.sort_by_cached_key(|&i| key_of(i));

    // 2. Insert what is new, look up what is not.
    let mut stored: HashMap<usize, (Option<i64>, Vec<u8>, bool)> = HashMap::new();
    for (i, job_id) in insert(db, batch, &bodies, &hashes, &firsts).await? {
        stored.insert(i, (Some(job_id), hashes[i].clone(), false));
    }
    let seen: Vec<usize> = firsts.iter().copied().filter(|i| !stored.contains_key(i)).collect();
    if !seen.is_empty() {
        let found = look_up(db, &seen.iter().map(|&i| key_of(i)).collect::<Vec<_>>()).await?;
        for (&i, (job_id, hash)) in seen.iter().zip(found) {
            stored.insert(i, (job_id, hash, true));
        }
    }

    // 3. Answer each, also those that share a key within the batch.
    Ok((0..batch.len())
        .map(|i| {
            let first = first_of[&key_of(i)];
            let (job_id, hash, replayed) = &stored[&first];
            let key = &batch[i].submission.idempotency_key;
            let other = match job_id {
                Some(id) if *hash == hashes[i] => {
                    return Ok(Submitted { id: *id, replayed: *replayed || first != i });
                }
                Some(id) => format!("names job {id}, which was submitted with another content"),
                None => "names another operation, which was no submission".to_owned(),
            };
            Err(ApiError::new(ErrorCode::Conflict, format!("idempotency key \"{key}\" {other}"))
                .hint("use another key for another job"))
        })
        .collect())
}

/// The columns of the insert, one vector each.
#[derive(Default)]
struct Columns {
    ord: Vec<i32>,
    tenant_id: Vec<i32>,
    user: Vec<String>,
    key: Vec<String>,
    hash: Vec<Vec<u8>>,
    account: Vec<Option<String>>,
    uid: Vec<i64>,
    gid: Vec<i64>,
    pool_id: Vec<i32>,
    name: Vec<String>,
    cpus: Vec<i32>,
    mem_mib: Vec<i64>,
    exclusive: Vec<bool>,
    mem_all: Vec<bool>,
    gpus: Vec<i32>,
    gpu_type: Vec<Option<String>>,
    node_count: Vec<i32>,
    time_limit_s: Vec<Option<i64>>,
    nice: Vec<i32>,
    priority: Vec<i64>,
    requeue: Vec<bool>,
    hold: Vec<Option<String>>,
    begin_at: Vec<Option<DateTime<Utc>>>,
    begin_after_s: Vec<Option<f64>>,
    is_array: Vec<bool>,
    indices: Vec<String>,
    throttle: Vec<Option<i32>>,
    condition: Vec<serde_json::Value>,
    comment: Vec<Option<String>>,
    body: Vec<String>,
    disk_mib: Vec<i64>,
    reservation_id: Vec<Option<i64>>,
}

impl Columns {
    fn push(&mut self, ord: usize, prepared: &Prepared, body: &str, hash: &[u8]) {
        let Prepared { tenant_id, user, uid, gid, submission: job, admitted, reservation_id } = prepared;
        let reason = match (job.hold, reservation_id) {
            (true, _) => Reason::HeldByUser,
            (false, Some(_)) => Reason::Reservation,
            (false, None) => Reason::Priority,
        };
        // Admission keeps every count below a million: the casts lose nothing.
        self.ord.push(ord as i32);
        self.tenant_id.push(*tenant_id);
        self.user.push(user.clone());
        self.key.push(job.idempotency_key.clone());
        self.hash.push(hash.to_vec());
        self.account.push(job.account.clone());
        self.uid.push(i64::from(*uid));
        self.gid.push(i64::from(*gid));
        self.pool_id.push(admitted.pool_id);
        self.name.push(job.name.clone());
        self.cpus.push(job.cpus as i32);
        self.mem_mib.push(admitted.mem_mib as i64);
        self.exclusive.push(job.exclusive);
        self.mem_all.push(job.mem_all);
        self.gpus.push(job.gpus as i32);
        self.gpu_type.push(job.gpu_type.clone());
        self.node_count.push(job.nodes as i32);
        self.time_limit_s.push(admitted.time_limit_s.map(|s| s as i64));
        self.nice.push(job.nice);
        self.priority.push(admitted.priority);
        self.requeue.push(job.requeue);
        self.hold.push(job.hold.then(|| "user".to_owned()));
        let (at, after) = match job.begin {
            Some(Begin::At(at)) => (Some(at), None),
            Some(Begin::AfterS(s)) => (None, Some(s as f64)),
            None => (None, None),
        };
        self.begin_at.push(at);
        self.begin_after_s.push(after);
        self.is_array.push(job.array.is_some());
        self.indices.push(indices(job).to_multirange());
        self.throttle.push(job.array.as_ref().and_then(|a| a.throttle).map(|t| t as i32));
        self.condition.push(condition_value(&Condition::plain(reason)));
        self.comment.push(job.comment.clone());
        self.body.push(body.to_owned());
        self.disk_mib.push(job.disk_mib as i64);
        self.reservation_id.push(*reservation_id);
    }
}

async fn insert(
    db: &PgPool,
    batch: &[Prepared],
    bodies: &[String],
    hashes: &[Vec<u8>],
    firsts: &[usize],
) -> Result<Vec<(usize, i64)>, StoreError> {
    let mut c = Columns::default();
    for &i in firsts {
        c.push(i, &batch[i], &bodies[i], &hashes[i]);
    }
    let rows = sqlx::query_file!(
        "src/store/sql/submit.sql",
        &c.ord,
        &c.tenant_id,
        &c.user,
        &c.key,
        &c.hash,
        &c.account as &[Option<String>],
        &c.uid,
        &c.gid,
        &c.pool_id,
        &c.name,
        &c.cpus,
        &c.mem_mib,
        &c.exclusive,
        &c.mem_all,
        &c.gpus,
        &c.gpu_type as &[Option<String>],
        &c.node_count,
        &c.time_limit_s as &[Option<i64>],
        &c.nice,
        &c.priority,
        &c.requeue,
        &c.hold as &[Option<String>],
        &c.begin_at as &[Option<DateTime<Utc>>],
        &c.begin_after_s as &[Option<f64>],
        &c.is_array,
        &c.indices,
        &c.throttle as &[Option<i32>],
        &c.condition,
        &c.comment as &[Option<String>],
        &c.body,
        &c.disk_mib,
        &c.reservation_id as &[Option<i64>],
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.ord as usize, row.job_id)).collect())
}

/// What these keys name: a job, or `None` for another operation. Every key must exist: an insert has just met it.
async fn look_up(db: &PgPool, keys: &[Key]) -> Result<Vec<(Option<i64>, Vec<u8>)>, StoreError> {
    let tenants: Vec<i32> = keys.iter().map(|k| k.0).collect();
    let identities: Vec<String> = keys.iter().map(|k| k.1.clone()).collect();
    let names: Vec<String> = keys.iter().map(|k| k.2.clone()).collect();
    let rows = sqlx::query!(
        "SELECT k.job_id, k.body_hash
         FROM unnest($1::int[], $2::text[], $3::text[]) WITH ORDINALITY AS i(tenant_id, identity, key, ord)
         JOIN idempotency_keys k USING (tenant_id, identity, key) ORDER BY i.ord",
        &tenants,
        &identities,
        &names,
    )
    .fetch_all(db)
    .await?;
    if rows.len() != keys.len() {
        return Err(StoreError::Database(sqlx::Error::RowNotFound));
    }
    Ok(rows.into_iter().map(|row| (row.job_id, row.body_hash)).collect())
}
