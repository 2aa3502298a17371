//! Looking at reservations.

use super::super::{StoreError, row_error};
use proto::api::{Reservation, ReservationList, ReservedNode};
use proto::{Condition, GpuAtom};
use sqlx::{PgConnection, PgPool};

/// Every reservation that has not ended, or with `ended` also the others, by beginning.
pub async fn list(db: &PgPool, ended: bool) -> Result<ReservationList, StoreError> {
    let mut db = db.acquire().await?;
    let ids = sqlx::query_scalar!(
        "SELECT id FROM reservations WHERE $1 OR ended_at IS NULL ORDER BY lower(during) DESC, id DESC LIMIT 10000",
        ended
    )
    .fetch_all(&mut *db)
    .await?;
    by_ids(&mut db, &ids).await
}

/// The reservations of this name that have not ended; or, if all have, the last that did.
pub async fn named(db: &PgPool, name: &str) -> Result<ReservationList, StoreError> {
    let mut db = db.acquire().await?;
    let ids = sqlx::query_scalar!(
        "SELECT id FROM reservations WHERE name = $1 AND (ended_at IS NULL
             OR id = (SELECT max(id) FROM reservations WHERE name = $1) AND NOT EXISTS
                 (SELECT FROM reservations WHERE name = $1 AND ended_at IS NULL))",
        name
    )
    .fetch_all(&mut *db)
    .await?;
    if ids.is_empty() {
        return Err(super::unknown(name));
    }
    by_ids(&mut db, &ids).await
}

/// These reservations, by beginning.
pub(super) async fn by_ids(db: &mut PgConnection, ids: &[i64]) -> Result<ReservationList, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT r.id, r.name, r.owner, r.author, t.name AS tenant, p.name AS pool, r.state, lower(r.during) AS "begin_at!",
               upper(r.during) AS "end_at!", coalesce(r.series_id, (SELECT r.id FROM reservations s WHERE s.series_id = r.id LIMIT 1))
                   AS series,
               r.occurrence, r.users, r.accounts, r.condition,
               ARRAY(SELECT j.id FROM jobs j WHERE j.reservation_id = r.id AND j.ended_at IS NULL ORDER BY j.id LIMIT 1000) AS "jobs!"
           FROM reservations r JOIN tenants t ON t.id = r.tenant_id JOIN pools p ON p.id = r.pool_id
           WHERE r.id = ANY($1) ORDER BY lower(r.during), r.id"#,
        ids
    )
    .fetch_all(&mut *db)
    .await?;
    let nodes = sqlx::query!(
        "SELECT b.reservation_id, n.id AS node_id, n.name, b.cpus, b.mem_mib, b.disk_mib
         FROM node_bookings b JOIN nodes n ON n.id = b.node_id
         WHERE b.reservation_id = ANY($1) AND b.allocation_id IS NULL ORDER BY n.name",
        ids
    )
    .fetch_all(&mut *db)
    .await?;
    // What was carved out for a job inside is the reservation's, too; media engines are part of their instance.
    let devices = sqlx::query!(
        "SELECT DISTINCT b.reservation_id, g.node_id, g.uuid, b.atom FROM device_bookings b JOIN gpus g ON g.id = b.gpu_id
         WHERE b.reservation_id = ANY($1) ORDER BY g.uuid, b.atom",
        ids
    )
    .fetch_all(db)
    .await?;
    let mut list = ReservationList::default();
    for row in rows {
        let mut shares = Vec::new();
        for node in nodes.iter().filter(|node| node.reservation_id == Some(row.id)) {
            let mut atoms = Vec::new();
            for d in devices.iter().filter(|d| d.reservation_id == Some(row.id) && d.node_id == node.node_id)
            {
                let atom = d.atom.parse().map_err(|_| row_error("device_bookings", "atom", &*d.atom))?;
                atoms.push(GpuAtom { gpu: d.uuid.clone(), atom });
            }
            shares.push(ReservedNode {
                node: node.name.clone(),
                cpus: node.cpus.unsigned_abs(),
                mem_mib: node.mem_mib.unsigned_abs(),
                disk_mib: node.disk_mib.unsigned_abs(),
                atoms,
            });
        }
        let condition = row.condition.map(serde_json::from_value::<Condition>).transpose();
        list.reservations.push(Reservation {
            id: row.id,
            name: row.name,
            owner: row.owner,
            author: row.author,
            tenant: row.tenant,
            pool: row.pool,
            state: row.state,
            begin_at: row.begin_at,
            end_at: row.end_at,
            series: row.series,
            occurrence: row.occurrence.unsigned_abs(),
            users: row.users,
            accounts: row.accounts,
            nodes: shares,
            condition: condition.map_err(|e| row_error("reservations", "condition", e.to_string()))?,
            jobs: row.jobs,
        });
    }
    Ok(list)
}
