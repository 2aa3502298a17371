//! Leases: who lost one cannot act, whatever it believes.

use super::holding::done_or_blocked;
use super::*;
use crate::app::App;
use crate::config::Config;
use crate::store::StoreError;
use crate::store::leases::{Authority, LEASE_TTL, Lease, Owner, Under, fence, look, release, renew, take};
use crate::store::steps::gated;

fn owner(controller: &str) -> Owner {
    Owner::new(controller, "1")
}

async fn taken(db: &PgPool, owner: &Owner, name: &str) -> Lease {
    take(db, owner, name, LEASE_TTL).await.unwrap().expect("the lease is free")
}

#[sqlx::test(migrations = "../migrations")]
async fn a_lease_is_one_controllers_until_it_expires_and_each_takeover_raises_the_epoch(db: PgPool) {
    stop_clock(&db).await;
    let (a, b) = (owner("a"), owner("b"));
    let first = taken(&db, &a, "pool:1").await;
    assert_eq!(first.epoch, 1);
    pass(&db, 14).await;
    assert_eq!(take(&db, &b, "pool:1", LEASE_TTL).await.unwrap(), None, "it is valid for 15 s");
    assert_eq!(renew(&db, &a, &["pool:1".into()], LEASE_TTL).await.unwrap(), ["pool:1"]);
    pass(&db, 14).await;
    assert_eq!(take(&db, &b, "pool:1", LEASE_TTL).await.unwrap(), None, "it was renewed");
    assert_eq!(taken(&db, &a, "pool:1").await.epoch, 1, "one's own is renewed in its epoch");
    pass(&db, 16).await;
    assert_eq!(renew(&db, &a, &["pool:1".into()], LEASE_TTL).await.unwrap(), [""; 0], "it has expired");
    assert_eq!(taken(&db, &b, "pool:1").await.epoch, 2);
    assert_eq!(renew(&db, &a, &["pool:1".into()], LEASE_TTL).await.unwrap(), [""; 0]);
    let mut tx = db.begin().await.unwrap();
    let refused = fence(&mut tx, &first).await;
    assert!(matches!(refused, Err(StoreError::Fenced { epoch: 1, .. })), "{refused:?}");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_lease_that_is_given_up_is_free_at_once(db: PgPool) {
    let (a, b) = (owner("a"), owner("b"));
    taken(&db, &a, "pool:1").await;
    taken(&db, &b, "pool:2").await;
    release(&db, &a).await.unwrap();
    assert_eq!(taken(&db, &b, "pool:1").await.epoch, 2);
    let left: Vec<_> = look(&db).await.unwrap().into_iter().map(|l| (l.owner, l.left_s > 0.0)).collect();
    assert_eq!(left, [("b/1".to_owned(), true), ("b/1".to_owned(), true)]);
}

/// A controller that was killed and started again on its state directory: nobody waits for its own lease to expire.
#[sqlx::test(migrations = "../migrations")]
async fn a_controller_takes_over_from_its_predecessor_at_once_and_fences_it(db: PgPool) {
    let (dead, again) = (Owner::new("a", "1"), Owner::new("a", "2"));
    let before = taken(&db, &dead, "pool:1").await;
    let after = taken(&db, &again, "pool:1").await;
    assert_eq!((before.epoch, after.epoch), (1, 2));
    let mut tx = db.begin().await.unwrap();
    assert!(fence(&mut tx, &before).await.is_err(), "what its old process left running is refused");
    fence(&mut tx, &after).await.unwrap();
}

/// The forbidden history of the handbook: a planner that was stopped (SIGSTOP, a long pause, a cut network) for longer than its lease
/// lives goes on with the plan it had made.
#[sqlx::test(migrations = "../migrations")]
async fn a_zombie_planner_books_nothing(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 4, 0).await;
    let job_id = submit_one(&db, job("k")).await;
    stop_clock(&db).await;
    let lease = taken(&db, &owner("a"), "pool:1").await;
    let planned = plan(&db).await.placements;
    pass(&db, 16).await;
    let zombie = Under { db: &db, lease: &lease };
    let expired = apply(&zombie, Scope::Pool, &planned, GRACE_S).await;
    assert!(matches!(expired, Err(StoreError::Fenced { .. })), "expired, though nobody took it: {expired:?}");
    let next = taken(&db, &owner("b"), "pool:1").await;
    let lost = apply(&zombie, Scope::Pool, &planned, GRACE_S).await;
    assert!(matches!(lost, Err(StoreError::Fenced { .. })), "{lost:?}");
    assert_eq!(job_row(&db, job_id).await.0, "pending");
    let heir = Under { db: &db, lease: &next };
    assert_eq!(apply(&heir, Scope::Pool, &planned, GRACE_S).await.unwrap().placed, 1);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_takeover_waits_for_the_old_holders_transaction(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 4, 0).await;
    submit_one(&db, job("k")).await;
    stop_clock(&db).await;
    let lease = taken(&db, &owner("a"), "pool:1").await;
    let planned = plan(&db).await.placements;
    let one = db.clone();
    let (act, arrived, gate) = gated("place: booked", async move {
        apply(&Under { db: &one, lease: &lease }, Scope::Pool, &planned, GRACE_S).await
    });
    let placing = tokio::spawn(act);
    arrived.await.unwrap();
    pass(&db, 16).await;
    let other = db.clone();
    let taking = tokio::spawn(async move { take(&other, &owner("b"), "pool:1", LEASE_TTL).await });
    assert!(!done_or_blocked(&db, &taking).await, "the old holder is still at work");
    gate.add_permits(1);
    assert_eq!(placing.await.unwrap().unwrap().placed, 1, "it was valid when it began");
    assert_eq!(taking.await.unwrap().unwrap().unwrap().epoch, 2, "and is over before the heir begins");
    audit(&db).await;
}

