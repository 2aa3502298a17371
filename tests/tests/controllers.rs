//! Two controllers over one database: either may die, be stopped, or come back too late.

use nix::sys::signal::Signal;
use proto::State;
use proto::api::{NodeList, Submitted};
use std::path::Path;
use std::time::{Duration, Instant};
use tests::processes::kill;
use tests::{Cluster, ClusterOptions, Connection, NodeOptions, User, small_job, until};

/// A lease's life, the wait for it, and a loaded machine.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(25);
/// A submission needs no lease.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

fn two_controllers() -> Cluster {
    let mut node = NodeOptions::named("n1");
    node.cpus = 64;
    Cluster::start(ClusterOptions { nodes: vec![node], further_ctlds: 1, ..ClusterOptions::default() })
}

/// Who plans the one pool: `0` the first controller, `1` the second, by the leases.
fn planner(cluster: &Cluster) -> String {
    cluster.sql("SELECT split_part(owner, '/', 1) FROM leases WHERE name LIKE 'pool:%' AND expires_at > compute_now()")
}

fn id_of(cluster: &Cluster, dir: &str) -> String {
    let text = std::fs::read_to_string(cluster.dir().join(dir).join("controller-id")).unwrap();
    text.trim().to_owned()
}

#[test]
fn either_controller_answers_and_a_job_of_one_runs_on_a_node_of_the_other() {
    let cluster = two_controllers();
    let user = User::one();
    let sockets = cluster.sockets();
    assert_eq!(planner(&cluster), id_of(&cluster, "ctld"));
    for socket in &sockets {
        let mut api = Connection::open_as(socket, &user).unwrap();
        let begun = Instant::now();
        let job: Submitted = api.post("/v1/jobs", &small_job("sleep 600", &cluster.home(&user))).unwrap();
        cluster.reaches(job.id, State::Running);
        // Planned by one and told by the other: woken, not found by the look that each takes by itself.
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?} at {}", begun.elapsed(), socket.display());
        let nodes: NodeList = api.get("/v1/nodes").unwrap();
        assert_eq!(nodes.nodes.len(), 1);
        let cancelled = cluster.run(&user, "bcancel", &[&job.id.to_string()]);
        cancelled.ok();
        cluster.reaches(job.id, State::Cancelled);
    }
}

/// Acceptance 3 of coordination: submissions go on at once, placements within a lease's life.
#[test]
fn when_one_controller_is_killed_the_other_goes_on() {
    let mut cluster = two_controllers();
    let user = User::one();
    let before = cluster.submit(&user, &[], "while [ ! -e go ]; do sleep 0.05; done; exit 3");
    cluster.reaches(before, State::Running);
    cluster.kill_ctld();
    let killed = Instant::now();
    let after = cluster.submit(&user, &[], "true");
    let answered = killed.elapsed();
    assert!(answered < ANSWERED_WITHIN, "{answered:?}");
    let second = cluster.further_socket(0);
    let state = |id: i64| {
        let list: proto::api::JobList =
            Connection::open(&second).ok()?.get(&format!("/v1/jobs/{id}")).ok()?;
        Some((list.jobs[0].state, list.jobs[0].exit_code))
    };
    until("placements go on", TAKEN_OVER_WITHIN, || (state(after)?.0 == State::Completed).then_some(()));
    println!("submissions went on after {answered:?}, placements after {:?}", killed.elapsed());
    // What ran did not notice, and its end is the other's to record.
    cluster.write(&user, "go", "");
    until("the end of what ran", TAKEN_OVER_WITHIN, || {
        (state(before)? == (State::Failed, Some(3))).then_some(())
    });
    cluster.start_ctld();
    cluster.ready();
    let last = cluster.submit(&user, &["--wait"], "exit 0");
    assert_eq!(cluster.job(last).state, State::Completed);
}

/// A controller that is stopped for longer than its lease lives, and then goes on: what it still wants to do is refused.
#[test]
fn a_controller_that_comes_back_too_late_is_fenced_and_does_its_share_again() {
    let cluster = two_controllers();
    let user = User::one();
    let (first, second) = (id_of(&cluster, "ctld"), id_of(&cluster, "ctld2"));
    assert_eq!(planner(&cluster), first);
    kill(cluster.ctld_pid(), Signal::SIGSTOP);
    let sql = |query: &str| {
        let url = url(&cluster);
        let ran = std::process::Command::new("psql").args(["-At", "-d", &url, "-c", query]).output().unwrap();
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    };
    let owner = "SELECT split_part(owner, '/', 1) FROM leases WHERE name LIKE 'pool:%' AND expires_at > compute_now()";
    until("the other takes over", TAKEN_OVER_WITHIN, || (sql(owner) == second).then_some(()));
    let epoch: i64 = sql("SELECT epoch FROM leases WHERE name LIKE 'pool:%'").parse().unwrap();
    let mut api = Connection::open_as(&cluster.further_socket(0), &user).unwrap();
    let job: Submitted = api.post("/v1/jobs", &small_job("true", &cluster.home(&user))).unwrap();
    let running = || sql(&format!("SELECT state FROM jobs WHERE id = {}", job.id)) == "completed";
    until("it runs by the other's hand", TAKEN_OVER_WITHIN, || running().then_some(()));
    kill(cluster.ctld_pid(), Signal::SIGCONT);
    // The zombie answers again, and leaves the pool to its heir.
    let mut again = Connection::open_as(&cluster.socket(), &user).unwrap();
    let job: Submitted = again.post("/v1/jobs", &small_job("true", &cluster.home(&user))).unwrap();
    cluster.reaches(job.id, State::Completed);
    assert_eq!(sql(owner), second);
    assert_eq!(sql("SELECT epoch FROM leases WHERE name LIKE 'pool:%'").parse::<i64>().unwrap(), epoch);
    let audit = cluster.audit().unwrap();
    assert!(audit.ok, "{:#?}", audit.invariants);
}

/// By the second controller: the first may be stopped, and would keep whoever asks it waiting.
fn url(cluster: &Cluster) -> String {
    let health: proto::api::Health =
        Connection::open(Path::new(&cluster.further_socket(0))).unwrap().get("/v1/check").unwrap();
    health.database.unwrap().url
}
