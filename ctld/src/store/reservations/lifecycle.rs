//! A reservation's life: it begins, it ends, it is cancelled.
//!
//! When it begins its amounts are in use: they enter the nodes' counters. When it ends they leave them, its bookings move to
//! history, and a job that is still in it goes on in its own name, charged for what it holds.

use super::super::leases::Authority;
use super::super::{StoreError, condition_value, quotas};
use crate::app::Caller;
use ctld_core::quota::Charge;
use proto::{ApiError, Condition, ErrorCode, Reason};
use sqlx::{PgConnection, PgPool};

/// What a step changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advanced {
    /// How many began.
    pub begun: usize,
    /// How many ended.
    pub ended: usize,
}

/// Begins and ends what is due.
pub async fn advance(right: &impl Authority) -> Result<Advanced, StoreError> {
    let mut tx = right.begin().await?;
    let ended = sqlx::query_scalar!(
        "SELECT id FROM reservations WHERE ended_at IS NULL AND upper(during) <= compute_now() ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"
    )
    .fetch_all(&mut *tx)
    .await?;
    let due = due(&mut tx, None).await?;
    let all: Vec<i64> = ended.iter().chain(&due).copied().collect();
    lock_amounts(&mut tx, &all).await?;
    let charges = end_all(&mut tx, &ended, "completed").await?;
    let begun = begin(&mut tx, &due).await?;
    charges.settle(&mut tx).await?;
    tx.commit().await?;
    forget_lateness(right.db()).await?;
    tell_waiting_jobs(right.db()).await?;
    Ok(Advanced { begun, ended: ended.len() })
}

/// Seconds until the next reservation begins or ends.
pub async fn next_s(db: &PgPool) -> Result<Option<f64>, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT extract(epoch FROM min(CASE state WHEN 'booked' THEN lower(during) ELSE upper(during) END) - compute_now())
               ::double precision AS s
           FROM reservations WHERE ended_at IS NULL"#
    )
    .fetch_one(db)
    .await?)
}

/// Begins those of these reservations, just booked under the locks of their nodes, whose time has come.
pub(super) async fn begin_due(tx: &mut PgConnection, ids: &[i64]) -> Result<usize, StoreError> {
    let due = due(tx, Some(ids)).await?;
    begin(tx, &due).await
}

/// Locks every reservation, or those of these, whose time has come and that has all its places: one that an overrun keeps
/// from some waits.
async fn due(tx: &mut PgConnection, ids: Option<&[i64]>) -> Result<Vec<i64>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT r.id FROM reservations r
         WHERE r.state = 'booked' AND lower(r.during) <= compute_now() AND upper(r.during) > compute_now()
             AND NOT EXISTS (SELECT FROM node_bookings b WHERE b.reservation_id = r.id AND b.allocation_id IS NULL
                 AND lower(b.during) > compute_now())
             AND ($1::bigint[] IS NULL OR r.id = ANY($1))
         ORDER BY r.id FOR NO KEY UPDATE SKIP LOCKED",
        ids
    )
    .fetch_all(tx)
    .await?)
}