/// The trap that the fence's row lock closes: a look without a lock lets both act, the zombie after its heir has begun.
#[sqlx::test(migrations = "../migrations")]
async fn a_look_without_a_lock_is_no_fence(db: PgPool) {
    stop_clock(&db).await;
    let lease = taken(&db, &owner("a"), "pool:1").await;
    let looks = "SELECT EXISTS (SELECT FROM leases WHERE name = $1 AND owner = 'a/1' AND epoch = $2 AND expires_at > compute_now())";
    let mut zombie = db.begin().await.unwrap();
    let valid: bool =
        sqlx::query_scalar(looks).bind(&lease.name).bind(lease.epoch).fetch_one(&mut *zombie).await.unwrap();
    assert!(valid);
    pass(&db, 16).await;
    let next = taken(&db, &owner("b"), "pool:1").await;
    let mut heir = db.begin().await.unwrap();
    fence(&mut heir, &next).await.unwrap();
    // Both believe that the pool is theirs, at the same time.
    heir.commit().await.unwrap();
    zombie.commit().await.unwrap();
    let mut zombie = db.begin().await.unwrap();
    assert!(fence(&mut zombie, &lease).await.is_err(), "the lock and the epoch are the fence");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_renewal_does_not_wait_for_ones_own_work(db: PgPool) {
    let a = owner("a");
    let (pool, other) = (taken(&db, &a, "pool:1").await, taken(&db, &a, "singleton:holds").await);
    let mut at_work = Under { db: &db, lease: &pool }.begin().await.unwrap();
    let names = [pool.name.clone(), other.name.clone()];
    assert_eq!(renew(&db, &a, &names, LEASE_TTL).await.unwrap(), ["singleton:holds"]);
    sqlx::query("SELECT 1").execute(&mut *at_work).await.unwrap();
    at_work.commit().await.unwrap();
    assert_eq!(renew(&db, &a, &names, LEASE_TTL).await.unwrap().len(), 2);
}

/// Two controllers over one database, each stepped by hand.
#[sqlx::test(migrations = "../migrations")]
async fn of_two_controllers_one_plans_and_the_other_goes_on_when_it_is_gone(db: PgPool) {
    with_pool(&db).await;
    stop_clock(&db).await;
    let app = |name: &str| App::start(db.clone(), Config::default(), None, owner(name));
    let (a, b) = (app("a"), app("b"));
    assert!(a.leases.step(&a).await.unwrap());
    assert!(b.leases.step(&b).await.unwrap(), "its gateway's is nobody else's");
    let (pool, gateway) = ("pool:1", b.leases.owner().gateway());
    assert!(
        a.leases.held(pool).is_some() && b.leases.held(pool).is_none() && b.leases.held(&gateway).is_some()
    );
    assert_eq!(b.leases.others_alive(), 1);

    pass(&db, 21).await;
    assert!(b.leases.step(&b).await.unwrap());
    assert_eq!(b.leases.others_alive(), 0);
    let (old, new) = (a.leases.held(pool).unwrap(), b.leases.held(pool).unwrap());
    assert_eq!((old.epoch, new.epoch), (1, 2), "the first does not know yet");
    let acted = advance_holds(&a, &old).await;
    assert!(matches!(acted, Err(StoreError::Fenced { .. })));
    assert!(a.leases.held(pool).is_none(), "it learnt it from the fence");
    assert!(!a.leases.step(&a).await.unwrap() || a.leases.held(pool).is_none());
}

async fn advance_holds(app: &App, lease: &Lease) -> Result<(), StoreError> {
    let acted = crate::store::holds::advance(&Under { db: &app.db, lease }).await;
    app.leases.heed(lease, acted).map(|_| ())
}
