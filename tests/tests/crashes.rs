//! Anything may be killed at any moment: no job, no exit status and no acknowledged submission is lost, and nothing runs twice.
//!
//! `ROUNDS=10` makes the rounds of the kill test that the acceptance asks for (2 without it), `SEED=N` repeats a run.

use nix::sys::signal::Signal;
use proto::State;
use proto::api::{JobList, Submission, SubmissionBatch, Submitted, SubmittedBatch, SubmittedResult};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tests::processes::{self, kill};
use tests::{Cluster, ClusterOptions, Connection, NodeOptions, Refusal, SOON, User, small_job, until};

const IN_FLIGHT: usize = 200;
const ROUND_WITHIN: Duration = Duration::from_secs(120);

/// Acceptance 3.
#[test]
fn two_hundred_jobs_end_exactly_once_whatever_is_killed() {
    let rounds: u32 = number("ROUNDS", 2);
    let seed: u64 = number("SEED", rand::random());
    println!("SEED={seed} ROUNDS={rounds}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut node = NodeOptions::named("n1");
    (node.cpus, node.mem_mib) = (2 * IN_FLIGHT as u32, 64 << 10);
    let mut cluster = Cluster::start(ClusterOptions { nodes: vec![node], ..ClusterOptions::default() });
    for round in 1..=rounds {
        kill_round(&mut cluster, round, &mut random);
    }
}

fn number<T: std::str::FromStr>(variable: &str, default: T) -> T {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => default,
    }
}

