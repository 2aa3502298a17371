//! Holds: ordered with placements at every step, put ahead, lifted by whom they belong to, and over in their time.

use super::super::extend::extend;
use super::super::holds::{Advanced, advance, end_quarantine, impact, list, next_s, put, quarantine, resume};
use super::super::reservations::reserve;
use super::super::snapshot::why;
use super::super::steps::gated;
use super::*;
use ctld_core::plan::Placement;
use proto::api::{Begin, ExtendRequest, Hold, ReserveRequest};
use proto::{ErrorCode, HoldKind};
use tokio::task::JoinHandle;

const HOUR: u64 = 3600;

async fn fleet(db: &PgPool) {
    with_pool(db).await;
    node(db, "n1", 8, 2).await;
    stop_clock(db).await;
}

async fn refused(db: &PgPool, request: &HoldRequest) -> ApiError {
    put(db, &caller("root"), request).await.unwrap_err().into()
}

async fn not_resumed(db: &PgPool, user: &str, request: &ResumeRequest) -> ApiError {
    resume(db, &caller(user), request).await.unwrap_err().into()
}

async fn lifted(db: &PgPool, user: &str, request: &ResumeRequest) -> Vec<Hold> {
    resume(db, &caller(user), request).await.unwrap().holds
}

/// What is open, as `target owner`.
async fn open(db: &PgPool) -> Vec<String> {
    let holds = list(db, None).await.unwrap().holds;
    holds.iter().map(|hold| format!("{} {}", hold.target, hold.owner)).collect()
}

async fn takes_work(db: &PgPool) -> bool {
    sqlx::query_scalar("SELECT eligible FROM nodes").fetch_one(db).await.unwrap()
}

/// A booking of exactly so long: limit, grace and clean-up.
fn lasting(s: u64, job: Submission) -> Submission {
    Submission { time_limit_s: Some(s - 90), ..job }
}

/// Whether the task is over, or waits for a lock that somebody else has.
pub(super) async fn done_or_blocked<T>(db: &PgPool, task: &JoinHandle<T>) -> bool {
    loop {
        if task.is_finished() {
            return true;
        }
        let blocked: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')",
        )
        .fetch_one(db)
        .await
        .unwrap();
        if blocked {
            return task.is_finished();
        }
    }
}

/// The drain and the placement of one job, one of them held at a step; `n1` is drained, or the job's GPU.
struct Race {
    placements: Vec<Placement>,
    request: HoldRequest,
}

async fn race(db: &PgPool, key: &str, of_gpu: bool) -> Race {
    let job_id = submit_one(db, Submission { gpus: 1, mem_mib: Some(10), ..job(key) }).await;
    let mut placements = plan(db).await.placements;
    placements.retain(|placement| placement.job_id == job_id);
    let gpu_id = placements[0].shares[0].gpu_ids[0];
    let uuid: String =
        sqlx::query_scalar("SELECT uuid FROM gpus WHERE id = $1").bind(gpu_id).fetch_one(db).await.unwrap();
    Race { placements, request: hold_of(if of_gpu { &uuid } else { "n1" }) }
}

