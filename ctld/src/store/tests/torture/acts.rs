//! What the torture does: a line an act, with how often it is drawn.

use super::super::super::act::{Acted, cancel, hold, release, requeue};
use super::super::super::extend::extend;
use super::super::super::holds::{self, end_quarantine, quarantine, resume};
use super::super::super::modes;
use super::super::super::node::{Heard, close_session, record_seen};
use super::super::super::overrun::extend_overdue;
use super::super::super::place::record_waits;
use super::super::super::quotas::allowances;
use super::super::super::reservations;
use super::super::super::snapshot::queues_with_work;
use super::*;
use ctld_core::liveness::Absence;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proto::api::{
    Begin, CancelRequest, ExtendRequest, GpuChangeRequest, Repeat, RepeatEvery, ReserveRequest,
};
use proto::{GpuMode, HoldKind};
use rand::seq::IndexedRandom;

type Act = for<'a> fn(&'a World, &'a mut StdRng) -> BoxFuture<'a, Done>;

/// Weight, name, act.
pub(super) const ACTS: &[(u32, &str, Act)] = &[
    (16, "submit", |w, r| submitted(w, r).boxed()),
    (18, "plan", |w, r| planned(w, r).boxed()),
    (22, "report", |w, r| reported(w, r).boxed()),
    (5, "zombie", |w, r| zombie(w, r).boxed()),
    (6, "cancel", |w, r| cancelled(w, r).boxed()),
    (2, "hold", |w, r| held(w, r).boxed()),
    (3, "release", |w, r| let_go(w, r).boxed()),
    (3, "requeue", |w, r| requeued(w, r).boxed()),
    (5, "extend", |w, r| extended(w, r).boxed()),
    (5, "reserve", |w, r| reserved(w, r).boxed()),
    (2, "unreserve", |w, r| unreserved(w, r).boxed()),
    (4, "advance", |w, r| advanced(w, r).boxed()),
    (2, "drain", |w, r| drained(w, r).boxed()),
    (5, "resume", |w, r| resumed(w, r).boxed()),
    (3, "quarantine", |w, r| quarantined(w, r).boxed()),
    (3, "mode", |w, r| set_mode(w, r).boxed()),
    (2, "made", |w, r| modes_due(w, r).boxed()),
    (1, "unmode", |w, r| unset_mode(w, r).boxed()),
    (2, "quota", |w, r| limited(w, r).boxed()),
    (3, "health", |w, r| flipped(w, r).boxed()),
    (4, "clock", |w, r| stepped(w, r).boxed()),
];

/// How often each act was done, for the closing line.
pub(super) fn counted(log: &[String]) -> String {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for line in log {
        let mut words = line.split_whitespace().skip(1);
        if let Some(name) = words.next().filter(|name| ACTS.iter().any(|act| act.1 == *name)) {
            let count = counts.entry(name).or_default();
            count.0 += 1;
            count.1 += usize::from(line.contains("refused: ") || line.contains("try again: "));
        }
    }
    let told: Vec<String> = counts.iter().map(|(name, (n, not))| format!("{name} {n} (-{not})")).collect();
    told.join(", ")
}

fn user(rng: &mut StdRng) -> &'static str {
    ["alice", "bob", "root"].choose(rng).copied().unwrap()
}

fn node_name(rng: &mut StdRng) -> String {
    format!("n{}", rng.random_range(0..NODES))
}

async fn any_job(db: &PgPool, rng: &mut StdRng) -> Result<i64, sqlx::Error> {
    // Rather one that is not over.
    let live: Vec<i64> =
        sqlx::query_scalar("SELECT id FROM jobs WHERE ended_at IS NULL ORDER BY id").fetch_all(db).await?;
    let last: i64 = sqlx::query_scalar("SELECT coalesce(max(id), 1) FROM jobs").fetch_one(db).await?;
    let ended = rng.random_range(1..=last);
    Ok(if rng.random_bool(0.9) { live.choose(rng).copied().unwrap_or(ended) } else { ended })
}

async fn any_reservation(db: &PgPool, rng: &mut StdRng) -> Result<Option<(i64, String)>, sqlx::Error> {
    let live: Vec<(i64, String)> =
        sqlx::query_as("SELECT id, name FROM reservations WHERE ended_at IS NULL ORDER BY id")
            .fetch_all(db)
            .await?;
    Ok(live.choose(rng).cloned())
}

