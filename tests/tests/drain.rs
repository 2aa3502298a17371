//! Draining a node (field case B-09): two states, every reason kept, nothing new after the acknowledgement.

use proto::State;
use proto::api::{Drain, SubmissionBatch, SubmittedBatch};
use tests::{Cluster, ClusterOptions, NodeOptions, SOON, User, small_job, until};

#[test]
fn a_drained_node_finishes_its_jobs_takes_no_more_and_keeps_every_reason() {
    let operators = "operators = [\"bctest2\"]\n";
    let mut cluster = Cluster::start(ClusterOptions { ctld: operators.into(), ..ClusterOptions::default() });
    let (root, operator, user) = (User::root(), User::two(), User::one());
    let script = "until [ -e go.$SLURM_JOB_NAME ]; do sleep 0.05; done";
    let [first, second] = ["a", "b"].map(|name| cluster.submit(&user, &["-J", name], script));
    for id in [first, second] {
        cluster.reaches(id, State::Running);
    }
    cluster.run(&user, "bctl", &["drain", "n1", "--reason", "mine"]).refused(5);
    cluster.run(&root, "bctl", &["drain", "n1"]).refused(2);
    cluster.run(&root, "bctl", &["drain", "n1", "--reason", "disk swap TICKET"]).ok();
    cluster.run(&operator, "bctl", &["drain", "n1", "--reason", "firmware"]).ok();
    // Twice by the same one changes nothing.
    cluster.run(&root, "bctl", &["drain", "n1", "--reason", "another"]).ok();
    let node = cluster.node("n1");
    assert_eq!((node.eligible, node.drain, node.jobs.len()), (false, Some(Drain::Draining), 2));
    let holds: Vec<(&str, &str)> = node.holds.iter().map(|h| (h.owner.as_str(), h.reason.as_str())).collect();
    assert_eq!(holds, [("root", "disk swap TICKET"), ("bctest2", "firmware")]);

    let waiting = cluster.submit(&user, &[], "true");
    cluster.write(&user, "go.a", "");
    cluster.ended(first);
    assert_eq!(cluster.node("n1").drain, Some(Drain::Draining));
    cluster.write(&user, "go.b", "");
    cluster.ended(second);
    until("drained", SOON, || (cluster.node("n1").drain == Some(Drain::Drained)).then_some(()));
    let shown = cluster.run(&user, "bctl", &["node", "list"]);
    assert!(shown.ok().contains("drained"), "{}", shown.stdout);
    let job = cluster.job(waiting);
    assert_eq!(job.state, State::Pending, "{job:?}");

    // Off and on again: still drained, and the waiting job still waits.
    cluster.kill_node(0);
    cluster.start_node(0);
    cluster.nodes_connected();
    assert_eq!(
        (cluster.node("n1").drain, cluster.job(waiting).state),
        (Some(Drain::Drained), State::Pending)
    );
    // One lifts one's own drain only.
    cluster.run(&operator, "bctl", &["resume", "n1"]).ok();
    assert_eq!(cluster.node("n1").holds.len(), 1);
    cluster.run(&operator, "bctl", &["resume", "n1"]).refused(6).says("root");
    assert_eq!(cluster.job(waiting).state, State::Pending);
    cluster.run(&operator, "bctl", &["resume", "--all", "n1"]).ok();
    assert_eq!(cluster.ended(waiting).state, State::Completed);
    assert_eq!(cluster.node("n1").drain, None);
}

/// A drain in the middle of a stream of launches: a job starts before it is acknowledged, or not at all.
#[test]
fn nothing_starts_after_a_drain_is_acknowledged() {
    let mut other = NodeOptions::named("n2");
    other.cpus = 2;
    let cluster = Cluster::start(ClusterOptions {
        nodes: vec![NodeOptions::named("n1"), other],
        ..ClusterOptions::default()
    });
    let user = User::one();
    let home = cluster.home(&user);
    for round in 1..=3 {
        let jobs = (0..60).map(|_| small_job("echo $SLURMD_NODENAME >> ran; sleep 0.05", &home)).collect();
        let _: SubmittedBatch =
            cluster.api_as(&user).post("/v1/jobs/batch", &SubmissionBatch { jobs }).unwrap();
        until("some jobs", SOON, || {
            let list: proto::api::JobList = cluster.api().get("/v1/jobs?states=running").unwrap();
            (list.jobs.len() > 3).then_some(())
        });
        cluster.run(&User::root(), "bctl", &["drain", "n1", "--reason", "now"]).ok();
        // What is on it now was there before the answer; nothing joins it.
        let there = cluster.sql(&booked("n1", ""));
        until("drained", SOON, || (cluster.node("n1").drain == Some(Drain::Drained)).then_some(()));
        assert_eq!(cluster.sql(&booked("n1", "")), there, "round {round}: more was placed after the drain");
        until("the rest, elsewhere", SOON, || {
            let list: proto::api::JobList = cluster.api().get("/v1/jobs").unwrap();
            list.jobs.is_empty().then_some(())
        });
        cluster.run(&User::root(), "bctl", &["resume", "n1"]).ok();
    }
    assert_eq!(cluster.read(&user, "ran").lines().count(), 180, "every job ran once");
}

fn booked(node: &str, more: &str) -> String {
    format!(
        "SELECT count(*) FROM allocations a JOIN nodes n ON n.id = a.node_id WHERE n.name = '{node}' {more}"
    )
}
