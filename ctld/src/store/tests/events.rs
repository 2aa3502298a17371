//! Events: one for each change that was committed, none for one that was not, and readers that skip nothing and keep the order
//! of each subject, against histories in which readers that go by sequence, or by the writer's own number, do not.

use super::*;
use crate::store::events::{Filter, Keep, Placed, Pruned, head, holding_back, more, prune, read};
use proto::Cursor;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sqlx::{Connection, PgConnection};

/// Returns when what was committed before can be read: transactions of other tests, in the same server, hold it back too.
pub(crate) async fn settled(db: &PgPool) {
    let until: String = sqlx::query_scalar("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        .fetch_one(db)
        .await
        .unwrap();
    let passed = || {
        sqlx::query_scalar::<_, bool>("SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8")
            .bind(&until)
    };
    while !passed().fetch_one(db).await.unwrap() {}
}

async fn all(db: &PgPool) -> Vec<Placed> {
    settled(db).await;
    read(db, Cursor::default(), &Filter::default(), 1000).await.unwrap()
}

fn kinds(events: &[Placed]) -> Vec<&str> {
    events.iter().map(|e| e.event.kind.as_str()).collect()
}

/// What was told of a subject.
async fn told(db: &PgPool, subject: &str) -> Vec<Placed> {
    settled(db).await;
    let filter = Filter { subject: Some(subject.into()), ..Filter::default() };
    read(db, Cursor::default(), &filter, 1000).await.unwrap()
}

async fn connection(db: &PgPool) -> PgConnection {
    PgConnection::connect_with(&db.connect_options()).await.unwrap()
}

/// An event of this subject, told by this connection.
async fn tell(on: &mut PgConnection, subject: &str, n: i32) {
    sqlx::query(
        "INSERT INTO outbox (type, subject, data) VALUES ('job.updated', $1, jsonb_build_object('n', $2))",
    )
    .bind(subject)
    .bind(n)
    .execute(on)
    .await
    .unwrap();
}

async fn run(on: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(on).await.unwrap();
}

fn ns(events: &[Placed]) -> Vec<i64> {
    events.iter().map(|e| e.event.data["n"].as_i64().unwrap()).collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_jobs_life_is_told_in_its_order(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    let id = submit_one(&db, job("a")).await;
    place(&db).await;
    let allocation = live(&db).await[0];
    report(&db, vec![started(session, allocation)]).await;
    report(&db, vec![exited(session, allocation, 3)]).await;

    let events = told(&db, &format!("job/{id}")).await;
    assert_eq!(kinds(&events), ["job.submitted", "job.started", "job.ended"]);
    let end = &events[2];
    assert_eq!((end.owner.as_deref(), end.event.tenant.as_deref()), (Some("alice"), Some("default")));
    for (key, value) in [
        ("job", serde_json::json!(id)),
        ("state", "failed".into()),
        ("exit_code", 3.into()),
        ("attempt", 1.into()),
        ("reason", "NonZeroExitCode".into()),
        ("nodes", serde_json::json!(["n1"])),
    ] {
        assert_eq!(end.event.data[key], value, "{key} of {}", end.event.data);
    }
    assert!(end.event.data["started_at"].is_string() && end.event.data["ended_at"].is_string());
    assert_eq!(kinds(&told(&db, "node/n1").await), ["node.connected"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_rolled_back_is_told_to_nobody(db: PgPool) {
    with_pool(&db).await;
    let id = submit_one(&db, job("a")).await;
    let before = all(&db).await;
    let mut tx = db.begin().await.unwrap();
    sqlx::query("UPDATE jobs SET hold = 'user' WHERE id = $1").bind(id).execute(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(all(&db).await, before);
    sqlx::query("UPDATE jobs SET hold = 'user' WHERE id = $1").bind(id).execute(&db).await.unwrap();
    assert_eq!(kinds(&all(&db).await[before.len()..]), ["job.held"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_array_is_one_submission_and_its_end_says_what_became_of_all(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    let id = submit(&db, "alice", vec![array("a", "0-999999", None)]).await.remove(0).unwrap().id;
    assert_eq!(kinds(&told(&db, &format!("job/{id}")).await), ["job.submitted"]);
    super::super::act::cancel(&db, &caller("alice"), &cancel_of(&format!("{id}_[2-999999]"))).await.unwrap();
    place(&db).await;
    for (allocation, code) in live(&db).await.into_iter().zip([0, 7]) {
        report(&db, vec![started(session, allocation), exited(session, allocation, code)]).await;
    }
    let events = told(&db, &format!("job/{id}")).await;
    let count = |kind: &str| events.iter().filter(|e| e.event.kind == kind).count();
    assert_eq!((count("job.started"), count("job.task_ended"), count("job.ended")), (2, 2, 1));
    let end = &events.last().unwrap().event;
    assert_eq!((end.kind.as_str(), &end.data["state"]), ("job.ended", &"failed".into()));
    assert!(end.data["message"].as_str().unwrap().starts_with("1 tasks completed, 1 failed"), "{}", end.data);
}

#[sqlx::test(migrations = "../migrations")]
async fn every_other_change_has_its_event(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 4, 1).await;
    let id = submit_one(&db, job("a")).await;
    let ids = [id.to_string()];
    super::super::act::hold(&db, &caller("alice"), &ids).await.unwrap();
    super::super::act::release(&db, &caller("alice"), &ids).await.unwrap();
    super::super::act::cancel(&db, &caller("alice"), &cancel_of(&id.to_string())).await.unwrap();
    super::super::act::requeue(&db, &caller("alice"), &ids).await.unwrap();
    assert_eq!(
        kinds(&told(&db, &format!("job/{id}")).await),
        ["job.submitted", "job.held", "job.released", "job.ended", "job.requeued"]
    );
    drain(&db, "root", "n1").await;
    super::super::holds::resume(&db, &caller("root"), &resume_of("n1")).await.unwrap();
    assert_eq!(kinds(&told(&db, "node/n1").await), ["node.connected", "hold.placed", "hold.lifted"]);
    sqlx::raw_sql(
        "INSERT INTO quota_usage (tenant_id, resource) SELECT id, 'disk_mib' FROM tenants ON CONFLICT DO NOTHING;
         UPDATE quota_usage SET max = 9, ceiling = 9 WHERE resource = 'disk_mib';
         UPDATE quota_usage SET used = 1 WHERE resource = 'disk_mib'",
    )
    .execute(&db)
    .await
    .unwrap();
    let quota = told(&db, "quota/default/disk_mib").await;
    assert_eq!(kinds(&quota), ["quota.changed"]);
    assert_eq!(quota[0].event.data["max"], 9);
}

#[sqlx::test(migrations = "../migrations")]
async fn every_type_that_the_triggers_write_is_in_the_table_of_types(_db: PgPool) {
    let sql = include_str!("../../../../migrations/0014_outbox.sql");
    let code: String = sql.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
    let quoted: Vec<&str> = code.split('\'').skip(1).step_by(2).collect();
    for (kind, _) in proto::event::TYPES {
        let by_connection = matches!(kind, "node.connected" | "node.disconnected" | "node.lost");
        assert!(by_connection || quoted.contains(&kind), "nothing writes {kind}");
    }
    let families = ["job.", "hold.", "gpu.", "reservation.", "quota."];
    for word in quoted.iter().filter(|word| families.iter().any(|f| word.starts_with(f))) {
        assert!(proto::event::TYPES.iter().any(|(kind, _)| kind == word), "{word} has no sentence");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reader_by_sequence_skips_a_late_commit_and_ours_does_not(db: PgPool) {
    let (mut early, mut late) = (connection(&db).await, connection(&db).await);
    run(&mut late, "BEGIN").await;
    tell(&mut late, "a", 1).await;
    tell(&mut early, "b", 2).await;

    let naive = |after: i64| {
        sqlx::query_scalar::<_, i64>("SELECT seq FROM outbox WHERE seq > $1 ORDER BY seq").bind(after)
    };
    let seen = naive(0).fetch_all(&db).await.unwrap();
    let first = read(&db, Cursor::default(), &Filter::default(), 1000).await.unwrap();
    assert_eq!((seen.len(), ns(&first)), (1, vec![]), "what may still be overtaken is not read");
    assert!(more(&db, Cursor::default()).await.unwrap());

    run(&mut late, "COMMIT").await;
    let skipped = naive(seen[0]).fetch_all(&db).await.unwrap();
    assert_eq!(skipped.len(), 0, "the reader by sequence has lost an event");
    assert_eq!(ns(&all(&db).await), [1, 2]);
}

#[sqlx::test(migrations = "../migrations")]
async fn who_waited_for_a_lock_is_told_after_whom_it_waited_for(db: PgPool) {
    sqlx::raw_sql("CREATE TABLE subject (id int PRIMARY KEY); INSERT INTO subject VALUES (1)")
        .execute(&db)
        .await
        .unwrap();
    let (mut first, mut second) = (connection(&db).await, connection(&db).await);
    // The second writer has its number before the first, and writes after it.
    run(&mut second, "BEGIN; SELECT pg_current_xact_id()").await;
    run(&mut first, "BEGIN; SELECT 1 FROM subject WHERE id = 1 FOR UPDATE").await;
    tell(&mut first, "a", 1).await;
    run(&mut first, "COMMIT").await;
    run(&mut second, "SELECT 1 FROM subject WHERE id = 1 FOR UPDATE").await;
    tell(&mut second, "a", 2).await;
    let own: String =
        sqlx::query_scalar("SELECT pg_current_xact_id()::text").fetch_one(&mut second).await.unwrap();
    run(&mut second, "COMMIT").await;

    let events = all(&db).await;
    assert_eq!(ns(&events), [1, 2]);
    assert!(own.parse::<u64>().unwrap() < events[0].cursor.txid, "by its own number it would come first");
}

#[sqlx::test(migrations = "../migrations")]
async fn random_transactions_are_read_once_each_and_in_the_order_of_each_subject(db: PgPool) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    sqlx::raw_sql("CREATE TABLE subject (id int PRIMARY KEY, n int NOT NULL); INSERT INTO subject SELECT i, 0 FROM generate_series(0, 3) i")
        .execute(&db)
        .await
        .unwrap();
    let mut writers: Vec<(PgConnection, Option<Vec<i32>>)> = Vec::new();
    for _ in 0..5 {
        writers.push((connection(&db).await, None));
    }
    let (mut cursor, mut heard) = (Cursor::default(), Vec::new());
    for _ in 0..400 {
        let at = rng.random_range(0..writers.len());
        let taken: Vec<i32> = writers.iter().filter_map(|(_, held)| held.clone()).flatten().collect();
        let (on, held) = &mut writers[at];
        match (held.as_mut(), rng.random_range(0..4)) {
            (None, _) => {
                run(on, "BEGIN; SELECT pg_current_xact_id()").await;
                *held = Some(Vec::new());
            }
            // One change of a subject that nobody else has locked.
            (Some(mine), 0 | 1) => {
                let subject = rng.random_range(0..4);
                if mine.contains(&subject) || !taken.contains(&subject) {
                    mine.push(subject);
                    let n = sqlx::query_scalar("UPDATE subject SET n = n + 1 WHERE id = $1 RETURNING n")
                        .bind(subject)
                        .fetch_one(&mut *on)
                        .await
                        .unwrap();
                    tell(on, &subject.to_string(), n).await;
                }
            }
            (Some(_), end) => {
                run(on, if end == 2 { "COMMIT" } else { "ROLLBACK" }).await;
                *held = None;
            }
        }
        if rng.random_bool(0.3) {
            let limit = rng.random_range(1..5);
            for placed in read(&db, cursor, &Filter::default(), limit).await.unwrap() {
                cursor = placed.cursor;
                heard.push(placed);
            }
        }
    }
    for (on, held) in &mut writers {
        if held.is_some() {
            run(on, "COMMIT").await;
        }
    }
    settled(&db).await;
    heard.extend(read(&db, cursor, &Filter::default(), 1000).await.unwrap());
    for subject in 0..4 {
        let changes: i32 = sqlx::query_scalar("SELECT n FROM subject WHERE id = $1")
            .bind(subject)
            .fetch_one(&db)
            .await
            .unwrap();
        let of: Vec<Placed> =
            heard.iter().filter(|e| e.event.subject == subject.to_string()).cloned().collect();
        assert_eq!(ns(&of), (1..=i64::from(changes)).collect::<Vec<_>>(), "subject {subject}, seed {seed}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_filter_lets_through_what_it_names(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 4, 0).await;
    let alices = submit_one(&db, job("a")).await;
    submit(&db, "bob", vec![job("b")]).await.remove(0).unwrap();
    let everything = all(&db).await;
    for (filter, count) in [
        (Filter { owner: Some("bob".into()), ..Filter::default() }, 1),
        (Filter { kinds: vec!["job".into()], ..Filter::default() }, 2),
        (Filter { kinds: vec!["job.ended".into(), "node.connected".into()], ..Filter::default() }, 1),
        (Filter { subject: Some(format!("job/{alices}")), ..Filter::default() }, 1),
        (Filter { tenant_id: Some(1), ..Filter::default() }, 2),
        (Filter::default(), 3),
    ] {
        let read = read(&db, Cursor::default(), &filter, 1000).await.unwrap();
        assert_eq!(read.len(), count, "{filter:?}");
        assert_eq!(everything.iter().filter(|e| filter.passes(e)).count(), count, "{filter:?}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn who_begins_at_the_head_hears_what_is_told_from_then_on(db: PgPool) {
    let mut open = connection(&db).await;
    let mut other = connection(&db).await;
    tell(&mut other, "a", 1).await;
    settled(&db).await;
    run(&mut open, "BEGIN").await;
    tell(&mut open, "a", 2).await;
    let from = head(&db).await.unwrap();
    tell(&mut other, "b", 3).await;
    run(&mut open, "COMMIT").await;
    settled(&db).await;
    assert_eq!(ns(&read(&db, from, &Filter::default(), 10).await.unwrap()), [2, 3]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_transaction_that_holds_readers_back_is_named(db: PgPool) {
    let mut idle = connection(&db).await;
    run(&mut idle, "SET application_name = 'forgotten'; BEGIN; SELECT 1").await;
    let named = async || {
        let held = holding_back(&db, -1.0).await.unwrap();
        held.into_iter().filter(|h| h.application == "forgotten").collect::<Vec<_>>()
    };
    assert_eq!(named().await, [], "one that only reads holds nobody back");
    run(&mut idle, "SELECT pg_current_xact_id()").await;
    let held = named().await;
    assert_eq!((held.len(), held[0].state.as_str()), (1, "idle in transaction"));
    assert!(held[0].pid.is_some() && held[0].age_s >= 0.0);
    assert!(holding_back(&db, 3600.0).await.unwrap().is_empty());
}

fn cancel_of(id: &str) -> proto::api::CancelRequest {
    proto::api::CancelRequest { ids: vec![id.into()], ..Default::default() }
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_old_goes_but_not_before_an_active_sink_has_it_or_it_is_very_old(db: PgPool) {
    let hour = std::time::Duration::from_secs(3600);
    let keep = Keep { events: hour, unserved: 3 * hour, dead_letters: hour };
    let mut on = connection(&db).await;
    stop_clock(&db).await;
    for n in 1..=3 {
        tell(&mut on, "a", n).await;
        pass(&db, 1800).await;
    }
    settled(&db).await;
    let sink =
        |state: &'static str| sqlx::query("UPDATE event_sinks SET state = $1").bind(state).execute(&db);
    sqlx::raw_sql(
        "INSERT INTO event_sinks (url, secret, created_by) VALUES ('https://a', 'whsec_aa', 'root');
         INSERT INTO outbox_cursors (sink_id, txid, seq) SELECT id, '0', 0 FROM event_sinks",
    )
    .execute(&db)
    .await
    .unwrap();
    // Told 90, 60 and 30 minutes ago; the sink has none of them.
    assert_eq!(prune(&db, keep).await.unwrap(), Pruned::default());
    sink("paused").await.unwrap();
    settled(&db).await;
    let first = all(&db).await[0].cursor;
    assert_eq!(prune(&db, keep).await.unwrap().events, 1, "a paused sink is not waited for");
    assert_eq!(crate::store::events::pruned_to(&db).await.unwrap(), first);
    assert_eq!(ns(&all(&db).await), [2, 3]);
    sink("active").await.unwrap();
    pass(&db, 2 * 3600 + 60).await;
    settled(&db).await;
    assert_eq!(prune(&db, keep).await.unwrap().events, 1, "past the hard limit it goes");
    let note: Option<String> =
        sqlx::query_scalar("SELECT note FROM event_sinks").fetch_one(&db).await.unwrap();
    assert!(note.unwrap().contains("missed events"));
    assert_eq!(ns(&all(&db).await), [3]);
}
