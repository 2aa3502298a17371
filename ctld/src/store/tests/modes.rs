//! Changes of GPUs' modes: booked where nothing is in the way, made in their time, and never against a booking.

use super::super::modes::{cancel, change, complete_due, list};
use super::super::overrun::extend_overdue;
use super::super::reservations::{self, reserve};
use super::reserving::{HOUR, fleet, lasting, later, now, reserved};
use super::*;
use proto::api::{Begin, GpuChange, GpuChangeRequest, ReserveRequest};
use proto::{ErrorCode, GpuMode};

const GPU: &str = "GPU-n1-0";

fn to(mode: GpuMode, key: &str) -> GpuChangeRequest {
    GpuChangeRequest {
        idempotency_key: key.into(),
        gpu: GPU.into(),
        mode,
        slots: None,
        layout: None,
        begin: None,
        window_s: None,
        preview: false,
    }
}

fn at(s: u64, request: GpuChangeRequest) -> GpuChangeRequest {
    GpuChangeRequest { begin: Some(Begin::AfterS(s)), ..request }
}

async fn changed(db: &PgPool, request: &GpuChangeRequest) -> GpuChange {
    change(db, &caller("op"), request).await.unwrap().change.unwrap()
}

async fn refused(db: &PgPool, request: &GpuChangeRequest) -> ApiError {
    ApiError::from(change(db, &caller("op"), request).await.unwrap_err())
}

/// An hour on parts of the first GPU.
fn parts(name: &str, after_s: u64, atoms: &[&str]) -> ReserveRequest {
    ReserveRequest {
        begin: Some(Begin::AfterS(after_s)),
        gpus: 0,
        atoms: atoms.iter().map(|atom| format!("{GPU}/{atom}").parse().unwrap()).collect(),
        ..later(name)
    }
}

