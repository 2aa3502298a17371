//! Lists of jobs, and one in full.

use super::super::{brief, ended, job, jobs};
use super::world::{Attempted, Given, World, ids, viewer};
use chrono::DateTime;
use proto::api::{BriefJob, JobQuery};
use proto::{Condition, ErrorCode, Reason, State};
use sqlx::PgPool;

const ARRAY: Given<'static> = Given {
    name: "array",
    user: "alice",
    pool: "main",
    account: None,
    priority: 0,
    state: "running",
    array: Some("{[0,10)}"),
    pending: "{[4,10)}",
    cancelled: "{[3,4)}",
    active: 2,
    throttle: Some(2),
    hold: None,
    begin_at: None,
    condition: Condition { reason: Reason::Unschedulable, message: String::new(), checks: Vec::new() },
};

fn all() -> JobQuery {
    JobQuery { states: Some("all".into()), ..JobQuery::default() }
}

async fn refused(world: &World, query: JobQuery) -> (ErrorCode, String) {
    let error = proto::ApiError::from(jobs(&world.db, &query).await.unwrap_err());
    (error.code, error.message)
}

#[sqlx::test(migrations = "../migrations")]
async fn an_array_is_its_pending_rest_and_each_task_that_was_placed(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job(ARRAY).await;
    world
        .attempt(id, Attempted { task: 0, state: "completed", exit_code: Some(0), ..Attempted::default() })
        .await;
    world.attempt(id, Attempted { task: 1, gpus: Some(2), ..Attempted::default() }).await;
    world
        .attempt(id, Attempted { task: 2, state: "starting", started_ago_s: None, ..Attempted::default() })
        .await;

    let live = world.list(JobQuery::default()).await;
    assert_eq!(ids(&live), [format!("{id}_1"), format!("{id}_2"), format!("{id}_[4-9%2]")]);
    let (running, rest) = (&live[0], &live[2]);
    assert_eq!((running.state, running.task, running.attempt), (State::Running, Some(1), 1));
    assert_eq!((running.nodes.join(","), running.gpus.join(",")), ("n1".into(), "GPU-0,GPU-1".into()));
    assert_eq!((running.run_s, running.reasons.len()), (Some(90), 0));
    assert_eq!((live[1].state, live[1].run_s), (State::Starting, None));
    assert_eq!((rest.state, rest.task, rest.attempt), (State::Pending, None, 0));
    assert_eq!(rest.reasons[0].reason, Reason::ArrayThrottle);
    assert!(rest.reasons[0].message.contains("2 of at most 2"), "{}", rest.reasons[0].message);
    let array = rest.array.as_ref().unwrap();
    assert_eq!((array.indices.to_string().as_str(), array.pending.to_string().as_str()), ("0-9", "4-9"));

    let every = world.list(all()).await;
    assert_eq!(
        ids(&every),
        [
            format!("{id}_1"),
            format!("{id}_2"),
            format!("{id}_[4-9%2]"),
            format!("{id}_[3]"),
            format!("{id}_0")
        ]
    );
    assert_eq!((every[3].state, every[3].reasons[0].reason), (State::Cancelled, Reason::Cancelled));
    assert_eq!((every[4].state, every[4].exit_code, every[4].reasons.len()), (State::Completed, Some(0), 0));
}