/// After both are over nothing more begins there; then the hold is lifted.
async fn settle(db: &PgPool, race: &Race, placed: usize, hold_first: bool, what: &str) {
    assert_eq!(placed, usize::from(!hold_first), "{what}: whichever commits second sees the first");
    let after = apply(db, Scope::Pool, &race.placements, GRACE_S).await.unwrap();
    assert_eq!(after.placed, 0, "{what}: nothing begins after the hold was acknowledged");
    assert_eq!(lifted(db, "root", &resume_of(&race.request.target)).await.len(), 1);
    audit(db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_hold_and_a_placement_are_ordered_at_every_interleaving(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 64, 32).await;
    for of_gpu in [false, true] {
        for (step, hold_first) in [
            ("place: begun", true),
            ("place: jobs locked", true),
            ("place: holds read", false),
            ("place: booked", false),
        ] {
            let race = race(&db, &format!("{step} {of_gpu}"), of_gpu).await;
            let (one, placements) = (db.clone(), race.placements.clone());
            let (act, arrived, gate) =
                gated(step, async move { apply(&one, Scope::Pool, &placements, 30).await });
            let placing = tokio::spawn(act);
            arrived.await.unwrap();
            let (other, request) = (db.clone(), race.request.clone());
            let holding = tokio::spawn(async move { put(&other, &caller("root"), &request).await });
            assert_eq!(done_or_blocked(&db, &holding).await, hold_first, "{step}");
            gate.add_permits(1);
            let placed = placing.await.unwrap().unwrap().placed;
            assert!(holding.await.unwrap().unwrap().opened);
            settle(&db, &race, placed, hold_first, step).await;
        }
        for (step, hold_first) in [("hold: found", false), ("hold: locked", true), ("hold: written", true)] {
            let race = race(&db, &format!("{step} {of_gpu}"), of_gpu).await;
            let (one, request) = (db.clone(), race.request.clone());
            let (act, arrived, gate) = gated(step, async move { put(&one, &caller("root"), &request).await });
            let holding = tokio::spawn(act);
            arrived.await.unwrap();
            let (other, placements) = (db.clone(), race.placements.clone());
            let placing = tokio::spawn(async move { apply(&other, Scope::Pool, &placements, 30).await });
            assert_eq!(done_or_blocked(&db, &placing).await, !hold_first, "{step}");
            gate.add_permits(1);
            assert!(holding.await.unwrap().unwrap().opened);
            let placed = placing.await.unwrap().unwrap().placed;
            settle(&db, &race, placed, hold_first, step).await;
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_hold_belongs_to_its_owner_and_each_lifts_their_own(db: PgPool) {
    fleet(&db).await;
    assert!(drain(&db, "alice", "n1").await.opened);
    assert!(!drain(&db, "alice", "n1").await.opened, "the first stands, with its reason");
    drain(&db, "bob", "n1").await;
    let for_carol = HoldRequest { owner: Some("carol".into()), ..hold_of("n1") };
    let put = put(&db, &caller("bob"), &for_carol).await.unwrap();
    assert_eq!((put.list.holds[0].owner.as_str(), put.list.holds[0].author.as_str()), ("carol", "bob"));
    assert_eq!(open(&db).await, ["n1 alice", "n1 bob", "n1 carol"]);

    assert_eq!(lifted(&db, "alice", &resume_of("n1")).await.len(), 1);
    assert!(!takes_work(&db).await, "others still hold it");
    let error = not_resumed(&db, "alice", &resume_of("n1")).await;
    assert_eq!(error.code, ErrorCode::Conflict);
    assert_eq!(error.message, "\"n1\" is held by \"bob\", \"carol\", not by you");
    let carols = ResumeRequest { owner: Some("carol".into()), ..resume_of("n1") };
    assert_eq!(lifted(&db, "alice", &carols).await[0].owner, "carol");
    assert_eq!(lifted(&db, "alice", &ResumeRequest { all: true, ..resume_of("n1") }).await.len(), 1);
    assert!(takes_work(&db).await);
    assert!(lifted(&db, "alice", &resume_of("n1")).await.is_empty(), "nobody holds it: nothing to do");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_controllers_own_holds_are_not_peoples_to_put_or_lift(db: PgPool) {
    fleet(&db).await;
    assert!(quarantine(&db, "GPU-n1-0", "too many ECC errors").await.unwrap());
    assert!(!quarantine(&db, "GPU-n1-0", "again").await.unwrap());
    let error = not_resumed(&db, "root", &ResumeRequest { all: true, ..resume_of("n1/0") }).await;
    assert_eq!(error.message, "\"n1/0\" is held by the controller: quarantine: too many ECC errors");
    let named = ResumeRequest { owner: Some("controller".into()), ..resume_of("n1/0") };
    assert_eq!(not_resumed(&db, "root", &named).await.code, ErrorCode::PermissionDenied);
    let as_it = HoldRequest { owner: Some("controller".into()), ..hold_of("n1") };
    assert_eq!(refused(&db, &as_it).await.code, ErrorCode::PermissionDenied);
    let unreachable = HoldRequest { kind: HoldKind::Unreachable, ..hold_of("n1") };
    assert_eq!(refused(&db, &unreachable).await.code, ErrorCode::InvalidArgument);
    // One of two GPUs is left; a person's quarantine is not ended with the controller's.
    submit_one(&db, Submission { gpus: 2, ..job("two") }).await;
    let waits = plan(&db).await.waits;
    assert_eq!(waits[0].1.message, "asks for 2 gpus; n1 has 1 free of 2");
    let mine = HoldRequest { kind: HoldKind::Quarantine, ..hold_of("n1/0") };
    put(&db, &caller("root"), &mine).await.unwrap();
    assert!(end_quarantine(&db, "GPU-n1-0").await.unwrap());
    assert!(!end_quarantine(&db, "GPU-n1-0").await.unwrap());
    assert_eq!(open(&db).await, ["n1/0 root"]);
    assert_eq!(lifted(&db, "root", &resume_of("GPU-n1-0")).await.len(), 1);
    assert_eq!(place(&db).await.placed, 1);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_hold_of_a_gpu_or_a_part_leaves_the_rest_of_the_node(db: PgPool) {
    fleet(&db).await;
    let stale = {
        submit_one(&db, Submission { gpus: 2, ..job("both") }).await;
        plan(&db).await.placements
    };
    drain(&db, "root", "n1/0/mig:1g.10gb@3").await;
    assert_eq!(apply(&db, Scope::Pool, &stale, GRACE_S).await.unwrap().placed, 0, "a part is not free");
    submit_one(&db, Submission { gpus: 1, ..job("one") }).await;
    assert_eq!(place(&db).await.placed, 1, "the other GPU");
    assert_eq!(
        why(&db, &"1".parse().unwrap(), GRACE_S).await.unwrap().jobs[0].reasons[0].message,
        "asks for 2 gpus; n1 has 0 free of 2"
    );
    assert!(lifted(&db, "root", &resume_of("n1/0")).await.is_empty(), "the whole GPU was not held");
    assert_eq!(lifted(&db, "root", &resume_of("GPU-n1-0/mig:1g.10gb@3")).await.len(), 1);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_target_that_is_none_is_refused_by_what_is_wrong_with_it(db: PgPool) {
    fleet(&db).await;
    for (target, code, says) in [
        ("n2", ErrorCode::NotFound, "no node and no GPU is called \"n2\""),
        ("n1/7", ErrorCode::NotFound, "node \"n1\" has no GPU \"7\""),
        ("n1/0/gpu", ErrorCode::InvalidArgument, "names the whole GPU twice"),
        ("n1/0/half", ErrorCode::InvalidArgument, "is no part of a GPU"),
        ("n1/0/mig:3g.40gb@2", ErrorCode::InvalidArgument, "cannot start at memory slice 2"),
        ("GPU-n1-0/slot:8/8", ErrorCode::InvalidArgument, "names slot 8 of 8"),
    ] {
        let error = refused(&db, &hold_of(target)).await;
        assert_eq!(error.code, code, "{target}");
        assert!(error.message.contains(says), "{target}: {error}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_hold_put_ahead_refuses_what_begins_in_it_whatever_was_planned_before(db: PgPool) {
    fleet(&db).await;
    submit_one(&db, lasting(9 * HOUR, job("a"))).await;
    let early = plan(&db).await.placements;
    let ahead = HoldRequest { at: Some(Begin::AfterS(HOUR)), for_s: Some(HOUR), ..hold_of("n1") };
    put(&db, &caller("root"), &ahead).await.unwrap();
    assert!(takes_work(&db).await, "not yet");
    assert_eq!(apply(&db, Scope::Pool, &early, GRACE_S).await.unwrap().placed, 1, "what runs then goes on");
    submit_one(&db, job("b")).await;
    let late = plan(&db).await.placements;
    assert_eq!(late.len(), 1);
    pass(&db, HOUR).await;
    // Nobody has looked after holds: the flag on the row still says yes.
    assert!(takes_work(&db).await);
    assert_eq!(apply(&db, Scope::Pool, &late, GRACE_S).await.unwrap().placed, 0);
    assert!(plan(&db).await.placements.is_empty());
    assert_eq!(advance(&db).await.unwrap(), Advanced { ended: 0, changed: 1 });
    assert!(!takes_work(&db).await);
    assert_eq!(next_s(&db).await.unwrap(), Some(HOUR as f64));
    pass(&db, HOUR).await;
    assert_eq!(advance(&db).await.unwrap(), Advanced { ended: 1, changed: 1 });
    assert_eq!((advance(&db).await.unwrap(), next_s(&db).await.unwrap()), (Advanced::default(), None));
    assert_eq!(place(&db).await.placed, 1);
    let closed_by: String = sqlx::query_scalar("SELECT closed_by FROM holds").fetch_one(&db).await.unwrap();
    assert_eq!(closed_by, "controller");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn work_is_over_when_a_maintenance_begins_or_does_not_begin(db: PgPool) {
    fleet(&db).await;
    submit_one(&db, lasting(2 * HOUR, Submission { gpus: 1, ..job("stale") })).await;
    let stale = plan(&db).await.placements;
    let kind = HoldKind::Maintenance;
    let of_node = HoldRequest { kind, at: Some(Begin::AfterS(HOUR)), for_s: Some(HOUR), ..hold_of("n1") };
    put(&db, &caller("root"), &of_node).await.unwrap();
    assert_eq!(apply(&db, Scope::Pool, &stale, GRACE_S).await.unwrap().placed, 0, "it would run into it");
    let short = submit_one(&db, lasting(HOUR, job("short"))).await;
    let done = plan(&db).await;
    assert_eq!(done.placements[0].job_id, short);
    assert_eq!(
        done.waits[0].1.message,
        "may last 02:00:00 with its grace; n1 is under maintenance in 01:00:00"
    );
    assert_eq!(place(&db).await.placed, 1);
    // What runs may not be made to last into it, nor a reservation booked over it.
    let more =
        ExtendRequest { idempotency_key: "e".into(), what: short.to_string(), by_s: Some(60), end_at: None };
    let error = ApiError::from(extend(&db, &caller("alice"), &more, GRACE_S).await.unwrap_err());
    assert!(error.message.starts_with("node n1 is under maintenance from "), "{error}");
    let over = |name: &str, after_s| ReserveRequest {
        idempotency_key: name.into(),
        name: name.into(),
        begin: Some(Begin::AfterS(after_s)),
        duration_s: Some(HOUR),
        cpus: 1,
        ..ReserveRequest::default()
    };
    let error = ApiError::from(reserve(&db, &caller("alice"), &over("r", HOUR / 2)).await.unwrap_err());
    assert_eq!(error.code, ErrorCode::Conflict, "{error}");
    reserve(&db, &caller("alice"), &over("after", 2 * HOUR)).await.unwrap();
    audit(&db).await;
    pass(&db, 2 * HOUR).await;
    advance(&db).await.unwrap();
    assert_eq!(open(&db).await, Vec::<String>::new());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_maintenance_of_a_gpu_is_known_to_the_planner_and_to_extensions(db: PgPool) {
    fleet(&db).await;
    let id = submit_one(&db, lasting(HOUR, Submission { gpus: 1, ..job("a") })).await;
    assert_eq!(place(&db).await.placed, 1);
    for gpu in ["n1/0", "n1/1"] {
        let kind = HoldKind::Maintenance;
        let ahead = HoldRequest { kind, at: Some(Begin::AfterS(HOUR)), ..hold_of(gpu) };
        put(&db, &caller("root"), &ahead).await.unwrap();
    }
    let more =
        ExtendRequest { idempotency_key: "e".into(), what: id.to_string(), by_s: Some(60), end_at: None };
    let error = ApiError::from(extend(&db, &caller("alice"), &more, GRACE_S).await.unwrap_err());
    assert!(error.message.starts_with("a GPU of node n1 is under maintenance from "), "{error}");
    submit_one(&db, lasting(HOUR + 1, Submission { gpus: 1, ..job("long") })).await;
    submit_one(&db, lasting(2 * HOUR, job("without"))).await;
    assert_eq!(place(&db).await.placed, 1, "the node itself is not under maintenance");
    submit_one(&db, lasting(HOUR, Submission { gpus: 1, ..job("short") })).await;
    assert_eq!(place(&db).await.placed, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_part_that_is_held_cannot_be_reserved(db: PgPool) {
    fleet(&db).await;
    sqlx::raw_sql("UPDATE gpu_modes SET mode = 'mig'; UPDATE gpus SET mode = 'mig'")
        .execute(&db)
        .await
        .unwrap();
    let ahead =
        HoldRequest { at: Some(Begin::AfterS(HOUR)), for_s: Some(HOUR), ..hold_of("n1/0/mig:3g.40gb@4") };
    put(&db, &caller("root"), &ahead).await.unwrap();
    let part = |name: &str, atom: &str, after_s| ReserveRequest {
        idempotency_key: name.into(),
        name: name.into(),
        begin: Some(Begin::AfterS(after_s)),
        duration_s: Some(HOUR),
        atoms: vec![format!("GPU-n1-0/{atom}").parse().unwrap()],
        ..ReserveRequest::default()
    };
    let inside = part("in", "mig:1g.10gb@5", HOUR);
    let error = ApiError::from(reserve(&db, &caller("alice"), &inside).await.unwrap_err());
    assert_eq!(error.message, "reservation \"in\" cannot have GPU-n1-0/mig:1g.10gb@5: a drain holds it then");
    reserve(&db, &caller("alice"), &part("beside", "mig:1g.10gb@3", HOUR)).await.unwrap();
    reserve(&db, &caller("alice"), &part("before", "mig:1g.10gb@5", HOUR / 2)).await.unwrap();
    reserve(&db, &caller("alice"), &part("after", "mig:1g.10gb@5", 2 * HOUR)).await.unwrap();
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_hold_would_touch_is_told_and_nothing_changes(db: PgPool) {
    fleet(&db).await;
    let short = submit_one(&db, lasting(HOUR, Submission { gpus: 1, ..job("short") })).await;
    let long = submit_one(&db, lasting(3 * HOUR, job("long"))).await;
    assert_eq!(place(&db).await.placed, 2);
    let reservation = ReserveRequest {
        idempotency_key: "r".into(),
        name: "tue".into(),
        begin: Some(Begin::AfterS(5 * HOUR)),
        duration_s: Some(HOUR),
        cpus: 1,
        ..ReserveRequest::default()
    };
    reserve(&db, &caller("alice"), &reservation).await.unwrap();
    let ahead = HoldRequest { at: Some(Begin::AfterS(2 * HOUR)), ..hold_of("n1") };
    let node = impact(&db, &ahead).await.unwrap();
    let jobs: Vec<_> = node.jobs.iter().map(|job| (job.job.clone(), job.runs_into)).collect();
    assert_eq!(jobs, [(long.to_string(), true), (short.to_string(), false)]);
    assert_eq!(node.jobs[1].until.unwrap(), node.from - chrono::TimeDelta::hours(1));
    assert_eq!(node.reservations.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["tue"]);
    let until = HoldRequest { for_s: Some(3 * HOUR), ..ahead.clone() };
    assert!(impact(&db, &until).await.unwrap().reservations.is_empty(), "over before it begins");
    let gpu = impact(&db, &HoldRequest { target: "n1/0".into(), ..ahead.clone() }).await.unwrap();
    assert_eq!((gpu.jobs.len(), gpu.reservations.len()), (1, 0));
    let other = impact(&db, &HoldRequest { target: "n1/1/slot:0/2".into(), ..ahead }).await.unwrap();
    assert_eq!((other.target.as_str(), other.jobs.len()), ("n1/1/slot:0/2", 0));
    assert!(open(&db).await.is_empty());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_hold_to_come_is_lifted_only_when_asked_for(db: PgPool) {
    fleet(&db).await;
    let ahead = HoldRequest { at: Some(Begin::AfterS(HOUR)), ..hold_of("n1") };
    put(&db, &caller("root"), &ahead).await.unwrap();
    assert!(drain(&db, "root", "n1").await.opened, "one to come is none for now");
    assert_eq!(lifted(&db, "root", &resume_of("n1")).await.len(), 1);
    let error = not_resumed(&db, "root", &resume_of("n1")).await;
    assert!(error.message.starts_with("\"n1\" is not held now; a drain by root begins at "), "{error}");
    assert_eq!(lifted(&db, "root", &ResumeRequest { planned: true, ..resume_of("n1") }).await.len(), 1);
    for (request, says) in [
        (
            HoldRequest { at: Some(Begin::At("2020-01-01T00:00:00Z".parse().unwrap())), ..hold_of("n1") },
            "has passed",
        ),
        (HoldRequest { at: Some(Begin::AfterS(u64::MAX)), ..hold_of("n1") }, "ten years"),
        (HoldRequest { for_s: Some(0), ..hold_of("n1") }, "before it begins"),
    ] {
        let error = refused(&db, &request).await;
        assert!(error.message.contains(says), "{error}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_repeated_request_is_answered_alike_and_done_once(db: PgPool) {
    fleet(&db).await;
    let (root, request) = (caller("root"), hold_of("n1"));
    let (one, other) = tokio::join!(put(&db, &root, &request), put(&db, &root, &request));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.list, one.opened != other.opened), (other.list, true));
    let lift = resume_of("n1");
    let first = resume(&db, &caller("root"), &lift).await.unwrap();
    assert_eq!(first.holds.len(), 1);
    drain(&db, "root", "n1").await;
    assert_eq!(resume(&db, &caller("root"), &lift).await.unwrap(), first);
    assert_eq!(open(&db).await, ["n1 root"], "the repetition lifted nothing");
    let another = ResumeRequest { all: true, ..lift };
    assert_eq!(not_resumed(&db, "root", &another).await.code, ErrorCode::Conflict);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gpu_that_comes_with_another_nodes_name_keeps_its_holds_and_they_can_be_lifted(db: PgPool) {
    fleet(&db).await;
    drain(&db, "op", "n1/0").await;
    sqlx::query("UPDATE nodes SET connection = 'disconnected', disconnected_at = compute_now(), unreachable_at = compute_now()").execute(&db).await.unwrap();
    let renamed = hello("n1", 8, 2);
    open_session(&db, &Hello { node: "n2".into(), ..renamed }).await.unwrap();
    assert_eq!(open(&db).await, ["n2/0 op"]);
    assert_eq!(lifted(&db, "op", &resume_of("n2/0")).await.len(), 1);
    assert!(open(&db).await.is_empty());
    audit(&db).await;
}
