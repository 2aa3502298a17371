//! Commands: kept until they are answered, carried out once.

use super::*;
use crate::store::act::cancel;
use crate::store::commands::{Due, NewCommand, add, answered, due, expire};
use crate::store::node::close_session;
use ctld_core::liveness::Absence;
use proto::api::{ActOutcome, CancelRequest};
use proto::session::CommandAct;

async fn busy(db: &PgPool) -> (Session, i64) {
    with_pool(db).await;
    let session = node(db, "n1", 4, 0).await;
    let id = submit_one(db, job("k")).await;
    place(db).await;
    report(db, vec![started(session, live(db).await[0])]).await;
    (session, id)
}

/// Alice signals her job.
async fn signal(db: &PgPool, job_id: i64, signal: i32) {
    let request = CancelRequest { ids: vec![job_id.to_string()], signal: Some(signal), ..Default::default() };
    let acted = cancel(db, &caller("alice"), &request).await.unwrap();
    assert_eq!(acted.results.results[0].outcome, ActOutcome::Done);
    assert_eq!(acted.commanded.len(), 1);
}

async fn sent(db: &PgPool, session: Session) -> Vec<Due> {
    due(db, session).await.unwrap().expect("the session owns its node")
}

async fn states(db: &PgPool) -> Vec<(String, Option<String>)> {
    sqlx::query_as("SELECT state, error FROM commands ORDER BY id").fetch_all(db).await.unwrap()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_signal_for_a_node_that_is_away_is_kept_for_its_next_session(db: PgPool) {
    let (session, job_id) = busy(&db).await;
    close_session(&db, session, Absence::SessionClosed).await.unwrap();
    signal(&db, job_id, 10).await;
    let next = node(&db, "n1", 4, 0).await;
    assert_eq!(due(&db, session).await.unwrap(), None, "the old session dispatches nothing");
    let commands = sent(&db, next).await;
    let allocation_id = live(&db).await[0];
    assert_eq!(commands[0].act, CommandAct::Signal { allocation_id, signal: 10, script_only: false });
    assert_eq!(sent(&db, next).await, [], "once a session");
    assert!(answered(&db, next, commands[0].id, None).await.unwrap());
    assert!(!answered(&db, next, commands[0].id, Some("late")).await.unwrap(), "the first answer stands");
    assert_eq!(states(&db).await, [("done".to_owned(), None)]);
}

/// The answer was lost with the session: it is sent again under its key, and the node answers it from its journal.
#[sqlx::test(migrations = "../migrations")]
async fn a_command_without_an_answer_is_sent_again_under_the_same_key(db: PgPool) {
    let (session, job_id) = busy(&db).await;
    signal(&db, job_id, 10).await;
    let first = sent(&db, session).await;
    let next = node(&db, "n1", 4, 0).await;
    assert_eq!(sent(&db, next).await, first);
    assert!(!answered(&db, session, first[0].id, None).await.unwrap(), "a zombie's answer does not count");
    assert!(answered(&db, next, first[0].id, Some("it has ended")).await.unwrap());
    assert_eq!(states(&db).await, [("failed".to_owned(), Some("it has ended".to_owned()))]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_wiped_journal_fails_what_may_not_be_done_twice_and_repeats_what_may(db: PgPool) {
    let (session, job_id) = busy(&db).await;
    signal(&db, job_id, 10).await;
    let safe = NewCommand {
        node_id: session.node_id,
        idempotency_key: "safe".into(),
        act: CommandAct::Signal { allocation_id: 1, signal: 18, script_only: false },
        retry_safe: true,
        by: "alice",
        kept_s: 60,
    };
    let mut connection = db.acquire().await.unwrap();
    add(&mut connection, &[safe.clone(), safe]).await.unwrap();
    assert_eq!(sent(&db, session).await.len(), 2, "a key names one command");
    signal(&db, job_id, 12).await;
    let wiped = Hello { journal_id: "another".into(), ..hello("n1", 4, 0) };
    let next = open_session(&db, &wiped).await.unwrap();
    let (failed, why) = states(&db).await.remove(0);
    assert_eq!(failed, "failed");
    assert!(why.unwrap().contains("lost its journal"));
    let signals: Vec<(bool, i32)> = sent(&db, next)
        .await
        .iter()
        .map(|c| match c.act {
            CommandAct::Signal { signal, .. } => (c.retry_safe, signal),
        })
        .collect();
    assert_eq!(signals, [(true, 18), (false, 12)], "one that was never sent is not under way");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_command_that_comes_too_late_has_failed_and_says_so(db: PgPool) {
    let (session, job_id) = busy(&db).await;
    stop_clock(&db).await;
    signal(&db, job_id, 10).await;
    sent(&db, session).await;
    signal(&db, job_id, 12).await;
    pass(&db, 599).await;
    assert_eq!(expire(&db).await.unwrap(), 0);
    pass(&db, 1).await;
    assert_eq!(expire(&db).await.unwrap(), 2);
    assert_eq!(sent(&db, session).await, []);
    let why: Vec<String> = states(&db).await.into_iter().filter_map(|s| s.1).collect();
    assert!(why[0].contains("did not answer in time") && why[1].contains("was not sent"), "{why:?}");
}
