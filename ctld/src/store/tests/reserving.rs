//! Reservations: booked whole or not at all, kept free for those they admit, carved for jobs and given back.

use super::super::extend::extend;
use super::super::overrun::extend_overdue;
use super::super::reservations::{Advanced, advance, cancel, named, reserve};
use super::*;
use proto::ErrorCode;
use proto::api::{Begin, ExtendRequest, Repeat, RepeatEvery, Reservation, ReserveRequest};

pub(super) const HOUR: u64 = 3600;

pub(super) async fn fleet(db: &PgPool) -> Session {
    with_pool(db).await;
    let session = node(db, "n1", 8, 2).await;
    stop_clock(db).await;
    session
}

/// An hour on both GPUs and four CPUs, an hour from now.
pub(super) fn later(name: &str) -> ReserveRequest {
    ReserveRequest {
        idempotency_key: name.into(),
        name: name.into(),
        begin: Some(Begin::AfterS(HOUR)),
        duration_s: Some(HOUR),
        cpus: 4,
        mem_mib: 500,
        gpus: 2,
        ..ReserveRequest::default()
    }
}

pub(super) async fn reserved(db: &PgPool, request: &ReserveRequest) -> Reservation {
    reserve(db, &caller("alice"), request).await.unwrap().reservations.remove(0)
}

async fn refused(db: &PgPool, user: &str, request: &ReserveRequest) -> ApiError {
    ApiError::from(reserve(db, &caller(user), request).await.unwrap_err())
}

pub(super) fn lasting(s: u64, job: Submission) -> Submission {
    // Less what a booking has beyond the limit: grace and clean-up.
    Submission { time_limit_s: Some(s - 90), ..job }
}

async fn submit_into(db: &PgPool, reservation_id: i64, job: Submission) -> i64 {
    let id = submit_one(db, job).await;
    sqlx::query("UPDATE jobs SET reservation_id = $2 WHERE id = $1")
        .bind(id)
        .bind(reservation_id)
        .execute(db)
        .await
        .unwrap();
    id
}

async fn place_in(db: &PgPool, reservation_id: i64) -> usize {
    let pool_id = rules(db).await.unwrap()[0].id;
    let scope = Scope::Reservation(reservation_id);
    let plan = plan_of(db, Queue { pool_id, scope }).await;
    apply(db, scope, &plan.placements, GRACE_S).await.unwrap().placed
}

async fn allocated(db: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT allocated FROM node_resources WHERE resource = 'cpus'")
        .fetch_one(db)
        .await
        .unwrap()
}

/// What the book has of GPUs: kind, and minutes from the test's beginning.
async fn book(db: &PgPool, begun: chrono::DateTime<chrono::Utc>) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT format('%s %s-%s', kind, round(extract(epoch FROM lower(during) - $1) / 60),
             coalesce(round(extract(epoch FROM upper(during) - $1) / 60)::text, ''))
         FROM device_bookings ORDER BY gpu_id, lower(during)",
    )
    .bind(begun)
    .fetch_all(db)
    .await
    .unwrap()
}

