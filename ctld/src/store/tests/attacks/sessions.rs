//! Zombies: sessions that lost their node and do not know it.

use super::super::super::node::{Heard, close_session, record_seen};
use super::*;
use ctld_core::liveness::Absence;

#[sqlx::test(migrations = "../migrations")]
async fn nothing_an_older_session_says_counts(db: PgPool) {
    with_pool(&db).await;
    let zombie = node(&db, "n1", 8, 0).await;
    submit_one(&db, job("a")).await;
    place(&db).await;
    let allocation = live(&db).await[0];
    let owner = node(&db, "n1", 8, 0).await;
    let recorded = report(&db, vec![started(zombie, allocation), exited(zombie, allocation, 0)]).await;
    assert_eq!((recorded.applied, recorded.superseded), (0, vec![(zombie.node_id, zombie.epoch)]));
    let heard = Heard { session: zombie, age_s: 0.0, observed_generation: 0 };
    assert!(record_seen(&db, "zombie", &[heard]).await.unwrap().is_empty());
    close_session(&db, zombie, Absence::SessionClosed).await.unwrap();
    let connection: String = sqlx::query_scalar("SELECT connection FROM nodes").fetch_one(&db).await.unwrap();
    assert_eq!((connection.as_str(), live(&db).await), ("connected", vec![allocation]));
    assert_eq!(report(&db, vec![exited(owner, allocation, 0)]).await.applied, 1);
    audit(&db).await;
}

/// A report and the session that supersedes it are ordered by the node's row: the report counts whole or not at all.
#[sqlx::test(migrations = "../migrations")]
async fn a_report_that_races_the_next_session_counts_or_is_left_out(db: PgPool) {
    with_pool(&db).await;
    let mut session = node(&db, "n1", 8, 0).await;
    for n in 0..10 {
        submit_one(&db, job(&format!("k{n}"))).await;
        place(&db).await;
        let allocation = live(&db).await[0];
        let facts = [exited(session, allocation, 0)];
        let next = hello("n1", 8, 0);
        let (recorded, opened) = tokio::join!(record(&db, &facts), open_session(&db, &next));
        let recorded = recorded.unwrap();
        session = opened.unwrap();
        assert_eq!(recorded.applied == 1, recorded.superseded.is_empty());
        assert_eq!(recorded.applied == 1, live(&db).await.is_empty());
        // Its successor says it again.
        report(&db, vec![exited(session, allocation, 0)]).await;
        assert!(live(&db).await.is_empty());
    }
    audit(&db).await;
}
