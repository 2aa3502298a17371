//! What a hold would touch, before it is put.

use super::super::{StoreError, read};
use super::put::{check, times};
use super::target::find;
use proto::api::{HeldJob, HeldReservation, HoldImpact, HoldRequest};
use sqlx::PgPool;

/// The most jobs, and the most reservations, that are listed.
const LISTED_MAX: i64 = 1000;

/// Who is on what this request would hold: what runs there, and which reservations would lose their place. Changes nothing.
pub async fn impact(db: &PgPool, request: &HoldRequest) -> Result<HoldImpact, StoreError> {
    check(request)?;
    let mut tx = read::snapshot(db).await?;
    let target = find(&mut tx, &request.target).await?;
    let times = times(&mut tx, request).await?;
    let jobs = sqlx::query!(
        r#"SELECT CASE WHEN j.is_array THEN j.id || '_' || t.task ELSE j.id::text END AS "job!", j.user_name,
               upper(b.during) AS until_at, upper_inf(b.during) OR upper(b.during) > $4 AS "runs_into!"
           FROM node_bookings b JOIN allocations a ON a.id = b.allocation_id
           JOIN attempts t ON t.id = a.attempt_id JOIN jobs j ON j.id = t.job_id
           WHERE b.node_id = $1 AND a.released_at IS NULL AND ($2::bigint IS NULL OR EXISTS (SELECT FROM device_bookings d
               WHERE d.allocation_id = a.id AND d.gpu_id = $2 AND d.span && $3))
           ORDER BY upper(b.during) DESC NULLS FIRST, j.id, t.task LIMIT $5"#,
        target.node_id,
        target.gpu_id(),
        target.span(),
        times.from,
        LISTED_MAX
    )
    .fetch_all(&mut *tx)
    .await?;
    let reservations = sqlx::query!(
        r#"SELECT r.name, r.owner, lower(r.during) AS "from_at!", upper(r.during) AS "until_at!" FROM reservations r
           WHERE r.ended_at IS NULL AND r.during && tstzrange($4, $5) AND CASE WHEN $2::bigint IS NULL
               THEN EXISTS (SELECT FROM node_bookings b WHERE b.reservation_id = r.id AND b.node_id = $1)
               ELSE EXISTS (SELECT FROM device_bookings d WHERE d.reservation_id = r.id AND d.gpu_id = $2 AND d.span && $3) END
           ORDER BY lower(r.during), r.id LIMIT $6"#,
        target.node_id,
        target.gpu_id(),
        target.span(),
        times.from,
        times.until,
        LISTED_MAX
    )
    .fetch_all(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(HoldImpact {
        target: target.name(),
        kind: request.kind,
        from: times.from,
        until: times.until,
        jobs: jobs
            .into_iter()
            .map(|row| HeldJob {
                job: row.job,
                user: row.user_name,
                until: row.until_at,
                runs_into: row.runs_into,
            })
            .collect(),
        reservations: reservations
            .into_iter()
            .map(|row| HeldReservation {
                name: row.name,
                owner: row.owner,
                from: row.from_at,
                until: row.until_at,
            })
            .collect(),
    })
}