async fn mode_now(db: &PgPool) -> (String, i32) {
    sqlx::query_as("SELECT mode, slots FROM gpus WHERE uuid = $1").bind(GPU).fetch_one(db).await.unwrap()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_change_now_is_made_now_and_what_is_asked_twice_is_made_once(db: PgPool) {
    fleet(&db).await;
    let request = GpuChangeRequest { slots: Some(4), ..to(GpuMode::Timeslice, "k") };
    let first = changed(&db, &request).await;
    assert_eq!((first.state.as_str(), mode_now(&db).await), ("done", ("timeslice".to_owned(), 4)));
    pass(&db, 60).await;
    assert_eq!(changed(&db, &request).await, first);
    let other = GpuChangeRequest { slots: Some(8), ..request.clone() };
    assert_eq!(refused(&db, &other).await.code, ErrorCode::Conflict);
    let again = refused(&db, &GpuChangeRequest { idempotency_key: "l".into(), ..request }).await;
    assert!(again.message.contains("is set so already"), "{}", again.message);
    // The GPU is no whole one any more.
    submit_one(&db, Submission { gpus: 2, ..job("two") }).await;
    assert_eq!(place(&db).await.placed, 0);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_in_the_way_is_named_and_so_is_the_earliest_time(db: PgPool) {
    fleet(&db).await;
    let begun = now(&db).await;
    let id = submit_one(&db, lasting(HOUR, Submission { gpus: 2, ..job("both") })).await;
    assert_eq!(place(&db).await.placed, 1);
    let error = refused(&db, &to(GpuMode::Mig, "k")).await;
    assert!(error.message.contains(&format!("job {id} has gpu from ")), "{}", error.message);
    let earliest = (begun + chrono::TimeDelta::hours(1)).to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true);
    assert_eq!(
        error.hint.unwrap(),
        format!("the earliest it can be changed is {earliest}, as it is booked now")
    );
    let preview = GpuChangeRequest { preview: true, ..to(GpuMode::Mig, "p") };
    let answer = change(&db, &caller("op"), &preview).await.unwrap();
    assert_eq!((answer.change, answer.in_the_way.len()), (None, 1));
    let booked = changed(&db, &at(HOUR, to(GpuMode::Mig, "l"))).await;
    assert_eq!((booked.state.as_str(), mode_now(&db).await.0.as_str()), ("booked", "whole"));
    assert_eq!(complete_due(&db).await.unwrap(), 0, "its time has not come");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_booked_change_keeps_its_window_free_and_brings_atoms_behind_it(db: PgPool) {
    fleet(&db).await;
    changed(&db, &GpuChangeRequest { window_s: Some(600), ..at(HOUR, to(GpuMode::Mig, "k")) }).await;
    // Whole until then and not a second longer: one GPU has the change, the other is free for ever.
    for (key, s, placed) in [("a", 2 * HOUR, 1), ("b", HOUR + 1, 0), ("c", HOUR, 1)] {
        submit_one(&db, lasting(s, Submission { gpus: 1, ..job(key) })).await;
        assert_eq!(place(&db).await.placed, placed, "{key}");
    }
    let mig = "mig:3g.40gb@0";
    let caller = caller("alice");
    for after in [HOUR / 2, HOUR, HOUR + 599] {
        let early = reserve(&db, &caller, &parts("early", after, &[mig])).await.unwrap_err();
        assert_eq!(ApiError::from(early).code, ErrorCode::Conflict, "{after}");
    }
    reserved(&db, &parts("tue", HOUR + 600, &[mig])).await;
    audit(&db).await;
    // Now something relies on the change, and on nothing else coming before.
    let id = list(&db, false).await.unwrap().changes[0].id;
    let error = ApiError::from(cancel(&db, id).await.unwrap_err());
    assert!(
        error.message.ends_with("reservation tue is booked for the mode that it brings"),
        "{}",
        error.message
    );
    let slots = GpuChangeRequest { slots: Some(2), ..at(HOUR + 600, to(GpuMode::Mps, "m")) };
    assert!(refused(&db, &slots).await.message.contains("reservation tue has mig:3g.40gb@0"));
    reservations::cancel(&db, &caller, "tue").await.unwrap();
    assert_eq!(cancel(&db, id).await.unwrap().changes[0].state, "cancelled");
    assert_eq!(cancel(&db, id).await.unwrap().changes[0].state, "cancelled", "twice is no error");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn instances_come_and_go_beside_those_that_stay_in_use(db: PgPool) {
    fleet(&db).await;
    let layout = |words: &str| Some(words.split(',').map(str::to_owned).collect::<Vec<_>>());
    changed(&db, &GpuChangeRequest { layout: layout("3g.40gb@4,2g.20gb@0"), ..to(GpuMode::Mig, "k") }).await;
    reserved(&db, &ReserveRequest { begin: None, ..parts("used", 0, &["mig:3g.40gb@4"]) }).await;
    let none = reserve(&db, &caller("alice"), &parts("no", HOUR, &["mig:1g.10gb@0"])).await.unwrap_err();
    assert_eq!(ApiError::from(none).code, ErrorCode::Conflict, "the layout does not have it");
    let whole = refused(&db, &to(GpuMode::Whole, "l")).await;
    assert!(whole.message.contains("reservation used has mig:3g.40gb@4"), "{}", whole.message);
    pass(&db, 10).await;
    changed(
        &db,
        &GpuChangeRequest { layout: layout("3g.40gb@4,1g.10gb@0,1g.10gb@1"), ..to(GpuMode::Mig, "m") },
    )
    .await;
    reserved(&db, &parts("small", 300, &["mig:1g.10gb@0"])).await;
    let gone = GpuChangeRequest { layout: layout("3g.40gb@4"), ..to(GpuMode::Mig, "n") };
    assert!(refused(&db, &gone).await.message.contains("reservation small has mig:1g.10gb@0"));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_change_that_finds_the_gpu_in_use_waits_and_so_does_what_relies_on_it(db: PgPool) {
    fleet(&db).await;
    submit_one(&db, lasting(HOUR, Submission { gpus: 2, ..job("both") })).await;
    assert_eq!(place(&db).await.placed, 1);
    let planned = changed(&db, &at(HOUR, to(GpuMode::Mig, "k"))).await;
    let tue = reserved(&db, &parts("tue", HOUR + 60, &["mig:3g.40gb@0"])).await;
    pass(&db, HOUR - 30).await;
    extend_overdue(&db).await.unwrap();
    audit(&db).await;
    let change = list(&db, false).await.unwrap().changes.remove(0);
    assert!(change.begin_at > planned.begin_at && change.state == "booked");
    let late = reservations::named(&db, "tue").await.unwrap().reservations.remove(0);
    assert!(late.condition.unwrap().message.contains("has overrun its time"));
    let begins: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT lower(during) FROM device_bookings WHERE reservation_id = $1")
            .bind(tue.id)
            .fetch_one(&db)
            .await
            .unwrap();
    assert_eq!(begins, change.end_at, "behind the change, as before");
}

/// The controller was away while the job's time passed: nobody has lengthened its booking yet.
#[sqlx::test(migrations = "../migrations")]
async fn a_change_waits_for_a_job_whose_time_is_over_and_that_is_still_there(db: PgPool) {
    fleet(&db).await;
    submit_one(&db, lasting(HOUR, Submission { gpus: 2, ..job("both") })).await;
    assert_eq!(place(&db).await.placed, 1);
    changed(&db, &at(HOUR, to(GpuMode::Mig, "k"))).await;
    pass(&db, HOUR + 120).await;
    assert_eq!(complete_due(&db).await.unwrap(), 0);
    assert_eq!(mode_now(&db).await.0, "whole");
    let other = GpuChangeRequest { gpu: "GPU-n1-1".into(), ..to(GpuMode::Mig, "l") };
    let error = refused(&db, &other).await;
    assert!(
        error.message.contains("has gpu from ") && error.message.contains("without an end"),
        "{}",
        error.message
    );
    extend_overdue(&db).await.unwrap();
    audit(&db).await;
}

/// A client that got no answer in time asks again while the first request still waits.
#[sqlx::test(migrations = "../migrations")]
async fn the_same_change_asked_for_twice_at_once_is_made_once_and_answered_alike(db: PgPool) {
    fleet(&db).await;
    let (op, request) = (caller("op"), to(GpuMode::Mig, "k"));
    let (a, b) = tokio::join!(change(&db, &op, &request), change(&db, &op, &request));
    assert_eq!(a.unwrap(), b.unwrap());
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM gpu_changes").fetch_one(&db).await.unwrap();
    assert_eq!(count, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn of_a_change_and_a_placement_at_once_one_gets_the_gpu(db: PgPool) {
    fleet(&db).await;
    submit_one(&db, Submission { gpus: 2, ..job("both") }).await;
    let plan = plan(&db).await;
    let op = caller("op");
    let request = to(GpuMode::Mig, "k");
    let (placed, changed) =
        tokio::join!(apply(&db, Scope::Pool, &plan.placements, GRACE_S), change(&db, &op, &request));
    assert!((placed.unwrap().placed == 1) != changed.is_ok());
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_gpu_cannot_be_set_to_is_refused_by_its_rule(db: PgPool) {
    fleet(&db).await;
    let layout = |words: &str| Some(vec![words.to_owned()]);
    for (request, says) in [
        (to(GpuMode::Timeslice, "k"), "mode timeslice needs a number of slots, such as timeslice:4"),
        (
            GpuChangeRequest { slots: Some(2), ..to(GpuMode::Mig, "k") },
            "mode mig has no slots, 2 are asked for",
        ),
        (
            GpuChangeRequest { slots: Some(49), ..to(GpuMode::Mps, "k") },
            "49 slots are asked for: mode mps has 1 to 48",
        ),
        (
            GpuChangeRequest { layout: layout("1g.10gb"), ..to(GpuMode::Whole, "k") },
            "mode whole has no layout",
        ),
        (GpuChangeRequest { layout: layout("half"), ..to(GpuMode::Mig, "k") }, "\"half\" is no instance"),
        (
            GpuChangeRequest { window_s: Some(0), ..to(GpuMode::Mig, "k") },
            "a window of 0 s: 1 to 86400 accepted",
        ),
        (GpuChangeRequest { gpu: "GPU-x".into(), ..to(GpuMode::Mig, "k") }, "there is no GPU \"GPU-x\""),
        (to(GpuMode::Whole, "k"), "is set so already"),
    ] {
        let error = refused(&db, &request).await;
        assert!(error.message.contains(says), "{}", error.message);
    }
}