async fn submitted(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let reservation = if rng.random_bool(0.3) { any_reservation(db, rng).await? } else { None };
    let pools = rules(db).await?;
    let tenant_id = tenant_id(db, "default").await?.unwrap();
    let batch: Vec<Prepared> = (0..rng.random_range(1..5))
        .map(|_| {
            let mut job = job(&format!("k{}", world.serial()));
            // Now and then a key that was used.
            if rng.random_bool(0.1) {
                job.idempotency_key = format!("k{}", rng.random_range(1..=world.serial()));
            }
            job.cpus = rng.random_range(1..=4);
            job.mem_mib = Some(rng.random_range(1..=300));
            job.disk_mib = rng.random_range(0..=3000);
            job.gpus = rng.random_range(0..=2);
            job.nodes = if rng.random_bool(0.15) { 2 } else { 1 };
            job.exclusive = rng.random_bool(0.03);
            job.time_limit_s = Some(rng.random_range(10..400));
            job.time_unlimited = rng.random_bool(0.05);
            if job.time_unlimited {
                job.time_limit_s = None;
            }
            job.requeue = rng.random_bool(0.7);
            if rng.random_bool(0.2) {
                let last = rng.random_range(1..6);
                let throttle = rng.random_bool(0.5).then_some(2);
                job.array = Some(ArraySpec { indices: format!("0-{last}").parse().unwrap(), throttle });
            }
            Prepared {
                tenant_id,
                user: user(rng).into(),
                uid: 1000,
                gid: 1000,
                admitted: admit(&job, &pools, false).unwrap(),
                reservation_id: reservation.as_ref().map(|r| r.0),
                submission: job,
            }
        })
        .collect();
    let answers = commit(db, &batch).await?;
    Ok(format!("{} jobs, {} accepted", batch.len(), answers.iter().filter(|a| a.is_ok()).count()))
}

/// A pass of one controller's planner.
async fn planned(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let (mut placed, mut conflicts) = (0, 0);
    for queue in queues_with_work(db).await? {
        let mut planner = Planner::new(free(db, queue).await?, 50).within(allowances(db, queue.scope).await?);
        planner.consider(&queue_page(db, queue, None, 500, GRACE_S).await?.requests);
        let plan = planner.finish();
        let applied = apply(db, queue.scope, &plan.placements, GRACE_S).await?;
        placed += applied.placed;
        conflicts += applied.conflicts;
        record_waits(db, &plan.waits).await?;
    }
    Ok(format!("{placed} placed, {conflicts} conflicts"))
}

/// What is live on a node, by its allocations' ids, and whether each was told to have started.
async fn live_on(db: &PgPool, session: Session) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar("SELECT id FROM allocations WHERE node_id = $1 AND released_at IS NULL ORDER BY id")
        .bind(session.node_id)
        .fetch_all(db)
        .await
}

fn some_facts(session: Session, live: &[i64], rng: &mut StdRng) -> Vec<Fact> {
    let mut facts = Vec::new();
    for id in live {
        if !rng.random_bool(0.4) {
            continue;
        }
        if rng.random_bool(0.6) {
            facts.push(started(session, *id));
        }
        if rng.random_bool(0.1) {
            facts.push(fact(session, *id, Event::Completing));
        }
        if rng.random_bool(0.5) {
            let cause = [EndCause::Exited, EndCause::TimeLimit, EndCause::Lost, EndCause::Stopped];
            facts.push(ended(session, *id, *cause.choose(rng).unwrap(), Some(rng.random_range(0..2))));
        }
        // As a session that repeats itself does.
        if rng.random_bool(0.1) {
            facts.extend(facts.last().cloned());
        }
    }
    facts
}

async fn reported(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let session = *world.sessions.lock().unwrap()[&node_name(rng)].last().unwrap();
    let facts = some_facts(session, &live_on(db, session).await?, rng);
    let recorded = record(db, &facts).await?;
    Ok(format!("{} of {} facts of node {}", recorded.applied, facts.len(), session.node_id))
}

