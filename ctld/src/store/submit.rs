//! Submissions: a batch of them in one transaction, each under its idempotency key.
//!
//! A key that is new gets a job; a key seen before gets the job it named then, if the body is the same, and CONFLICT
//! otherwise. One statement inserts keys, jobs and scripts, the next charges them to their tenants; what is over a quota is
//! refused and leaves nothing, not even its key. Only when some keys were not new, they are looked up, with a snapshot that
//! sees whoever inserted them.

use super::quotas::{self, Ask};
use super::{StoreError, condition_value};
use chrono::{DateTime, Utc};
use ctld_core::admission::Admitted;
use ctld_core::gpu_share::GpuShare;
use ctld_core::quota::{Asked, Charge, Resource, charge};
use proto::api::{Begin, Submission, Submitted};
use proto::{ApiError, Condition, ErrorCode, IndexSet, Reason};
use sha2::{Digest, Sha256};
use sqlx::{PgConnection, PgPool};
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

/// What became of a key.
enum Outcome {
    /// It names this job, or, where there is none, another operation; under this hash; it did before, or does now.
    Named { job_id: Option<i64>, hash: Vec<u8>, replayed: bool },
    /// Nothing was stored.
    Refused(ApiError),
}

/// What a job's tasks are charged: each, and all.
struct Charges {
    each: Charge,
    all: Charge,
}

/// A job in a reservation takes from what the reservation is charged, and counts as a job alone.
fn charges(prepared: &Prepared) -> Result<Charges, ApiError> {
    let Prepared { submission: job, admitted, reservation_id, .. } = prepared;
    let asked = Asked {
        node_count: job.nodes,
        cpus: job.cpus.into(),
        mem_mib: admitted.mem_mib,
        disk_mib: job.disk_mib,
        atoms: job.gpus,
        share: GpuShare::ONE,
        model: job.gpu_type.clone(),
    };
    let each = match reservation_id {
        Some(_) => Ok([(Resource::Jobs, 1)].into_iter().collect()),
        None => charge(&asked),
    };
    let all = each.clone().and_then(|each: Charge| each.times(indices(job).len()));
    let countable = each.and_then(|each| Ok(Charges { each, all: all? }));
    countable.map_err(|error| ApiError::new(ErrorCode::TooLarge, error.to_string()).hint("ask for less"))
}

/// Stores a batch and answers each submission in order. Nothing is stored if this is an error; when the connection fails
/// during the commit it may have been, and the same batch may be tried again: its keys make that safe.
pub async fn commit(db: &PgPool, batch: &[Prepared]) -> Result<Vec<Result<Submitted, ApiError>>, StoreError> {
    let bodies: Vec<String> = batch
        .iter()
        .map(|p| serde_json::to_string(&p.submission).map_err(|e| sqlx::Error::Encode(e.into())))
        .collect::<Result<_, _>>()?;
    let hashes: Vec<Vec<u8>> = bodies.iter().map(|body| body_hash(body)).collect();
    let keys: Vec<Key> =
        batch.iter().map(|p| (p.tenant_id, p.user.clone(), p.submission.idempotency_key.clone())).collect();

    // 1. One entry a key.
    let mut first_of: HashMap<&Key, usize> = HashMap::new();
    for (i, key) in keys.iter().enumerate() {
        first_of.entry(key).or_insert(i);
    }
    let mut outcomes: HashMap<usize, Outcome> = HashMap::new();
    let mut fresh: Vec<(usize, Charges)> = Vec::new();
    for i in (0..batch.len()).filter(|i| first_of[&keys[*i]] == *i) {
        match charges(&batch[i]) {
            Ok(charges) => fresh.push((i, charges)),
            Err(error) => {
                outcomes.insert(i, Outcome::Refused(error));
            }
        }
    }

    // 2. What is over its quota for all one can see is refused before anything is written.
    look(db, batch, &keys, &mut fresh, &mut outcomes).await?;

    // 3. Insert what is new, in key order, so that two batches with the same keys cannot wait for each other; charge it, and
    // withdraw what is not within its quota after all.
    fresh.sort_by(|(a, _), (b, _)| keys[*a].cmp(&keys[*b]));
    store(db, batch, &bodies, &hashes, &fresh, &mut outcomes).await?;

    // 4. Look up what is not new.
    let seen: Vec<usize> = fresh.iter().map(|(i, _)| *i).filter(|i| !outcomes.contains_key(i)).collect();
    let found = look_up(db, &keys, &seen).await?;
    if found.len() != seen.len() {
        // An insert has just met every one of them.
        return Err(StoreError::Database(sqlx::Error::RowNotFound));
    }
    outcomes.extend(found);

    // 5. Answer each, also those that share a key within the batch.
    Ok((0..batch.len())
        .map(|i| {
            let first = first_of[&keys[i]];
            let key = &batch[i].submission.idempotency_key;
            let other = match &outcomes[&first] {
                Outcome::Named { job_id: Some(id), hash, replayed } if *hash == hashes[i] => {
                    return Ok(Submitted { id: *id, replayed: *replayed || first != i });
                }
                Outcome::Refused(error) if hashes[first] == hashes[i] => return Err(error.clone()),
                Outcome::Named { job_id: Some(id), .. } => {
                    format!("names job {id}, which was submitted with another content")
                }
                Outcome::Named { job_id: None, .. } => {
                    "names another operation, which was no submission".to_owned()
                }
                Outcome::Refused(_) => "is used twice at once, with different contents".to_owned(),
            };
            Err(ApiError::new(ErrorCode::Conflict, format!("idempotency key \"{key}\" {other}"))
                .hint("use another key for another job"))
        })
        .collect())
}

