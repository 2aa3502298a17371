//! The end of the torture: everything is cancelled, attested and released, and then nothing may be left in the book.

use super::super::super::act::cancel;
use super::super::super::reservations;
use super::*;
use proto::api::CancelRequest;

pub(super) async fn everything_ends(world: &World) -> Result<(), String> {
    let db = &world.controllers[0];
    let root = caller("root");
    let names: Vec<String> =
        sqlx::query_scalar("SELECT DISTINCT name FROM reservations WHERE ended_at IS NULL ORDER BY name")
            .fetch_all(db)
            .await
            .unwrap();
    for name in names {
        reservations::cancel(db, &root, &name).await.map_err(|e| format!("cancel of {name}: {e:?}"))?;
    }
    let jobs: Vec<i64> = sqlx::query_scalar("SELECT id FROM jobs WHERE ended_at IS NULL ORDER BY id")
        .fetch_all(db)
        .await
        .unwrap();
    for ids in jobs.chunks(500) {
        let ids = ids.iter().map(i64::to_string).collect();
        let request = CancelRequest { ids, ..CancelRequest::default() };
        cancel(db, &root, &request).await.map_err(|e| format!("cancel: {e:?}"))?;
    }
    let nodes: Vec<(i64, i64)> =
        sqlx::query_as("SELECT id, session_epoch FROM nodes ORDER BY id").fetch_all(db).await.unwrap();
    for (node_id, epoch) in nodes {
        let session = Session { node_id, epoch };
        let live: Vec<i64> = sqlx::query_scalar(
            "SELECT id FROM allocations WHERE node_id = $1 AND released_at IS NULL ORDER BY id",
        )
        .bind(node_id)
        .fetch_all(db)
        .await
        .unwrap();
        let facts: Vec<Fact> =
            live.iter().map(|id| ended(session, *id, EndCause::Stopped, Some(0))).collect();
        record(db, &facts).await.map_err(|e| format!("the last reports: {e:?}"))?;
    }
    world.check().await?;
    let left: Vec<String> = sqlx::query_scalar(
        "SELECT format('job %s is %s', id, state) FROM jobs WHERE ended_at IS NULL
         UNION ALL SELECT format('%s of GPU %s is booked', atom, gpu_id) FROM device_bookings WHERE kind <> 'mode_change'
         UNION ALL SELECT format('part of node %s is booked', node_id) FROM node_bookings
         UNION ALL SELECT format('%s %s of node %s are allocated', allocated, resource, node_id) FROM node_resources
             WHERE allocated <> 0",
    )
    .fetch_all(db)
    .await
    .unwrap();
    if left.is_empty() { Ok(()) } else { Err(format!("what is left: {left:#?}")) }
}
