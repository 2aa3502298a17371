//! Overcommitment: nodes give out more than they have, and a ratio that is lowered keeps what is booked.

use super::*;
use crate::config::Ratios;

async fn declared(db: &PgPool, ratios: Ratios) {
    let pool = DeclaredPool {
        name: "main".into(),
        is_default: true,
        time_limit_max_s: None,
        time_limit_default_s: None,
        mem_per_cpu_default_mib: 1024,
        ratios,
        kind: Default::default(),
        lost_after_s: None,
    };
    declare(db, &[pool]).await.unwrap();
}

/// What the node gives out of CPUs, and how many are booked.
async fn cpus(db: &PgPool) -> (u32, u32) {
    let node = super::super::read::node(db, "n1").await.unwrap().nodes.remove(0);
    (node.cpus, node.cpus_booked)
}

#[sqlx::test(migrations = "../migrations")]
async fn a_ratio_gives_out_more_and_a_lower_one_keeps_what_is_booked(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 2, 0).await;
    for key in ["a", "b", "c", "d"] {
        submit_one(&db, job(key)).await;
    }
    assert_eq!((place(&db).await.placed, cpus(&db).await), (2, (2, 2)));
    declared(&db, Ratios { cpus: 150, ..Ratios::default() }).await;
    assert_eq!((place(&db).await.placed, cpus(&db).await), (1, (3, 3)), "raised at once");
    // Lowered: not under what is booked, and then as the node opens sessions.
    declared(&db, Ratios::default()).await;
    assert_eq!(cpus(&db).await, (3, 3));
    let session = node(&db, "n1", 2, 0).await;
    assert_eq!((place(&db).await.placed, cpus(&db).await), (0, (3, 3)));
    for allocation in live(&db).await {
        report(&db, vec![started(session, allocation), exited(session, allocation, 0)]).await;
    }
    node(&db, "n1", 2, 0).await;
    assert_eq!((place(&db).await.placed, cpus(&db).await), (1, (2, 1)));
    audit(&db).await;
}