/// 200 jobs, then kill -9 of noded, of ctld, and of both, each once some more jobs have got going or ended.
fn kill_round(cluster: &mut Cluster, round: u32, random: &mut StdRng) {
    let user = User::one();
    let home = cluster.home(&user);
    // Each adds a line to a file of its own: two lines are two runs.
    let jobs: Vec<Submission> = (0..IN_FLIGHT)
        .map(|n| {
            let duration = f64::from(random.random_range(1..4000)) / 1000.0;
            let status = n % 120;
            let script = format!(
                "echo run >> r{round}.{n}\nsleep {duration}\necho end >> e{round}.{n}\nexit {status}"
            );
            small_job(&script, &home)
        })
        .collect();
    let answer: SubmittedBatch =
        cluster.api_as(&user).post("/v1/jobs/batch", &SubmissionBatch { jobs }).unwrap();
    let ids: Vec<i64> = answer.results.iter().map(accepted).collect();
    let files = |kind: &str| {
        let kind = format!("{kind}{round}.");
        let entries = std::fs::read_dir(&home).unwrap();
        entries
            .flatten()
            .filter(|e| e.file_name().to_str().is_some_and(|name| name.starts_with(&kind)))
            .count()
    };
    let mut target = 0;
    for (node, ctld) in [(true, false), (false, true), (true, true)] {
        target += random.random_range(1..IN_FLIGHT / 4);
        let started = random.random_bool(0.5);
        until(&format!("{target} jobs under way"), ROUND_WITHIN, || {
            (files(if started { "r" } else { "e" }) >= target).then_some(())
        });
        if node {
            cluster.kill_node(0);
        }
        if ctld {
            cluster.kill_ctld();
            cluster.start_ctld();
        }
        if node {
            cluster.start_node(0);
        }
        if ctld {
            cluster.ready();
        }
    }
    let path = format!("/v1/jobs?ids={}", ids.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
    let ended = until("the end of all jobs", ROUND_WITHIN, || {
        let list: JobList = Connection::open(&cluster.socket()).ok()?.get(&path).ok()?;
        let over = list.jobs.len() == IN_FLIGHT && list.jobs.iter().all(|job| job.state.terminal());
        over.then_some(list.jobs)
    });
    let by_id: BTreeMap<i64, _> = ended.iter().map(|job| (job.id, job)).collect();
    for (n, id) in ids.iter().enumerate() {
        let (job, status) = (by_id[id], i32::try_from(n % 120).unwrap());
        let state = if status == 0 { State::Completed } else { State::Failed };
        assert_eq!(
            (job.state, job.exit_code, job.signal),
            (state, Some(status), None),
            "round {round}: {job:?}"
        );
        assert_eq!(job.attempt, 1, "round {round}: {job:?}");
        assert_eq!(cluster.read(&user, &format!("r{round}.{n}")), "run\n", "job {id} ran once");
        assert_eq!(cluster.read(&user, &format!("e{round}.{n}")), "end\n", "job {id} ended once");
    }
    cluster.nothing_left_of_jobs();
    let shepherds = until("the end of the shepherds", SOON, || {
        let left = shepherds_of(cluster);
        left.is_empty().then_some(left)
    });
    assert_eq!(shepherds, Vec::<i32>::new());
}

/// Processes in the node's groups that are no job's: the launcher aside, shepherds.
fn shepherds_of(cluster: &Cluster) -> Vec<i32> {
    let node = cluster.node_pid(0);
    let parent = |pid: i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let mut left = tests::groups::processes(cluster.base());
    left.retain(|pid| *pid != node && parent(*pid) != Some(node) && processes::alive(*pid));
    left
}

fn accepted(result: &SubmittedResult) -> i64 {
    match result {
        SubmittedResult::Job(submitted) => submitted.id,
        SubmittedResult::Error(error) => panic!("refused: {error}"),
    }
}

/// Clients that submit held jobs one after another, until told to stop; what was acknowledged to them.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<i64>>>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(cluster: &Cluster, clients: usize) -> Load {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let client = |_| {
            let (stop, acknowledged, socket) = (stop.clone(), acknowledged.clone(), cluster.socket());
            std::thread::spawn(move || {
                let mut connection = None;
                while !stop.load(Ordering::SeqCst) {
                    let Ok(open) = connection.take().map_or_else(|| Connection::open(&socket), Ok) else {
                        std::thread::yield_now();
                        continue;
                    };
                    let mut api = open;
                    let job = Submission { hold: true, ..small_job("true", std::path::Path::new("/")) };
                    match api.post::<Submitted>("/v1/jobs", &job) {
                        Ok(submitted) => {
                            acknowledged.lock().unwrap().push(submitted.id);
                            connection = Some(api);
                        }
                        // Not acknowledged: it may be there or not.
                        Err(Refusal::Api(_, error)) => {
                            assert!(error.retryable, "refused for good: {error}");
                            connection = Some(api);
                        }
                        Err(Refusal::Lost(_)) => {}
                    }
                }
            })
        };
        let clients = (0..clients).map(client).collect();
        Load { stop, acknowledged, clients }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits for `more` acknowledgements from now on.
    fn more(&self, more: usize) {
        let before = self.count();
        until("acknowledgements", SOON, || (self.count() >= before + more).then_some(()));
    }

    fn finish(self) -> Vec<i64> {
        self.stop.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.join().expect("a client does not panic");
        }
        self.acknowledged.lock().unwrap().clone()
    }
}

/// Every acknowledged job is there, and no id was given twice.
fn all_there(cluster: &Cluster, acknowledged: &[i64]) {
    let ids: BTreeSet<i64> = acknowledged.iter().copied().collect();
    assert_eq!(ids.len(), acknowledged.len(), "an id was given to two submissions");
    let list: JobList = cluster.api().get("/v1/jobs?states=all").unwrap();
    let there: BTreeSet<i64> = list.jobs.iter().map(|job| job.id).collect();
    let lost: Vec<&i64> = ids.difference(&there).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged jobs are lost: {lost:?}", lost.len(), ids.len());
}

/// Acceptance 5: the database is killed under load; the controller itself brings it back and goes on.
#[test]
fn a_killed_database_comes_back_and_nothing_acknowledged_is_lost() {
    let cluster = Cluster::one_node();
    let user = User::one();
    let controller = cluster.ctld_pid();
    let running = cluster.submit(&user, &[], "until [ -e go ]; do sleep 0.1; done; exit 5");
    cluster.reaches(running, State::Running);
    let load = Load::start(&cluster, 4);
    for _ in 0..3 {
        load.more(100);
        let before = until("the database", SOON, || cluster.postmaster());
        kill(before, Signal::SIGKILL);
        until("another database", SOON, || cluster.postmaster().filter(|pid| *pid != before));
    }
    load.more(100);
    let acknowledged = load.finish();
    all_there(&cluster, &acknowledged);
    assert_eq!(cluster.ctld_pid(), controller, "the same controller");
    assert!(processes::alive(controller));
    // The job that ran through it has its true end, and new ones start.
    cluster.write(&user, "go", "");
    assert_eq!(cluster.ended(running).exit_code, Some(5));
    let id = cluster.submit(&user, &[], "exit 6");
    assert_eq!(cluster.ended(id).exit_code, Some(6));
}

