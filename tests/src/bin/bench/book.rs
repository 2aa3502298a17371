//! What a booking costs with 10,000, 100,000 and a million live ones there: placements as the planner's are applied
//! (`store::place::apply`), and the bookings of reservations by the guarded statements that `store::reservations` uses, both in batches
//! with a commit each.
//!
//! A fleet of 10,000 GPUs, eight a node. Reservations of whole nodes stand in it every two hours from an hour after now on, one
//! hour each, so many an hour as make the book that size; what is measured goes into the gaps.

use crate::database::Database;
use crate::figures::{Report, latencies, rounded};
use chrono::{DateTime, Utc};
use ctld::store::leases::{LEASE_TTL, Owner, Under, take};
use ctld::store::place::{Scope, apply, booked_for_us};
use ctld::store::pools;
use ctld::store::submit::{Prepared, commit};
use ctld_core::admission::admit;
use ctld_core::plan::{Placement, Share};
use proto::api::Submission;
use serde_json::json;
use sqlx::PgPool;
use std::path::Path;
use std::time::Instant;
use tests::small_job;

const GPUS: usize = 10_000;
const GPUS_A_NODE: usize = 8;
/// Prime to every number of gaps.
const STRIDE: usize = 7919;
/// Bookings in one transaction.
const BATCH: usize = 100;
/// Limit of the placed jobs; with grace and clean-up they end before the first reservation begins.
const LIMIT_S: u64 = 600;
/// What a job gets beyond its limit.
const GRACE_S: u32 = 30;

const FLEET: &str = "
    INSERT INTO nodes (name, pool_id) SELECT 'n' || n, (SELECT id FROM pools) FROM generate_series(1, 1250) n;
    INSERT INTO node_resources (node_id, resource, allocatable)
        SELECT n.id, r.resource, r.allocatable FROM nodes n,
            (VALUES ('cpus', 64), ('mem_mib', 1048576), ('disk_mib', 1048576)) AS r (resource, allocatable);
    INSERT INTO gpus (uuid, node_id, index, model, mem_mib, declared)
        SELECT format('GPU-%s-%s', n.id, i), n.id, i, 'h100-80gb', 81559, true FROM nodes n, generate_series(0, 7) i ORDER BY n.id, i;
    INSERT INTO gpu_modes (gpu_id, mode, slots, during)
        SELECT id, 'whole', 1, tstzrange(compute_now() - interval '1 day', NULL) FROM gpus;
    ANALYZE";

/// Reserves a quarter of an hour of each gap, another one each round; the guards are those of `store::reservations::reserve`.
const DEVICE: &str = "
    INSERT INTO device_bookings (gpu_id, span, during, reservation_id, atom, kind)
    SELECT i.gpu_id, int4range(NULL, NULL), w.during, $1, 'gpu', 'reservation'
    FROM unnest($2::bigint[], $3::double precision[]) AS i (gpu_id, slot),
        LATERAL (SELECT $4 + make_interval(hours => 2, mins => 15 * $5::int) + i.slot * interval '2 hours' AS at) a,
        LATERAL (SELECT tstzrange(a.at, a.at + interval '15 minutes') AS during) w
    WHERE EXISTS (SELECT FROM gpu_modes m WHERE m.gpu_id = i.gpu_id AND m.mode = 'whole'
        AND (m.layout IS NULL OR 'gpu' = ANY(m.layout)) AND m.during @> w.during)
    ON CONFLICT DO NOTHING";
const NODE: &str = "
    INSERT INTO node_bookings (reservation_id, node_id, cpus, mem_mib, disk_mib, during)
    SELECT $1, i.node_id, 1, 32, 0, tstzrange(a.at, a.at + interval '15 minutes')
    FROM unnest($2::bigint[], $3::double precision[]) AS i (node_id, slot),
        LATERAL (SELECT $4 + make_interval(hours => 2, mins => 15 * $5::int) + i.slot * interval '2 hours' AS at) a";