pub(super) async fn now(db: &PgPool) -> chrono::DateTime<chrono::Utc> {
    super::super::database_now(db).await.unwrap()
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_reserved_is_free_before_and_kept_after(db: PgPool) {
    fleet(&db).await;
    let reservation = reserved(&db, &later("tue")).await;
    assert_eq!(reservation.state, "booked");
    assert_eq!(reservation.nodes[0].atoms.len(), 2);
    // Both GPUs for exactly the hour before; and no second longer.
    submit_one(&db, lasting(HOUR, Submission { gpus: 1, ..job("short") })).await;
    submit_one(&db, lasting(HOUR + 1, Submission { gpus: 1, ..job("long") })).await;
    // CPUs: eight now, four later.
    submit_one(&db, lasting(2 * HOUR, Submission { cpus: 5, ..job("cpus") })).await;
    submit_one(&db, lasting(2 * HOUR, Submission { cpus: 3, ..job("fits") })).await;
    assert_eq!(place(&db).await.placed, 2);
    let waits = plan(&db).await.waits;
    assert_eq!(
        waits[0].1.message,
        "asks for 1 gpus; n1 has 0 free of 2; 1 more is idle but booked within 01:00:00"
    );
    assert_eq!(waits[1].1.message, "asks for 5 cpus; n1 has 1 free of 8");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reservation_that_does_not_fit_says_when_it_would(db: PgPool) {
    fleet(&db).await;
    let begun = now(&db).await;
    reserved(&db, &later("tue")).await;
    let error = refused(&db, "bob", &ReserveRequest { gpus: 1, ..later("mine") }).await;
    assert_eq!(error.code, ErrorCode::Conflict);
    assert_eq!(error.message, "reservation \"mine\" does not fit: asks for 1 gpus; n1 has 0 free of 2");
    let at = (begun + chrono::TimeDelta::hours(2)).to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true);
    assert_eq!(error.hint.unwrap(), format!("the earliest it would fit is {at}"));
    let never = refused(&db, "bob", &ReserveRequest { gpus: 3, ..later("mine") }).await;
    assert_eq!(never.hint.unwrap(), "it fits at no later time either, as things are booked now");
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM reservations").fetch_one(&db).await.unwrap();
    assert_eq!(count, 1, "a refusal leaves nothing");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_same_key_is_answered_alike_and_another_body_is_a_conflict(db: PgPool) {
    fleet(&db).await;
    let first = reserved(&db, &later("tue")).await;
    pass(&db, 60).await;
    assert_eq!(reserved(&db, &later("tue")).await, first);
    let other = ReserveRequest { gpus: 1, ..later("tue") };
    assert_eq!(refused(&db, "alice", &other).await.code, ErrorCode::Conflict);
    // Another identity's key is another key; the name is taken all the same.
    let error =
        refused(&db, "bob", &ReserveRequest { begin: Some(Begin::AfterS(9 * HOUR)), ..later("tue") }).await;
    assert_eq!(error.message, "there is a reservation called \"tue\" already");
}

#[sqlx::test(migrations = "../migrations")]
async fn of_two_that_reserve_the_same_at_once_one_gets_it(db: PgPool) {
    fleet(&db).await;
    let (a, b) = (later("a"), later("b"));
    let (alice, bob) = (caller("alice"), caller("bob"));
    let (one, other) = tokio::join!(reserve(&db, &alice, &a), reserve(&db, &bob, &b));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_inside_is_carved_out_and_what_it_does_not_use_goes_back(db: PgPool) {
    let session = fleet(&db).await;
    let begun = now(&db).await;
    let r = reserved(&db, &ReserveRequest { begin: None, gpus: 1, ..later("r") }).await;
    assert_eq!((r.state.as_str(), allocated(&db).await), ("running", 4));
    let inside = submit_into(&db, r.id, lasting(1200, Submission { gpus: 1, cpus: 3, ..job("in") })).await;
    submit_into(&db, r.id, lasting(1200, Submission { cpus: 2, ..job("too-many") })).await;
    submit_into(&db, r.id, lasting(HOUR + 1, Submission { cpus: 1, ..job("too-long") })).await;
    assert_eq!(place(&db).await.placed, 0, "they are not the pool's");
    assert_eq!(place_in(&db, r.id).await, 1);
    assert_eq!(allocated(&db).await, 4, "the reservation has them already");
    assert_eq!(book(&db, begun).await, ["allocation 0-20", "reservation 20-60"]);
    audit(&db).await;
    // It ends early: the rest is the reservation's again, from the attested instant on.
    pass(&db, 600).await;
    let allocation = live(&db).await[0];
    report(&db, vec![exited(session, allocation, 0)]).await;
    assert_eq!(book(&db, begun).await, ["reservation 10-60"]);
    assert_eq!(allocated(&db).await, 4);
    assert_eq!(job_row(&db, inside).await.0, "completed");
    assert_eq!(place_in(&db, r.id).await, 1, "now there is room for the other");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_has_the_reservations_last_moment_gives_that_back_too(db: PgPool) {
    let session = fleet(&db).await;
    let begun = now(&db).await;
    let r = reserved(&db, &ReserveRequest { begin: None, gpus: 1, ..later("r") }).await;
    submit_into(&db, r.id, lasting(HOUR, Submission { gpus: 1, ..job("in") })).await;
    assert_eq!(place_in(&db, r.id).await, 1);
    assert_eq!(book(&db, begun).await, ["allocation 0-60"]);
    pass(&db, 600).await;
    report(&db, vec![exited(session, live(&db).await[0], 0)]).await;
    assert_eq!(book(&db, begun).await, ["reservation 10-60"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_whose_reservation_does_not_run_waits_for_that_and_nothing_else(db: PgPool) {
    fleet(&db).await;
    let tue = reserved(&db, &later("tue")).await;
    let id = submit_into(&db, tue.id, job("waits")).await;
    let why = async || {
        let list = super::super::snapshot::why(&db, &id.to_string().parse().unwrap(), GRACE_S).await.unwrap();
        let reasons = list.jobs[0].reasons.iter();
        reasons.map(|c| format!("{}: {}", c.reason.name(), c.message)).collect::<Vec<_>>().join("; ")
    };
    let begins = tue.begin_at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    assert_eq!(why().await, format!("Reservation: its reservation, tue, begins at {begins}"));
    cancel(&db, &caller("alice"), "tue").await.unwrap();
    let ended = "its reservation, tue, has ended; cancel the job or submit it without one";
    assert_eq!(why().await, format!("Reservation: {ended}"));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_named_part_is_reserved_or_said_why_not_and_never_left_out(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 8, 2).await;
    node(&db, "n2", 8, 2).await;
    stop_clock(&db).await;
    let named = |name: &str, atoms: &[&str]| ReserveRequest {
        gpus: 0,
        atoms: atoms.iter().map(|atom| atom.parse().unwrap()).collect(),
        ..later(name)
    };
    let on = |nodes: &[&str], request: ReserveRequest| ReserveRequest {
        node_names: nodes.iter().map(|name| (*name).to_owned()).collect(),
        ..request
    };
    // The other GPU is the whole one that is asked for beside it.
    let both = reserved(&db, &ReserveRequest { gpus: 1, ..named("both", &["GPU-n1-0"]) }).await;
    assert_eq!(both.nodes[0].atoms.len(), 2);
    for (request, says) in [
        (on(&["n1"], named("k", &["GPU-n2-0"])), "on node n2, which is not among the nodes that are named"),
        (named("k", &["GPU-n2-0", "GPU-n2-0"]), "is named twice"),
        (
            ReserveRequest { exclusive: true, ..named("k", &["GPU-n2-0"]) },
            "parts of their GPUs, which come with them",
        ),
        (named("k", &["GPU-n1-1"]), "cannot have GPU-n1-1: reservation both has gpu from "),
        (named("k", &["GPU-n2-0/mig:1g.10gb@0"]), "its GPU is in mode whole at "),
        (
            ReserveRequest { duration_s: Some(9_000_000_000_000_000), ..named("k", &["GPU-n2-0"]) },
            "more than ten years from now",
        ),
    ] {
        let error = refused(&db, "bob", &request).await;
        assert!(error.message.contains(says), "{}", error.message);
    }
    let far = ExtendRequest {
        idempotency_key: "e".into(),
        what: "both".into(),
        by_s: Some(400_000_000),
        end_at: None,
    };
    let error = ApiError::from(extend(&db, &caller("alice"), &far, GRACE_S).await.unwrap_err());
    assert!(error.message.contains("more than ten years from now"), "{}", error.message);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn an_account_admits_its_own_tenants_jobs_only(db: PgPool) {
    fleet(&db).await;
    reserved(&db, &ReserveRequest { accounts: vec!["proj".into()], ..later("r") }).await;
    let admit = async |tenant: &str, account: Option<&str>| {
        let caller = crate::app::Caller { tenant: tenant.into(), operator: false, ..caller("bob") };
        super::super::reservations::admit(&db, &caller, account, "r").await.is_ok()
    };
    assert!(admit("default", Some("proj")).await);
    assert!(!admit("default", None).await && !admit("default", Some("other")).await);
    assert!(!admit("physics", Some("proj")).await, "another tenant's account of that name is another");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_overrun_beside_which_there_is_room_moves_no_reservation(db: PgPool) {
    fleet(&db).await;
    submit_one(&db, lasting(HOUR, Submission { cpus: 1, ..job("stuck") })).await;
    assert_eq!(place(&db).await.placed, 1);
    let tue = reserved(&db, &later("tue")).await;
    pass(&db, HOUR - 30).await;
    extend_overdue(&db).await.unwrap();
    pass(&db, 30).await;
    advance(&db).await.unwrap();
    let now = named(&db, "tue").await.unwrap().reservations.remove(0);
    assert_eq!((now.state.as_str(), now.condition, now.nodes), ("running", None, tue.nodes));
    assert_eq!(allocated(&db).await, 5);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reservation_that_begins_without_a_gpu_says_so_until_it_has_it(db: PgPool) {
    let session = fleet(&db).await;
    submit_one(&db, lasting(HOUR, Submission { cpus: 1, gpus: 1, ..job("stuck") })).await;
    assert_eq!(place(&db).await.placed, 1);
    reserved(&db, &later("tue")).await;
    pass(&db, HOUR - 30).await;
    extend_overdue(&db).await.unwrap();
    pass(&db, 30).await;
    advance(&db).await.unwrap();
    let tue = async || named(&db, "tue").await.unwrap().reservations.remove(0);
    let begun = tue().await;
    assert_eq!(begun.state, "running");
    assert!(begun.condition.unwrap().message.contains("has overrun its time"));
    let allocation = live(&db).await[0];
    report(&db, vec![ended(session, allocation, EndCause::Exited, Some(0))]).await;
    pass(&db, 400).await;
    advance(&db).await.unwrap();
    assert_eq!(tue().await.condition, None);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_not_released_is_not_given_again_though_its_time_is_over(db: PgPool) {
    fleet(&db).await;
    submit_one(&db, lasting(HOUR, Submission { gpus: 2, ..job("stuck") })).await;
    assert_eq!(place(&db).await.placed, 1);
    submit_one(&db, Submission { gpus: 1, ..job("next") }).await;
    // Nobody looked after the bookings meanwhile.
    pass(&db, HOUR + 120).await;
    assert_eq!(place(&db).await.placed, 0);
    let gpu_ids = vec![sqlx::query_scalar("SELECT min(id) FROM gpus").fetch_one(&db).await.unwrap()];
    let mut stale = plan(&db).await.placements;
    assert!(stale.is_empty());
    let share = ctld_core::plan::Share { node_id: 1, cpus: 1, mem_mib: 100, disk_mib: 0, gpu_ids };
    stale.push(ctld_core::plan::Placement {
        job_id: 2,
        task: 0,
        lasts_us: super::super::place::booked_for_us(Some(600), GRACE_S),
        shares: vec![share],
    });
    assert_eq!(
        apply(&db, Scope::Pool, &stale, GRACE_S).await.unwrap().placed,
        0,
        "nor by a plan from before"
    );
    extend_overdue(&db).await.unwrap();
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_still_inside_when_a_reservation_ends_goes_on_in_its_own_name(db: PgPool) {
    let session = fleet(&db).await;
    let r = reserved(&db, &ReserveRequest { begin: None, gpus: 1, ..later("r") }).await;
    submit_into(&db, r.id, lasting(HOUR, Submission { gpus: 1, cpus: 3, ..job("in") })).await;
    submit_into(&db, r.id, lasting(HOUR, Submission { cpus: 4, ..job("waits") })).await;
    assert_eq!(place_in(&db, r.id).await, 1);
    pass(&db, HOUR).await;
    extend_overdue(&db).await.unwrap();
    assert_eq!(advance(&db).await.unwrap(), Advanced { begun: 0, ended: 1 });
    assert_eq!(allocated(&db).await, 3);
    report(&db, vec![exited(session, live(&db).await[0], 0)]).await;
    assert_eq!(allocated(&db).await, 0);
    let why: String = sqlx::query_scalar("SELECT condition->>'reason' FROM jobs WHERE state = 'pending'")
        .fetch_one(&db)
        .await
        .unwrap();
    assert_eq!(why, "Reservation");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reservation_begins_and_ends_in_its_time_and_its_cancel_frees_the_rest(db: PgPool) {
    fleet(&db).await;
    let r = reserved(&db, &later("r")).await;
    assert_eq!(advance(&db).await.unwrap(), Advanced::default());
    pass(&db, HOUR).await;
    assert_eq!(advance(&db).await.unwrap(), Advanced { begun: 1, ended: 0 });
    assert_eq!(allocated(&db).await, 4);
    assert_eq!(advance(&db).await.unwrap(), Advanced::default(), "twice changes nothing");
    let error = ApiError::from(cancel(&db, &caller("bob"), "r").await.unwrap_err());
    assert_eq!(error.code, ErrorCode::PermissionDenied);
    pass(&db, 60).await;
    assert_eq!(cancel(&db, &caller("alice"), "r").await.unwrap(), [r.id]);
    assert_eq!(allocated(&db).await, 0);
    assert!(book(&db, now(&db).await).await.is_empty());
    assert_eq!(named(&db, "r").await.unwrap().reservations[0].state, "cancelled");
    let past: i64 = sqlx::query_scalar(
        "SELECT sum(extract(epoch FROM upper(during) - lower(during)))::bigint FROM device_bookings_history",
    )
    .fetch_one(&db)
    .await
    .unwrap();
    assert_eq!(past, 120, "a minute of two GPUs");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_series_is_booked_whole_or_not_at_all(db: PgPool) {
    fleet(&db).await;
    let day = Some(Repeat { every: RepeatEvery::Day, times: 3 });
    let list =
        reserve(&db, &caller("alice"), &ReserveRequest { repeat: day.clone(), ..later("s") }).await.unwrap();
    let series: Vec<_> = list.reservations.iter().map(|r| (r.occurrence, r.series)).collect();
    let first = Some(list.reservations[0].id);
    assert_eq!(series, [(1, first), (2, first), (3, first)]);
    // Another that would meet only the second occurrence.
    let second = Some(Begin::AfterS(25 * HOUR));
    let error =
        refused(&db, "bob", &ReserveRequest { begin: second, repeat: day, gpus: 1, ..later("t") }).await;
    assert_eq!(error.code, ErrorCode::Conflict);
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM reservations").fetch_one(&db).await.unwrap();
    assert_eq!(count, 3);
}

fn more(what: impl ToString, by_s: u64) -> ExtendRequest {
    let what = what.to_string();
    ExtendRequest { idempotency_key: format!("{what}+{by_s}"), what, by_s: Some(by_s), end_at: None }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_is_extended_exactly_if_the_book_is_free(db: PgPool) {
    fleet(&db).await;
    let begun = now(&db).await;
    let id = submit_one(&db, lasting(1800, Submission { gpus: 1, ..job("a") })).await;
    place(&db).await;
    reserved(&db, &later("r")).await;
    let alice = caller("alice");
    let done = extend(&db, &alice, &more(id, 1800), GRACE_S).await.unwrap();
    assert_eq!(done.extended.time_limit_s, Some(HOUR - 90));
    assert_eq!(book(&db, begun).await[0], "allocation 0-60");
    // The same again is the same answer, not another half hour.
    assert_eq!(extend(&db, &alice, &more(id, 1800), GRACE_S).await.unwrap().extended, done.extended);
    let error = ApiError::from(extend(&db, &alice, &more(id, 1), GRACE_S).await.unwrap_err());
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("is booked by reservation r from"), "{}", error.message);
    assert_eq!(book(&db, begun).await[0], "allocation 0-60");
    // Amounts, too: the reservation has four of eight CPUs.
    let id = submit_one(&db, lasting(1800, Submission { cpus: 5, ..job("cpus") })).await;
    place(&db).await;
    let error = ApiError::from(extend(&db, &alice, &more(id, HOUR), GRACE_S).await.unwrap_err());
    assert!(error.message.starts_with("node n1 has 1 CPUs too few before"), "{}", error.message);
    assert!(extend(&db, &alice, &more(id, 1800), GRACE_S).await.is_ok());
    let error = ApiError::from(extend(&db, &caller("bob"), &more(id, 2), GRACE_S).await.unwrap_err());
    assert_eq!(error.code, ErrorCode::PermissionDenied);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reservation_is_extended_and_with_it_what_a_job_inside_may_ask(db: PgPool) {
    fleet(&db).await;
    let begun = now(&db).await;
    let r = reserved(&db, &ReserveRequest { begin: None, gpus: 1, ..later("r") }).await;
    let id = submit_into(&db, r.id, lasting(HOUR, Submission { gpus: 1, ..job("in") })).await;
    place_in(&db, r.id).await;
    let alice = caller("alice");
    let error = ApiError::from(extend(&db, &alice, &more(id, 600), GRACE_S).await.unwrap_err());
    assert!(error.message.contains("its reservation r ends at"), "{}", error.message);
    extend(&db, &alice, &more("r", 1200), GRACE_S).await.unwrap();
    assert_eq!(book(&db, begun).await, ["allocation 0-60", "reservation 60-80"]);
    extend(&db, &alice, &more(id, 600), GRACE_S).await.unwrap();
    assert_eq!(book(&db, begun).await, ["allocation 0-70", "reservation 70-80"]);
    extend(&db, &alice, &ExtendRequest { idempotency_key: "again".into(), ..more(id, 600) }, GRACE_S)
        .await
        .unwrap();
    assert_eq!(book(&db, begun).await, ["allocation 0-80"]);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn an_overrun_keeps_its_place_and_the_reservation_behind_it_waits(db: PgPool) {
    let session = fleet(&db).await;
    let begun = now(&db).await;
    submit_one(&db, lasting(HOUR, Submission { gpus: 1, cpus: 8, ..job("a") })).await;
    assert_eq!(place(&db).await.placed, 1);
    reserved(&db, &later("r")).await;
    pass(&db, HOUR - 30).await;
    assert!(extend_overdue(&db).await.unwrap() > 0);
    // Extended by five minutes beyond the minute looked ahead; the other GPU is the reservation's in time.
    assert_eq!(book(&db, begun).await, ["allocation 0-66", "reservation 66-120", "reservation 60-120"]);
    pass(&db, 30).await;
    assert_eq!(advance(&db).await.unwrap(), Advanced::default(), "its CPUs are still in use");
    let r = named(&db, "r").await.unwrap().reservations.remove(0);
    assert!(r.condition.unwrap().message.contains("has overrun its time"));
    audit(&db).await;
    report(&db, vec![ended(session, live(&db).await[0], EndCause::TimeLimit, None)]).await;
    pass(&db, 330).await;
    assert_eq!(advance(&db).await.unwrap(), Advanced { begun: 1, ended: 0 });
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_comes_back_with_less_keeps_what_is_reserved_of_it(db: PgPool) {
    fleet(&db).await;
    reserved(&db, &ReserveRequest { cpus: 6, gpus: 0, ..later("r") }).await;
    open_session(&db, &hello("n1", 2, 2)).await.unwrap();
    audit(&db).await;
    // What is not reserved is not given any more.
    submit_one(&db, lasting(2 * HOUR, Submission { cpus: 1, ..job("small") })).await;
    assert_eq!(place(&db).await.placed, 0);
    cancel(&db, &caller("alice"), "r").await.unwrap();
    open_session(&db, &hello("n1", 2, 2)).await.unwrap();
    assert_eq!(place(&db).await.placed, 1);
    audit(&db).await;
}

/// Between its beginning and the look that begins it, its amounts are in no counter.
#[sqlx::test(migrations = "../migrations")]
async fn a_reservation_whose_time_has_come_has_its_place_before_it_begins(db: PgPool) {
    fleet(&db).await;
    reserved(&db, &ReserveRequest { cpus: 6, gpus: 0, ..later("r") }).await;
    pass(&db, HOUR + 1).await;
    submit_one(&db, Submission { cpus: 3, ..job("too-many") }).await;
    assert_eq!(place(&db).await.placed, 0);
    assert_eq!(advance(&db).await.unwrap(), Advanced { begun: 1, ended: 0 });
    audit(&db).await;
}