#[sqlx::test(migrations = "../migrations")]
async fn pending_tasks_are_listed_one_by_one_up_to_the_limit_when_asked(db: PgPool) {
    let world = World::new(db).await;
    let id =
        world.job(Given { array: Some("{[0,1000000)}"), pending: "{[1,1000000)}", ..Given::default() }).await;
    let urgent = world
        .job(Given { array: Some("{[0,2)}"), pending: "{[0,2)}", priority: 5, ..Given::default() })
        .await;
    let query = JobQuery { tasks: true, limit: Some(4), ..JobQuery::default() };
    let list = jobs(&world.db, &query).await.unwrap();
    let expected = [(urgent, 0), (urgent, 1), (id, 1), (id, 2)];
    assert_eq!(ids(&list.jobs), expected.map(|(job, task)| format!("{job}_{task}")));
    assert!(list.truncated);
    assert_eq!(list.jobs[0].state, State::Pending);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_latest_attempt_of_a_task_is_the_one_shown(db: PgPool) {
    let world = World::new(db).await;
    let failed = Condition::new(Reason::NodeFailed, "n1 went away");
    let again = world
        .job(Given { state: "failed", pending: "{}", condition: failed.clone(), ..Given::default() })
        .await;
    world.attempt(again, Attempted { state: "node_fail", ..Attempted::default() }).await;
    world
        .attempt(
            again,
            Attempted {
                number: 2,
                state: "failed",
                exit_code: Some(3),
                condition: Some(Condition::new(Reason::NonZeroExitCode, "exit status 3")),
                ..Attempted::default()
            },
        )
        .await;
    let waits = world.job(Given { condition: Condition::plain(Reason::Requeued), ..Given::default() }).await;
    world.attempt(waits, Attempted { state: "cancelled", number: 4, ..Attempted::default() }).await;

    let list = world.list(all()).await;
    assert_eq!(ids(&list), [waits.to_string(), again.to_string()]);
    assert_eq!((list[0].state, list[0].attempt, list[0].nodes.len()), (State::Pending, 4, 0));
    assert_eq!(list[0].reasons, [Condition::plain(Reason::Requeued)]);
    assert_eq!((list[1].state, list[1].attempt, list[1].exit_code), (State::Failed, 2, Some(3)));
    assert_eq!(list[1].reasons[0].reason, Reason::NonZeroExitCode);
    assert_eq!(world.list(JobQuery::default()).await.len(), 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_pending_job_says_the_plainest_reason_first(db: PgPool) {
    let world = World::new(db).await;
    let begin_at = DateTime::from_timestamp(4_102_444_800, 0);
    let past = DateTime::from_timestamp(1_000_000_000, 0);
    let found = || Condition::new(Reason::Unschedulable, "8 cpus asked, 2 free");
    world.job(Given { hold: Some("user"), begin_at, condition: found(), ..Given::default() }).await;
    world.job(Given { hold: Some("admin"), condition: found(), ..Given::default() }).await;
    world.job(Given { begin_at, condition: found(), ..Given::default() }).await;
    world.job(Given { begin_at: past, condition: found(), ..Given::default() }).await;
    let list = world.list(JobQuery::default()).await;
    let reasons: Vec<Reason> = list.iter().map(|job| job.reasons[0].reason).collect();
    assert_eq!(reasons, [Reason::HeldByUser, Reason::HeldByAdmin, Reason::BeginTime, Reason::Unschedulable]);
    assert!(list[2].reasons[0].message.contains("2100-01-01T00:00:00Z"), "{}", list[2].reasons[0].message);
    assert_eq!(list[3].reasons[0], found());
}

#[sqlx::test(migrations = "../migrations")]
async fn lists_stand_in_order_and_say_when_they_are_cut(db: PgPool) {
    let world = World::new(db).await;
    let ended = world.job(Given { state: "completed", pending: "{}", ..Given::default() }).await;
    world.attempt(ended, Attempted { state: "completed", ..Attempted::default() }).await;
    let low = world.job(Given { priority: -5, ..Given::default() }).await;
    let first = world.job(Given { priority: 7, ..Given::default() }).await;
    let second = world.job(Given { priority: 7, ..Given::default() }).await;
    let runs = world
        .job(Given { state: "running", pending: "{}", active: 1, priority: -9, ..Given::default() })
        .await;
    world.attempt(runs, Attempted::default()).await;

    let order = [runs, first, second, low, ended].map(|id| id.to_string());
    assert_eq!(ids(&world.list(all()).await), order);
    for limit in 1..=5 {
        let query = JobQuery { limit: Some(limit), ..all() };
        let list = jobs(&world.db, &query).await.unwrap();
        assert_eq!(ids(&list.jobs), order[..limit as usize]);
        assert_eq!(list.truncated, limit < 5, "limit {limit}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn filters_are_joined_by_and(db: PgPool) {
    let world = World::new(db).await;
    let account = Some("physics");
    let a = world.job(Given { user: "alice", name: "train", account, ..Given::default() }).await.to_string();
    let b =
        world.job(Given { user: "bob", name: "train", pool: "other", ..Given::default() }).await.to_string();
    let runs = world
        .job(Given { user: "bob", state: "running", pending: "{}", active: 1, ..Given::default() })
        .await;
    world.attempt(runs, Attempted::default()).await;
    let array = world.job(Given { user: "carol", ..ARRAY }).await;
    world
        .attempt(array, Attempted { task: 1, state: "starting", started_ago_s: None, ..Attempted::default() })
        .await;
    world.attempt(array, Attempted { task: 0, state: "failed", ..Attempted::default() }).await;
    let (runs, task, over) = (runs.to_string(), format!("{array}_1"), format!("{array}_0"));
    let text = |text: &str| Some(text.to_owned());

    let none = JobQuery::default();
    for (query, expected) in [
        (JobQuery { users: text("alice"), ..none.clone() }, vec![&a]),
        (JobQuery { users: text("bob,nobody"), ..none.clone() }, vec![&runs, &b]),
        (JobQuery { users: text("bob"), names: text("train"), ..none.clone() }, vec![&b]),
        (JobQuery { accounts: text("physics"), ..none.clone() }, vec![&a]),
        (JobQuery { pools: text("other"), ..none.clone() }, vec![&b]),
        (JobQuery { states: text("R"), ..none.clone() }, vec![&runs]),
        (JobQuery { states: text("CF,FAILED"), ..none.clone() }, vec![&task, &over]),
        (JobQuery { nodes: text("n1"), ..none.clone() }, vec![&runs, &task]),
        (JobQuery { nodes: text("n1"), states: text("all"), ..none.clone() }, vec![&runs, &task, &over]),
        (JobQuery { nodes: text("n2"), ..none.clone() }, vec![]),
        (JobQuery { states: text("completed"), ..none.clone() }, vec![]),
    ] {
        assert_eq!(ids(&world.list(query.clone()).await), expected, "{query:?}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn what_does_not_exist_is_named(db: PgPool) {
    let world = World::new(db).await;
    let plain = world.job(Given::default()).await;
    let array = world.job(ARRAY).await;
    let text = |text: String| Some(text);
    for (query, named) in [
        (JobQuery { ids: text("999".into()), ..JobQuery::default() }, "job 999 is not known".to_owned()),
        (
            JobQuery { ids: text(format!("{array}_[8-12]")), ..JobQuery::default() },
            format!("job {array} has no task 10-12"),
        ),
        (
            JobQuery { ids: text(format!("{plain}_1")), ..JobQuery::default() },
            format!("job {plain} is not an array"),
        ),
        (JobQuery { pools: text("main,gpu".into()), ..JobQuery::default() }, "pool \"gpu\"".to_owned()),
        (JobQuery { nodes: text("n3".into()), ..JobQuery::default() }, "node \"n3\"".to_owned()),
    ] {
        let (code, message) = refused(&world, query).await;
        assert_eq!(code, ErrorCode::NotFound, "{message}");
        assert!(message.contains(&named), "{message:?} does not say {named:?}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn named_tasks_are_shown_alone(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job(ARRAY).await;
    world.attempt(id, Attempted { task: 0, state: "completed", ..Attempted::default() }).await;
    world.attempt(id, Attempted { task: 1, ..Attempted::default() }).await;
    let query = JobQuery { ids: Some(format!("{id}_[1-5]")), ..JobQuery::default() };
    let list = world.list(query).await;
    assert_eq!(ids(&list), [format!("{id}_1"), format!("{id}_[4-5%2]"), format!("{id}_[3]")]);
}

#[sqlx::test(migrations = "../migrations")]
async fn scripts_are_for_their_owner_and_operators(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job(Given { state: "completed", pending: "{}", ..Given::default() }).await;
    world.attempt(id, Attempted { state: "completed", gpus: Some(1), ..Attempted::default() }).await;
    let named = id.to_string().parse().unwrap();
    for (caller, may) in [(viewer(1000, false), true), (viewer(0, true), true), (viewer(1001, false), false)]
    {
        let list = job(&world.db, &named, &caller).await.unwrap();
        assert_eq!(list.jobs[0].gpus, ["GPU-0"]);
        let detail = list.jobs[0].detail.as_ref().unwrap();
        assert_eq!(detail.script.is_some(), may, "{caller:?}");
        assert_eq!((detail.output.as_str(), detail.error.as_str()), ("/out/0", "/err"));
        assert_eq!(
            (detail.args.len(), detail.uid, detail.usage.as_ref().unwrap().cpu_us),
            (2, 1000, 1_500_000)
        );
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn files_are_patterns_until_a_node_names_them(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job(Given { state: "pending", ..Given::default() }).await;
    let list = job(&world.db, &id.to_string().parse().unwrap(), &viewer(0, true)).await.unwrap();
    let detail = list.jobs[0].detail.as_ref().unwrap();
    assert_eq!(
        (detail.output.as_str(), detail.error.as_str(), detail.input.as_str()),
        ("slurm-%j.out", "slurm-%j.out", "in-%j")
    );
    let array = world.job(Given { array: Some("{[0,2)}"), ..Given::default() }).await;
    let list = job(&world.db, &array.to_string().parse().unwrap(), &viewer(0, true)).await.unwrap();
    assert_eq!(list.jobs[0].detail.as_ref().unwrap().output, "slurm-%A_%a.out");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_has_ended_when_every_task_named_has(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job(ARRAY).await;
    world.attempt(id, Attempted { task: 0, state: "completed", ..Attempted::default() }).await;
    world.attempt(id, Attempted { task: 1, ..Attempted::default() }).await;
    let over = world.job(Given { state: "completed", pending: "{}", ..Given::default() }).await;
    for (named, expected) in [
        (format!("{id}"), Some(false)),
        (format!("{id}_0"), Some(true)),
        (format!("{id}_1"), Some(false)),
        (format!("{id}_[0,3]"), Some(true)),
        (format!("{id}_[0,4]"), Some(false)),
        (format!("{over}"), Some(true)),
        (format!("{}", over + 1), None),
    ] {
        let answer = ended(&world.db, &named.parse().unwrap()).await.unwrap();
        assert_eq!(answer, expected, "{named}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_row_that_cannot_be_read_is_named(db: PgPool) {
    let world = World::new(db).await;
    world.job(Given { condition: Condition::plain(Reason::Planned), ..Given::default() }).await;
    sqlx::query("UPDATE jobs SET condition = '{\"reason\": \"Moonlight\", \"message\": \"\"}'")
        .execute(&world.db)
        .await
        .unwrap();
    let error = jobs(&world.db, &JobQuery::default()).await.unwrap_err();
    let text = format!("{error:?}");
    assert!(text.contains("condition") && text.contains("Moonlight"), "{text}");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_brief_list_is_the_full_one_cut_down(db: PgPool) {
    let world = World::new(db).await;
    let running = Given { state: "running", pending: "{}", active: 1, ..Given::default() };
    let running = world.job(running).await;
    world.attempt(running, Attempted::default()).await;
    let array = world.job(ARRAY).await;
    world.attempt(array, Attempted { task: 1, ..Attempted::default() }).await;
    world.attempt(array, Attempted { task: 2, ..Attempted::default() }).await;
    // Both lists are of one instant.
    crate::store::tests::stop_clock(&world.db).await;
    let far = DateTime::parse_from_rfc3339("2099-01-01T00:00:00Z").unwrap().to_utc();
    for given in [
        Given::default(),
        Given { priority: 7, user: "bob", name: "urgent", ..Given::default() },
        Given { priority: -7, pool: "other", account: Some("physics"), ..Given::default() },
        Given { hold: Some("user"), ..Given::default() },
        Given { hold: Some("admin"), begin_at: Some(far), ..Given::default() },
        Given { begin_at: Some(far), ..Given::default() },
        Given { array: Some("{[0,3)}"), pending: "{[0,3)}", priority: 3, ..Given::default() },
        Given {
            state: "cancelled",
            pending: "{}",
            condition: Condition::plain(Reason::Cancelled),
            ..Given::default()
        },
    ] {
        world.job(given).await;
    }
    let words = |text: &str| Some(text.to_owned());
    for query in [
        JobQuery::default(),
        all(),
        JobQuery { tasks: true, ..JobQuery::default() },
        JobQuery { states: words("pending"), ..JobQuery::default() },
        JobQuery { states: words("running,cancelled"), ..JobQuery::default() },
        JobQuery { users: words("bob"), ..JobQuery::default() },
        JobQuery { names: words("urgent,array"), ..JobQuery::default() },
        JobQuery { pools: words("other"), ..JobQuery::default() },
        JobQuery { accounts: words("physics"), ..JobQuery::default() },
        JobQuery { nodes: words("n1"), ..JobQuery::default() },
        JobQuery { ids: Some(format!("{running},{array}_[1,5]")), ..JobQuery::default() },
        JobQuery { limit: Some(1), ..all() },
        JobQuery { limit: Some(5), ..JobQuery::default() },
        JobQuery { limit: Some(9), ..all() },
    ] {
        let full = jobs(&world.db, &query).await.unwrap();
        let brief = brief(&world.db, &query).await.unwrap();
        let cut: Vec<BriefJob> = full.jobs.into_iter().map(BriefJob::from).collect();
        assert!(!cut.is_empty(), "{query:?}");
        assert_eq!((brief.jobs, brief.truncated), (cut, full.truncated), "{query:?}");
    }
    let query = JobQuery { pools: words("nonesuch"), ..JobQuery::default() };
    assert!(proto::ApiError::from(brief(&world.db, &query).await.unwrap_err()).message.contains("nonesuch"));
}