/// The fleet, and how far its book is filled.
struct Book {
    nodes: Vec<i64>,
    gpus: Vec<i64>,
    begin: DateTime<Utc>,
    slots: usize,
}

impl Book {
    fn node_of(&self, gpu: usize) -> i64 {
        self.nodes[gpu / GPUS_A_NODE]
    }
}

/// One round a size, in one database that grows.
pub fn run(report: &mut Report) {
    let database = Database::start(report, "");
    let batches = report.times(30, 10);
    let db = &database.db;
    let mut book = database.run(make_fleet(db));
    let mut first: Option<Vec<f64>> = None;
    for (round, live) in [10_000, 100_000, 1_000_000].into_iter().enumerate() {
        eprintln!("bench: book: filling to {live}");
        database.run(fill(db, &mut book, live / GPUS));
        // Each round's placements have GPUs of their own: what runs is not released here.
        let places = (round * batches * BATCH..(round + 1) * batches * BATCH).map(|n| n * STRIDE % GPUS);
        let placed = database.run(place(db, &book, &places.collect::<Vec<_>>()));
        let (device, node) = database.run(reserve(db, &book, round, batches));
        let all = [("placement", placed), ("device", device), ("node", node)];
        let medians: Vec<f64> = all.iter().map(|(_, taken)| median(taken)).collect();
        let first = first.get_or_insert_with(|| medians.clone());
        for (at, (what, taken)) in all.iter().enumerate() {
            report.line(
                "book",
                json!({ "live": live, "what": what, "batch": BATCH }),
                json!({ "us": latencies(taken), "to_smallest": rounded(medians[at] / first[at]) }),
            );
        }
    }
}

async fn make_fleet(db: &PgPool) -> Book {
    sqlx::raw_sql(FLEET).execute(db).await.expect("a fleet can be made");
    let (nodes, gpus, begin) = sqlx::query_as(
        "SELECT (SELECT array_agg(id ORDER BY id) FROM nodes), (SELECT array_agg(id ORDER BY node_id, index) FROM gpus),
             compute_now()",
    )
    .fetch_one(db)
    .await
    .expect("the fleet can be read");
    Book { nodes, gpus, begin, slots: 0 }
}

/// Adds reservations until each GPU has so many bookings: the next ones begin two hours after the last.
async fn fill(db: &PgPool, book: &mut Book, slots: usize) {
    let statement = "
        WITH slots AS (
            SELECT s, tstzrange(a.at, a.at + interval '1 hour') AS during
            FROM generate_series($1::bigint, $2::bigint - 1) s, LATERAL (SELECT $3 + interval '1 hour' + s * interval '2 hours' AS at) a
        ), made AS (
            INSERT INTO reservations (tenant_id, pool_id, name, owner, author, during, state, request, created_at)
            SELECT t.id, n.pool_id, format('r%s-%s', n.id, s), 'alice', 'alice', during, 'booked', '{}', $3
            FROM slots, nodes n, tenants t WHERE t.name = 'default' RETURNING id, name, during
        ), booked AS (
            INSERT INTO node_bookings (reservation_id, node_id, cpus, mem_mib, during)
            SELECT id, substring(split_part(name, '-', 1) FROM 2)::bigint, 32, 1024, during FROM made
            RETURNING node_id, reservation_id, during
        )
        INSERT INTO device_bookings (gpu_id, span, during, reservation_id, atom, kind)
        SELECT g.id, int4range(NULL, NULL), b.during, b.reservation_id, 'gpu', 'reservation'
        FROM booked b JOIN gpus g USING (node_id)";
    // In steps, so that no statement holds all of it.
    while book.slots < slots {
        let until = (book.slots + 10).min(slots);
        let step = sqlx::query(statement).bind(book.slots as i64).bind(until as i64).bind(book.begin);
        step.execute(db).await.expect("the book can be filled");
        book.slots = until;
    }
    // As a book is that grew over weeks.
    sqlx::raw_sql("VACUUM ANALYZE").execute(db).await.expect("the book can be vacuumed");
}