/// A controller killed while clients submit loses nothing that it acknowledged and gives no id twice.
#[test]
fn a_killed_controller_loses_no_acknowledged_submission() {
    let mut cluster =
        Cluster::without_nodes(ClusterOptions { nodes: Vec::new(), ..ClusterOptions::default() });
    let load = Load::start(&cluster, 4);
    for _ in 0..5 {
        load.more(60);
        cluster.kill_ctld();
        cluster.start_ctld();
        cluster.ready();
    }
    load.more(10);
    let acknowledged = load.finish();
    all_there(&cluster, &acknowledged);
}

/// The same with people's commands: each `bsub` asks again by itself, succeeds, and has made exactly one job.
#[test]
fn bsub_survives_a_killed_controller_and_submits_once() {
    let mut cluster =
        Cluster::without_nodes(ClusterOptions { nodes: Vec::new(), ..ClusterOptions::default() });
    let user = User::one();
    let script = "for n in $(seq 40); do bsub --parsable -J $0-$n --wrap true || echo \"failed $?\"; done";
    let clients: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            let mut command =
                tests::commands::command(&user, std::path::Path::new("/bin/bash"), &cluster.home(&user));
            command.env("BC_SERVER", cluster.server());
            command.env("PATH", format!("{}:/usr/bin:/bin", cluster.commands().display()));
            tests::commands::Running::start(command.args(["-c", script, name]), b"")
        })
        .collect();
    let count = |cluster: &Cluster| -> Option<usize> {
        let list: JobList = Connection::open(&cluster.socket()).ok()?.get("/v1/jobs").ok()?;
        Some(list.jobs.len())
    };
    for target in [20, 50, 80] {
        until("jobs", SOON, || count(&cluster).filter(|n| *n >= target));
        cluster.kill_ctld();
        cluster.start_ctld();
        cluster.ready();
    }
    let mut ids = BTreeSet::new();
    for client in clients {
        let ran = client.finish(tests::commands::COMMAND_WITHIN);
        let mine: Vec<i64> = ran
            .stdout
            .lines()
            .map(|line| line.parse().unwrap_or_else(|_| panic!("{line}: {}", ran.stderr)))
            .collect();
        assert_eq!(mine.len(), 40, "{}", ran.stderr);
        ids.extend(mine);
    }
    assert_eq!(ids.len(), 120);
    let list: JobList = cluster.api().get("/v1/jobs?states=all").unwrap();
    let names: BTreeSet<&str> = list.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!((list.jobs.len(), names.len()), (120, 120), "one job for each command");
}

/// A graceful stop of everything and a start again: the queue is as it was, the running job goes on.
#[test]
fn a_stopped_cluster_goes_on_where_it_was() {
    let mut cluster = Cluster::one_node();
    let user = User::one();
    let running = cluster.submit(&user, &[], "until [ -e go ]; do sleep 0.1; done; exit 9");
    let held = cluster.submit(&user, &["--hold"], "true");
    cluster.reaches(running, State::Running);
    assert!(cluster.stop_node(0).success());
    assert!(cluster.stop_ctld().success());
    assert_eq!(cluster.postmaster(), None, "a stopped controller leaves no database running");
    // It ends while nobody looks.
    cluster.write(&user, "go", "");
    cluster.start_ctld();
    cluster.ready();
    cluster.start_node(0);
    assert_eq!(cluster.ended(running).exit_code, Some(9));
    assert_eq!(cluster.job(held).state, State::Pending);
    cluster.nothing_left_of_jobs();
}