/// Takes out of `fresh` what a look without locks refuses. A key that is known is no new charge, whatever the quota is now.
async fn look(
    db: &PgPool,
    batch: &[Prepared],
    keys: &[Key],
    fresh: &mut Vec<(usize, Charges)>,
    outcomes: &mut HashMap<usize, Outcome>,
) -> Result<(), StoreError> {
    let standings = quotas::standings(db, &asks(batch, fresh)).await?;
    if standings.is_empty() || quotas::judge(&standings, &asks(batch, fresh)).iter().all(Result::is_ok) {
        return Ok(());
    }
    let indices: Vec<usize> = fresh.iter().map(|(i, _)| *i).collect();
    outcomes.extend(look_up(db, keys, &indices).await?);
    fresh.retain(|(i, _)| !outcomes.contains_key(i));
    let answers = quotas::judge(&standings, &asks(batch, fresh));
    for ((i, _), answer) in fresh.iter().zip(answers) {
        if let Err(error) = answer {
            outcomes.insert(*i, Outcome::Refused(error));
        }
    }
    fresh.retain(|(i, _)| !outcomes.contains_key(i));
    Ok(())
}

fn asks<'a>(batch: &[Prepared], fresh: &'a [(usize, Charges)]) -> Vec<Ask<'a>> {
    fresh.iter().map(|(i, charges)| Ask { tenant_id: batch[*i].tenant_id, charge: &charges.all }).collect()
}

/// Inserts jobs and charges them in one transaction.
async fn store(
    db: &PgPool,
    batch: &[Prepared],
    bodies: &[String],
    hashes: &[Vec<u8>],
    fresh: &[(usize, Charges)],
    outcomes: &mut HashMap<usize, Outcome>,
) -> Result<(), StoreError> {
    if fresh.is_empty() {
        return Ok(());
    }
    let mut columns = Columns::default();
    for (i, charges) in fresh {
        columns.push(*i, &batch[*i], &bodies[*i], &hashes[*i], &charges.each);
    }
    let mut tx = db.begin().await?;
    let mut inserted = columns.insert(&mut tx).await?;
    // Whose came first is charged first.
    inserted.sort_unstable();
    let charges: HashMap<usize, &Charges> = fresh.iter().map(|(i, charges)| (*i, charges)).collect();
    let asks: Vec<Ask<'_>> = inserted
        .iter()
        .map(|(i, _)| Ask { tenant_id: batch[*i].tenant_id, charge: &charges[i].all })
        .collect();
    let mut over = Vec::new();
    for ((i, job_id), answer) in inserted.iter().zip(quotas::charge(&mut tx, &asks).await?) {
        let outcome = match answer {
            Ok(()) => Outcome::Named { job_id: Some(*job_id), hash: hashes[*i].clone(), replayed: false },
            Err(error) => {
                over.push((*i, *job_id));
                Outcome::Refused(error)
            }
        };
        outcomes.insert(*i, outcome);
    }
    withdraw(&mut tx, batch, &over).await?;
    tx.commit().await?;
    Ok(())
}