/// Applies placements of one GPU each, to start now: microseconds a placement.
async fn place(db: &PgPool, book: &Book, places: &[usize]) -> Vec<f64> {
    let rules = pools::rules(db).await.expect("the pools can be read");
    let tenant_id = pools::tenant_id(db, "default").await.expect("tenants can be read").expect("it is there");
    let mut taken = Vec::new();
    for places in places.chunks(BATCH) {
        let batch = places.iter().map(|_| {
            let submission =
                Submission { gpus: 1, time_limit_s: Some(LIMIT_S), ..small_job("true", Path::new("/")) };
            Prepared {
                tenant_id,
                user: "alice".into(),
                uid: 1000,
                gid: 1000,
                admitted: admit(&submission, &rules, false).expect("it is admitted"),
                reservation_id: None,
                submission,
            }
        });
        let jobs = commit(db, &batch.collect::<Vec<_>>()).await.expect("the jobs are stored");
        let placements: Vec<Placement> = jobs
            .into_iter()
            .zip(places)
            .map(|(job, at)| Placement {
                job_id: job.expect("it is stored").id,
                task: 0,
                lasts_us: booked_for_us(Some(LIMIT_S as i64), GRACE_S),
                shares: vec![Share {
                    node_id: book.node_of(*at),
                    cpus: 1,
                    mem_mib: 32,
                    disk_mib: 0,
                    gpu_ids: vec![book.gpus[*at]],
                }],
            })
            .collect();
        let owner = Owner::new("bench", "1");
        let lease = take(db, &owner, "pool:1", LEASE_TTL).await.expect("the lease can be asked for");
        let right = Under { db, lease: &lease.expect("nobody else has it") };
        let begun = Instant::now();
        let applied = apply(&right, Scope::Pool, &placements, GRACE_S).await.expect("the plan is applied");
        taken.push(begun.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
        assert_eq!(applied.placed, BATCH, "all of it is free");
    }
    taken
}

/// Books gaps anywhere in the book for one reservation: microseconds a device booking, and a node booking.
async fn reserve(db: &PgPool, book: &Book, round: usize, batches: usize) -> (Vec<f64>, Vec<f64>) {
    let id: i64 = sqlx::query_scalar(
        "INSERT INTO reservations (tenant_id, pool_id, name, owner, author, during, state, request, created_at)
         SELECT t.id, p.id, format('gaps-%s', $1), 'alice', 'alice', tstzrange($2, $2 + interval '9 years'), 'booked', '{}', $2
         FROM tenants t, pools p WHERE t.name = 'default' RETURNING id",
    )
    .bind(round as i64)
    .bind(book.begin)
    .fetch_one(db)
    .await
    .expect("a reservation can be made");
    let (mut device, mut node) = (Vec::new(), Vec::new());
    for batch in 0..batches {
        // A stride that is prime to their number: a gap each, no two near each other.
        let gaps = (batch * BATCH..(batch + 1) * BATCH).map(|n| n * STRIDE % (book.gpus.len() * book.slots));
        let (places, slots): (Vec<usize>, Vec<f64>) =
            gaps.map(|gap| (gap % book.gpus.len(), (gap / book.gpus.len()) as f64)).unzip();
        let gpus: Vec<i64> = places.iter().map(|at| book.gpus[*at]).collect();
        let nodes: Vec<i64> = places.iter().map(|at| book.node_of(*at)).collect();
        for (statement, ids, taken) in [(DEVICE, &gpus, &mut device), (NODE, &nodes, &mut node)] {
            let begun = Instant::now();
            let statement =
                sqlx::query(statement).bind(id).bind(ids).bind(&slots).bind(book.begin).bind(round as f64);
            let booked = statement.execute(db).await.expect("gaps can be booked").rows_affected();
            taken.push(begun.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
            assert_eq!(booked, BATCH as u64, "all of it is free");
        }
    }
    (device, node)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
