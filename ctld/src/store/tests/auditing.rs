//! The audit finds what is wrong: each invariant broken by hand, behind the constraints' back.

use super::super::audit::{INVARIANTS, Look, audit as look};
use super::super::reservations::reserve;
use super::*;
use proto::api::{Audited, ReserveRequest};

async fn look_at(db: &PgPool, name: &str) -> Audited {
    let names = [name.to_owned()];
    look(db, Look { names: &names, ..Look::default() }).await.unwrap().invariants.remove(0)
}

/// A node with a job on one of its GPUs, a reservation for the other, and a job that ended.
async fn world(db: &PgPool) {
    with_pool(db).await;
    super::super::mig_placements::fill(db).await.unwrap();
    let session = node(db, "n1", 8, 2).await;
    submit_one(db, job("ended")).await;
    place(db).await;
    report(db, vec![exited(session, live(db).await[0], 0)]).await;
    submit_one(db, Submission { gpus: 1, cpus: 2, ..job("a") }).await;
    submit_one(db, array("b", "0-3", None)).await;
    let plan = plan(db).await;
    let first: Vec<_> = plan.placements.into_iter().take(2).collect();
    apply(db, Scope::Pool, &first, GRACE_S).await.unwrap();
    let request = ReserveRequest {
        idempotency_key: "r".into(),
        name: "r".into(),
        duration_s: Some(3600),
        cpus: 1,
        mem_mib: 1,
        gpus: 1,
        ..ReserveRequest::default()
    };
    reserve(db, &caller("alice"), &request).await.unwrap();
}

/// What is done behind the store's back, and the invariants that then do not hold.
const FAULTS: &[(&str, &[&str])] = &[
    ("DELETE FROM outbox WHERE type = 'job.ended'", &["events"]),
    ("UPDATE outbox SET type = 'job.ended' WHERE subject = 'job/2'", &["events"]),
    (
        "INSERT INTO device_bookings (gpu_id, span, during, reservation_id, atom, kind)
         SELECT gpu_id, int4range(2, 4), during, 1, 'mig:1g.20gb@2', 'reservation' FROM device_bookings WHERE allocation_id IS NOT NULL",
        &["devices", "history", "modes"],
    ),
    (
        "INSERT INTO device_bookings_history (gpu_id, span, during, atom, kind)
         SELECT gpu_id, span, tstzrange(lower(during) - interval '1 hour', lower(during) + interval '1 microsecond'), atom, kind
         FROM device_bookings",
        &["history"],
    ),
    ("UPDATE gpu_modes SET mode = 'mig', during = tstzrange(lower(during), compute_now() + interval '1 min')", &["modes", "timeline"]),
    ("UPDATE gpu_modes SET during = tstzrange(lower(during) - interval '1 h', NULL); UPDATE gpus SET mode = 'mps', slots = 4", &["timeline"]),
    (
        "INSERT INTO device_bookings (gpu_id, span, during, reservation_id, atom, kind)
         SELECT id, int4range(1, 5), tstzrange(compute_now() + interval '1 day', compute_now() + interval '2 days'), 1,
             'mig:3g.40gb@1', 'reservation' FROM gpus",
        &["atoms", "modes", "reservations"],
    ),
    ("UPDATE node_resources SET allocatable = 2, allocated = 2 WHERE resource = 'cpus'", &["amounts", "counters"]),
    ("UPDATE node_resources SET allocated = allocated + 1 WHERE resource = 'mem_mib'", &["counters"]),
    (
        "UPDATE node_bookings SET during = tstzrange(lower(during) - interval '1 h', compute_now()) WHERE allocation_id IS NOT NULL",
        &["overruns"],
    ),
    ("UPDATE allocations SET cpus = cpus + 1 WHERE released_at IS NULL", &["shares"]),
    ("DELETE FROM device_bookings WHERE allocation_id IS NOT NULL", &["shares"]),
    (
        "INSERT INTO holds (node_id, kind, owner, author, reason, opened_at, during)
         SELECT node_id, 'drain', 'op', 'op', 'fan', placed_at - interval '2 min', tstzrange(placed_at - interval '2 min', NULL)
         FROM attempts t JOIN allocations a ON a.attempt_id = t.id LIMIT 1",
        &["holds"],
    ),
    ("UPDATE nodes SET eligible = false", &["holds"]),
    ("UPDATE quota_usage SET used = used + 1 WHERE resource = 'jobs'", &["quotas"]),
    ("UPDATE jobs SET charge = charge - 'jobs' WHERE ended_at IS NULL", &["quotas"]),
    ("UPDATE idempotency_keys SET identity = 'mallory' WHERE key = 'a'", &["keys"]),
    ("INSERT INTO idempotency_keys SELECT tenant_id, identity, 'again', body_hash, job_id FROM idempotency_keys WHERE key = 'a'", &["keys"]),
    ("UPDATE jobs SET active = active + 1 WHERE active > 0", &["tasks"]),
    ("UPDATE jobs SET pending = pending + '{[0,4)}' WHERE is_array", &["tasks"]),
    ("UPDATE jobs SET pending = '{[2,3)}' WHERE is_array", &["tasks"]),
    ("UPDATE attempts SET started_at = placed_at - interval '1 s'", &["times"]),
    (
        "UPDATE allocations SET released_at = compute_now() WHERE id = (SELECT max(id) FROM allocations)",
        &["released"],
    ),
    ("UPDATE reservations SET state = 'cancelled', ended_at = compute_now()", &["released", "counters"]),
    ("UPDATE node_bookings SET during = tstzrange(lower(during), NULL) WHERE reservation_id IS NOT NULL", &["reservations"]),
];

#[sqlx::test(migrations = "../migrations")]
async fn each_invariant_is_found_broken_where_it_is(db: PgPool) {
    world(&db).await;
    audit(&db).await;
    for (fault, broken) in FAULTS {
        let mut tx = db.begin().await.unwrap();
        // The constraints would refuse most of this.
        sqlx::raw_sql(
            "DO $$ DECLARE c record; BEGIN
                 FOR c IN SELECT conrelid::regclass AS t, conname FROM pg_constraint WHERE contype = 'x'
                 LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.conname); END LOOP; END $$",
        )
        .execute(&mut *tx)
        .await
        .unwrap();
        sqlx::raw_sql(*fault).execute(&mut *tx).await.unwrap_or_else(|e| panic!("{fault}: {e}"));
        let found = super::super::audit::audit_in(&mut tx, INVARIANTS.iter()).await.unwrap();
        let named: Vec<&str> =
            found.iter().filter(|i| i.violations != Some(0)).map(|i| i.name.as_str()).collect();
        for name in *broken {
            assert!(named.contains(name), "{fault}\nbreaks {named:?}, not {name}");
        }
        tx.rollback().await.unwrap();
    }
    audit(&db).await;
    let covered: Vec<&str> = FAULTS.iter().flat_map(|f| f.1.iter().copied()).collect();
    for invariant in INVARIANTS {
        assert!(covered.contains(&invariant.name), "no fault breaks {}", invariant.name);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn an_audit_of_some_invariants_tells_how_much_it_looked_at(db: PgPool) {
    world(&db).await;
    let jobs = look_at(&db, "tasks").await;
    assert_eq!((jobs.checked, jobs.violations, jobs.rows.len()), (3, Some(0), 0));
    let error = look(&db, Look { names: &["jobs".to_owned()], ..Look::default() }).await.unwrap_err();
    assert!(ApiError::from(error).hint.unwrap().starts_with("there are devices, history"));
}