/// Begins reservations whose nodes' amounts are locked.
async fn begin(tx: &mut PgConnection, due: &[i64]) -> Result<usize, StoreError> {
    let mut begun = 0;
    for id in due.iter().copied() {
        let mut savepoint = sqlx::Acquire::begin(&mut *tx).await?;
        match use_amounts(&mut savepoint, id).await {
            Ok(()) => {
                sqlx::query!(
                    // One that an overrun still keeps from a GPU says so until it has it.
                    "UPDATE reservations SET state = 'running', version = version + 1,
                         condition = CASE WHEN EXISTS (SELECT FROM device_bookings d
                             WHERE d.reservation_id = $1 AND lower(d.during) > compute_now()) THEN condition END
                     WHERE id = $1",
                    id
                )
                .execute(&mut *savepoint)
                .await?;
                savepoint.commit().await?;
                begun += 1;
            }
            // The counter's CHECK: what was to be over by now is not. It is tried again.
            Err(StoreError::Database(sqlx::Error::Database(error)))
                if error.code().as_deref() == Some("23514") =>
            {
                savepoint.rollback().await?;
                let why = Condition::new(Reason::Unschedulable, "jobs before it have not ended on its nodes");
                sqlx::query!(
                    "UPDATE reservations SET condition = $2, version = version + 1 WHERE id = $1 AND condition IS DISTINCT FROM $2",
                    id,
                    condition_value(&why)
                )
                .execute(&mut *tx)
                .await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(begun)
}

/// Locks the amounts of all their nodes, in one order.
async fn lock_amounts(tx: &mut PgConnection, ids: &[i64]) -> Result<(), StoreError> {
    sqlx::query!(
        "SELECT resource FROM node_resources
         WHERE node_id IN (SELECT node_id FROM node_bookings WHERE reservation_id = ANY($1))
         ORDER BY node_id, resource FOR UPDATE",
        ids
    )
    .fetch_all(tx)
    .await?;
    Ok(())
}

async fn use_amounts(tx: &mut PgConnection, id: i64) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE node_resources r SET allocated = r.allocated
             + CASE r.resource WHEN 'cpus' THEN b.cpus WHEN 'mem_mib' THEN b.mem_mib ELSE b.disk_mib END
         FROM node_bookings b WHERE b.reservation_id = $1 AND b.allocation_id IS NULL AND r.node_id = b.node_id",
        id
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// What the ends of reservations change in what tenants are charged.
#[derive(Default)]
struct Charges {
    given_back: Vec<(i32, Charge)>,
    taken_over: Vec<(i32, Charge)>,
}

impl Charges {
    /// The last act of the transaction.
    async fn settle(&self, tx: &mut PgConnection) -> Result<(), StoreError> {
        quotas::settle(tx, &self.given_back, &self.taken_over).await
    }
}

/// Ends reservations that the caller has locked, with their nodes' amounts.
async fn end_all(tx: &mut PgConnection, ids: &[i64], state: &str) -> Result<Charges, StoreError> {
    let mut charges = Charges::default();
    for id in ids {
        charges.taken_over.extend(quotas::take_over(tx, *id).await?);
        charges.given_back.push(end(tx, *id, state).await?);
    }
    Ok(charges)
}

/// Ends a reservation that its caller has locked, with its nodes' amounts. Returns what is to be given back, and to which
/// tenant.
async fn end(tx: &mut PgConnection, id: i64, state: &str) -> Result<(i32, Charge), StoreError> {
    // What is still inside goes on in its own name; what it has is at most what the reservation had.
    sqlx::query!(
        "UPDATE node_resources r SET allocated = r.allocated + u.inside - u.reserved
         FROM (SELECT b.node_id, x.resource,
                   coalesce(sum(x.amount) FILTER (WHERE b.allocation_id IS NOT NULL), 0)::bigint AS inside,
                   coalesce(sum(x.amount) FILTER (WHERE b.allocation_id IS NULL AND v.state = 'running'), 0)::bigint AS reserved
               FROM node_bookings b JOIN reservations v ON v.id = b.reservation_id,
                   LATERAL (VALUES ('cpus', b.cpus::bigint), ('mem_mib', b.mem_mib), ('disk_mib', b.disk_mib))
                       AS x(resource, amount)
               WHERE b.reservation_id = $1 GROUP BY b.node_id, x.resource) u
         WHERE r.node_id = u.node_id AND r.resource = u.resource",
        id
    )
    .execute(&mut *tx)
    .await?;
    for statement in [
        "UPDATE allocations SET reservation_id = NULL WHERE reservation_id = $1 AND released_at IS NULL",
        "UPDATE node_bookings SET reservation_id = NULL WHERE reservation_id = $1 AND allocation_id IS NOT NULL",
        "UPDATE device_bookings SET reservation_id = NULL WHERE reservation_id = $1 AND allocation_id IS NOT NULL",
    ] {
        sqlx::query(statement).bind(id).execute(&mut *tx).await?;
    }
    sqlx::query!(
        "WITH gone AS (DELETE FROM node_bookings WHERE reservation_id = $1 RETURNING *)
         INSERT INTO node_bookings_history (reservation_id, node_id, cpus, mem_mib, disk_mib, during)
         SELECT reservation_id, node_id, cpus, mem_mib, disk_mib,
             tstzrange(lower(during), LEAST(upper(during), compute_now()))
         FROM gone WHERE lower(during) < compute_now()",
        id
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "WITH gone AS (DELETE FROM device_bookings WHERE reservation_id = $1 RETURNING *)
         INSERT INTO device_bookings_history (reservation_id, gpu_id, span, during, atom, kind)
         SELECT reservation_id, gpu_id, span, tstzrange(lower(during), LEAST(upper(during), compute_now())), atom, kind
         FROM gone WHERE lower(during) < compute_now()",
        id
    )
    .execute(&mut *tx)
    .await?;
    let ended = sqlx::query!(
        "UPDATE reservations SET state = $2, ended_at = compute_now(), version = version + 1 WHERE id = $1
         RETURNING tenant_id, charge",
        id,
        state
    )
    .fetch_one(tx)
    .await?;
    Ok((ended.tenant_id, quotas::charge_from("reservations", &ended.charge)?))
}

/// A reservation that has all its GPUs by now no longer says that it lacks one. What is behind a job inside is not late.
async fn forget_lateness(db: &PgPool) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE reservations r SET condition = NULL, version = version + 1
         WHERE r.state = 'running' AND r.condition IS NOT NULL AND NOT EXISTS (
             SELECT FROM device_bookings d WHERE d.reservation_id = r.id AND lower(d.during) > compute_now()
                 AND NOT EXISTS (SELECT FROM device_bookings n WHERE n.reservation_id = r.id AND n.gpu_id = d.gpu_id
                     AND n.span && d.span AND n.during @> compute_now()))"
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Tells jobs that wait for a reservation that has ended. In a transaction of its own, since jobs are locked before
/// reservations; done at every look, so that none is forgotten.
async fn tell_waiting_jobs(db: &PgPool) -> Result<(), StoreError> {
    sqlx::query!(
        "WITH waiting AS (
             SELECT j.id, r.name FROM jobs j JOIN reservations r ON r.id = j.reservation_id
             WHERE NOT isempty(j.pending) AND j.active = 0 AND j.hold IS NULL AND r.ended_at IS NOT NULL
                 AND (j.condition->>'reason' IS DISTINCT FROM $1 OR j.condition->>'message' NOT LIKE '%has ended;%')
             ORDER BY j.id LIMIT 1000 FOR UPDATE OF j
         )
         UPDATE jobs j SET version = j.version + 1, condition = jsonb_build_object('reason', $1::text, 'message',
             format('its reservation, %s, has ended; cancel the job or submit it without one', w.name))
         FROM waiting w WHERE j.id = w.id",
        Reason::Reservation.name()
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Cancels the reservations of this name, all occurrences that have not ended. The caller must own them or be an operator.
pub async fn cancel(db: &PgPool, caller: &Caller, name: &str) -> Result<Vec<i64>, StoreError> {
    let mut tx = db.begin().await?;
    let rows = sqlx::query!(
        "SELECT id, owner FROM reservations WHERE name = $1 AND ended_at IS NULL ORDER BY id FOR NO KEY UPDATE",
        name
    )
    .fetch_all(&mut *tx)
    .await?;
    if rows.is_empty() {
        return Err(super::unknown(name));
    }
    if let Some(row) = rows.iter().find(|row| row.owner != caller.user && !caller.operator) {
        let message = format!("reservation \"{name}\" belongs to {}", row.owner);
        return Err(ApiError::new(ErrorCode::PermissionDenied, message).into());
    }
    let ids: Vec<i64> = rows.into_iter().map(|row| row.id).collect();
    lock_amounts(&mut tx, &ids).await?;
    let charges = end_all(&mut tx, &ids, "cancelled").await?;
    charges.settle(&mut tx).await?;
    tx.commit().await?;
    tell_waiting_jobs(db).await?;
    Ok(ids)
}