/// An older session that does not know it: nothing it says may count.
async fn zombie(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let session = {
        let sessions = world.sessions.lock().unwrap();
        let of_node = &sessions[&node_name(rng)];
        of_node[..of_node.len() - 1].choose(rng).copied()
    };
    let Some(session) = session else { return Ok("there is none yet".into()) };
    let facts = some_facts(session, &live_on(db, session).await?, rng);
    let recorded = record(db, &facts).await?;
    assert_eq!(recorded.applied, 0, "an older session's facts counted");
    let heard = Heard { session, age_s: 0.0, observed_generation: 0 };
    assert!(record_seen(db, "zombie", &[heard]).await?.is_empty(), "an older session kept its node alive");
    close_session(db, session, Absence::SessionClosed).await?;
    Ok(format!("{} facts left out", facts.len()))
}

fn outcome(acted: Acted) -> Done {
    Ok(acted
        .results
        .results
        .iter()
        .map(|r| format!("{} {:?}", r.id, r.outcome))
        .collect::<Vec<_>>()
        .join(", "))
}

async fn some_ids(db: &PgPool, rng: &mut StdRng) -> Result<Vec<String>, sqlx::Error> {
    let mut ids = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        let id = any_job(db, rng).await?;
        ids.push(if rng.random_bool(0.2) { format!("{id}_[0-1]") } else { id.to_string() });
    }
    Ok(ids)
}

async fn cancelled(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let request = CancelRequest { ids: some_ids(db, rng).await?, ..CancelRequest::default() };
    outcome(cancel(db, &caller(user(rng)), &request).await?)
}

async fn held(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    outcome(hold(db, &caller(user(rng)), &some_ids(db, rng).await?).await?)
}

async fn let_go(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    outcome(release(db, &caller("root"), &some_ids(db, rng).await?).await?)
}

async fn requeued(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    outcome(requeue(db, &caller("root"), &some_ids(db, rng).await?).await?)
}

async fn extended(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let reservation = if rng.random_bool(0.4) { any_reservation(db, rng).await? } else { None };
    let what = match reservation {
        Some((_, name)) => name,
        None => any_job(db, rng).await?.to_string(),
    };
    let key = format!("e{}", world.serial());
    let by_s = Some(rng.random_range(1..200));
    let request = ExtendRequest { idempotency_key: key, what, by_s, end_at: None };
    let done = extend(db, &caller("root"), &request, GRACE_S).await?;
    Ok(format!("{} until {:?}", done.extended.what, done.extended.end_at))
}

async fn reserved(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let serial = world.serial();
    let request = ReserveRequest {
        idempotency_key: format!("r{serial}"),
        name: format!("r{serial}"),
        begin: rng.random_bool(0.7).then(|| Begin::AfterS(rng.random_range(1..600))),
        duration_s: Some(rng.random_range(20..600)),
        nodes: Some(rng.random_range(1..3)),
        cpus: rng.random_range(0..=4),
        mem_mib: rng.random_range(1..=400),
        disk_mib: rng.random_range(0..=2000),
        gpus: rng.random_range(0..=2),
        repeat: rng.random_bool(0.1).then_some(Repeat { every: RepeatEvery::Day, times: 2 }),
        users: vec!["alice".into(), "bob".into()],
        ..ReserveRequest::default()
    };
    let list = reservations::reserve(db, &caller(user(rng)), &request).await?;
    Ok(format!("{} from {} to {}", request.name, list.reservations[0].begin_at, list.reservations[0].end_at))
}

async fn unreserved(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let Some((_, name)) = any_reservation(db, rng).await? else { return Ok("there is none".into()) };
    let ids = reservations::cancel(db, &caller("root"), &name).await?;
    Ok(format!("{name}: {} cancelled", ids.len()))
}

async fn advanced(world: &World, rng: &mut StdRng) -> Done {
    let advanced = reservations::advance(world.any(rng)).await?;
    let held = holds::advance(world.any(rng)).await?;
    Ok(format!("{} begun, {} ended, {} holds over", advanced.begun, advanced.ended, held.ended))
}

async fn drained(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let (target, owner) = (target(rng), user(rng));
    let kinds = [HoldKind::Drain, HoldKind::Cordon, HoldKind::Taint, HoldKind::Maintenance];
    let request = HoldRequest {
        kind: kinds.choose(rng).copied().unwrap(),
        for_s: rng.random_bool(0.5).then(|| rng.random_range(1..100)),
        ..hold_of(&target)
    };
    let held = holds::put(db, &caller(owner), &request).await?;
    Ok(format!("{target} by {owner}, {}: {}", request.kind, held.opened))
}