/// Takes jobs back that this transaction inserted: nothing is left of them.
async fn withdraw(
    tx: &mut PgConnection,
    batch: &[Prepared],
    over: &[(usize, i64)],
) -> Result<(), StoreError> {
    if over.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = over.iter().map(|(_, job_id)| *job_id).collect();
    let tenants: Vec<i32> = over.iter().map(|(i, _)| batch[*i].tenant_id).collect();
    let identities: Vec<String> = over.iter().map(|(i, _)| batch[*i].user.clone()).collect();
    let keys: Vec<String> = over.iter().map(|(i, _)| batch[*i].submission.idempotency_key.clone()).collect();
    sqlx::query!(
        "WITH scripts AS (DELETE FROM job_scripts WHERE job_id = ANY($1)),
              keys AS (DELETE FROM idempotency_keys k USING unnest($2::int[], $3::text[], $4::text[]) AS i(tenant_id, identity, key)
                  WHERE k.tenant_id = i.tenant_id AND k.identity = i.identity AND k.key = i.key)
         DELETE FROM jobs WHERE id = ANY($1)",
        &ids,
        &tenants,
        &identities,
        &keys
    )
    .execute(tx)
    .await?;
    Ok(())
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
    charge: Vec<serde_json::Value>,
}

impl Columns {
    fn push(&mut self, ord: usize, prepared: &Prepared, body: &str, hash: &[u8], charge: &Charge) {
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
        self.charge.push(quotas::charge_value(charge));
    }

    /// Inserts what has a new key: ordinals and jobs.
    async fn insert(&self, tx: &mut PgConnection) -> Result<Vec<(usize, i64)>, StoreError> {
        let rows = sqlx::query_file!(
            "src/store/sql/submit.sql",
            &self.ord,
            &self.tenant_id,
            &self.user,
            &self.key,
            &self.hash,
            &self.account as &[Option<String>],
            &self.uid,
            &self.gid,
            &self.pool_id,
            &self.name,
            &self.cpus,
            &self.mem_mib,
            &self.exclusive,
            &self.mem_all,
            &self.gpus,
            &self.gpu_type as &[Option<String>],
            &self.node_count,
            &self.time_limit_s as &[Option<i64>],
            &self.nice,
            &self.priority,
            &self.requeue,
            &self.hold as &[Option<String>],
            &self.begin_at as &[Option<DateTime<Utc>>],
            &self.begin_after_s as &[Option<f64>],
            &self.is_array,
            &self.indices,
            &self.throttle as &[Option<i32>],
            &self.condition,
            &self.comment as &[Option<String>],
            &self.body,
            &self.disk_mib,
            &self.reservation_id as &[Option<i64>],
            &self.charge,
        )
        .fetch_all(tx)
        .await?;
        Ok(rows.into_iter().map(|row| (row.ord as usize, row.job_id)).collect())
    }
}

/// The job that this very submission made before, if it did: what it was answered then holds for ever, whatever has changed.
pub async fn replayed(
    db: &PgPool,
    tenant_id: i32,
    user: &str,
    submission: &Submission,
) -> Result<Option<Submitted>, StoreError> {
    let body = serde_json::to_string(submission).map_err(|e| sqlx::Error::Encode(e.into()))?;
    let key = (tenant_id, user.to_owned(), submission.idempotency_key.clone());
    Ok(match look_up(db, &[key], &[0]).await?.pop() {
        Some((_, Outcome::Named { job_id: Some(id), hash, .. })) if hash == body_hash(&body) => {
            Some(Submitted { id, replayed: true })
        }
        _ => None,
    })
}

/// What the keys of these submissions name: a job, or another operation. Those that name nothing are missing.
async fn look_up(db: &PgPool, keys: &[Key], indices: &[usize]) -> Result<Vec<(usize, Outcome)>, StoreError> {
    if indices.is_empty() {
        return Ok(Vec::new());
    }
    let tenants: Vec<i32> = indices.iter().map(|i| keys[*i].0).collect();
    let identities: Vec<String> = indices.iter().map(|i| keys[*i].1.clone()).collect();
    let names: Vec<String> = indices.iter().map(|i| keys[*i].2.clone()).collect();
    let rows = sqlx::query!(
        r#"SELECT i.ord AS "ord!", k.job_id, k.body_hash
           FROM unnest($1::int[], $2::text[], $3::text[]) WITH ORDINALITY AS i(tenant_id, identity, key, ord)
           JOIN idempotency_keys k USING (tenant_id, identity, key)"#,
        &tenants,
        &identities,
        &names,
    )
    .fetch_all(db)
    .await?;
    let found = rows.into_iter().map(|row| {
        let named = Outcome::Named { job_id: row.job_id, hash: row.body_hash, replayed: true };
        (indices[row.ord as usize - 1], named)
    });
    Ok(found.collect())
}