async fn resumed(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let request = ResumeRequest { all: rng.random_bool(0.6), ..resume_of(&target(rng)) };
    let lifted = resume(db, &caller(user(rng)), &request).await?;
    Ok(format!("{}: {} lifted", request.target, lifted.holds.len()))
}

/// A node, one of its GPUs or a part of one.
fn target(rng: &mut StdRng) -> String {
    let node = node_name(rng);
    let gpu = rng.random_range(0..4);
    match rng.random_range(0..4) {
        0 | 1 => node,
        2 => format!("{node}/{gpu}"),
        _ => format!("{node}/{gpu}/mig:1g.10gb@{}", rng.random_range(0..3)),
    }
}

/// A GPU's health goes to and fro.
async fn quarantined(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let gpu = format!("{}/{}", node_name(rng), rng.random_range(0..4));
    let changed = if rng.random_bool(0.4) {
        quarantine(db, &gpu, "torture").await?
    } else {
        end_quarantine(db, &gpu).await?
    };
    Ok(format!("{gpu}: {changed}"))
}

/// A node goes away and comes back, perhaps with less.
async fn flipped(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let name = node_name(rng);
    let session = *world.sessions.lock().unwrap()[&name].last().unwrap();
    close_session(db, session, Absence::SessionClosed).await?;
    let cpus = if rng.random_bool(0.3) { 4 } else { 8 };
    let gpus = if rng.random_bool(0.3) { 2 } else { 4 };
    let session = open_session(db, &hello(&name, cpus, gpus)).await?;
    let mut sessions = world.sessions.lock().unwrap();
    let of_node = sessions.get_mut(&name).unwrap();
    of_node.push(session);
    // Two that open at once may be answered in the other order.
    of_node.sort_by_key(|s| s.epoch);
    Ok(format!("{name} with {cpus} CPUs and {gpus} GPUs, epoch {}", session.epoch))
}

async fn stepped(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let s = rng.random_range(1..30);
    let _one_at_a_time = world.clock.lock().await;
    pass(db, s).await;
    let extended = extend_overdue(db).await?;
    Ok(format!("{s} s, {extended} bookings extended"))
}

async fn set_mode(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let (mode, slots) = match rng.random_range(0..5) {
        0 => (GpuMode::Mig, None),
        1 => (GpuMode::Timeslice, Some(4)),
        _ => (GpuMode::Whole, None),
    };
    let request = GpuChangeRequest {
        idempotency_key: format!("m{}", world.serial()),
        gpu: format!("GPU-{}-{}", node_name(rng), rng.random_range(0..4)),
        mode,
        slots,
        layout: None,
        begin: rng.random_bool(0.6).then(|| Begin::AfterS(rng.random_range(1..300))),
        window_s: Some(rng.random_range(1..100)),
        preview: false,
    };
    modes::change(db, &caller("root"), &request).await?;
    Ok(format!("{} to {mode:?} {:?}", request.gpu, request.begin))
}

async fn modes_due(world: &World, rng: &mut StdRng) -> Done {
    Ok(format!("{} made", modes::complete_due(world.any(rng)).await?))
}

async fn unset_mode(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let booked: Vec<i64> =
        sqlx::query_scalar("SELECT id FROM gpu_changes WHERE ended_at IS NULL ORDER BY id")
            .fetch_all(db)
            .await?;
    let Some(id) = booked.choose(rng).copied() else { return Ok("there is none".into()) };
    modes::cancel(db, id).await?;
    Ok(format!("change {id}"))
}

/// Another limit, or none; also one below what is used.
async fn limited(world: &World, rng: &mut StdRng) -> Done {
    let db = world.any(rng);
    let limits = [("jobs", 400), ("cpus", 800), ("gpu_units", 400 * 5040)];
    let (resource, most) = limits.choose(rng).copied().unwrap();
    let max: Option<i64> = rng.random_bool(0.6).then(|| rng.random_range(0..most));
    sqlx::query(
        "INSERT INTO quota_usage AS q (tenant_id, resource, max, ceiling)
         SELECT id, $1, $2, $2 FROM tenants WHERE name = 'default'
         ON CONFLICT (tenant_id, resource) DO UPDATE
         SET max = $2, ceiling = CASE WHEN $2 IS NOT NULL THEN GREATEST($2, q.used) END",
    )
    .bind(resource)
    .bind(max)
    .execute(db)
    .await?;
    Ok(format!("{resource} {max:?}"))
}
