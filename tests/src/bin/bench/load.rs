//! What the benchmarks load a cluster with: shell loops of commands, and one client with many connections.

use crate::figures::{Report, ms};
use proto::api::{JobList, Submission, SubmissionBatch, SubmittedBatch, SubmittedResult};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tests::commands::{self, Running};
use tests::{Cluster, ClusterOptions, Connection, NodeOptions, User, small_job, until};

/// Long enough for anything that works.
const WITHIN: Duration = Duration::from_secs(600);

/// Four nodes of 16 CPUs and two GPUs, as in the scripts that measured Slurm.
pub fn cluster(report: &mut Report) -> Cluster {
    cluster_with(report, "")
}

/// The same with settings of its database's own.
pub fn cluster_with(report: &mut Report, database: &str) -> Cluster {
    let nodes = (1..=4).map(|n| NodeOptions::named(&format!("n{n}"))).collect();
    let cluster = Cluster::start(ClusterOptions {
        nodes,
        log: "warn".into(),
        database: database.into(),
        ..ClusterOptions::default()
    });
    report.cluster(cluster.base());
    let user = User::one();
    cluster.write(&user, "true.sh", "#!/bin/sh\ntrue\n");
    cluster.write(&user, "sleep.sh", "#!/bin/sh\nexec sleep 3600\n");
    cluster
}

/// A `true` job of one CPU.
pub fn true_job(cluster: &Cluster, user: &User) -> Submission {
    Submission { mem_mib: None, time_limit_s: None, ..small_job("true", &cluster.home(user)) }
}

/// Starts a shell loop of `count` separate `bsub` processes.
pub fn bsub_loop(cluster: &Cluster, user: &User, count: usize, options: &str) -> Running {
    let script = format!(
        "i=0; while [ $i -lt {count} ]; do bsub --parsable -o /dev/null -n1 {options} true.sh && i=$((i+1)) || sleep 0.02; done"
    );
    Running::start(shell(cluster, user).args(["-c", &script]), b"")
}

/// A dash of the user's that finds the commands.
pub fn shell(cluster: &Cluster, user: &User) -> Command {
    let mut command = commands::command(user, Path::new("/bin/dash"), &cluster.home(user));
    command.env("BC_SERVER", cluster.server());
    command.env("PATH", format!("{}:/usr/bin:/bin", cluster.commands().display()));
    command
}

/// Waits for the loops' ends.
pub fn finish(loops: Vec<Running>) {
    for one in loops {
        let ran = one.finish(WITHIN);
        assert_eq!(ran.status, 0, "{ran:?}");
    }
}

/// Submits `count` jobs through one client with so many connections, one request a job; seconds it took.
pub fn submit_singly(
    cluster: &Cluster,
    user: &User,
    job: &Submission,
    count: usize,
    connections: usize,
) -> f64 {
    // Only the key differs: the client costs as little as it can.
    let mark = "K".repeat(24);
    let template = Submission { idempotency_key: mark.clone(), ..job.clone() };
    let text = serde_json::to_string(&template).expect("a submission becomes JSON");
    let (before, after) = text.split_once(&mark).expect("the key is in it");
    let opened: Vec<Connection> = (0..connections).map(|_| cluster.api_as(user)).collect();
    let salt: u64 = rand::random();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (n, mut connection) in opened.into_iter().enumerate() {
            let share = count / connections + usize::from(n < count % connections);
            scope.spawn(move || {
                for i in 0..share {
                    let body = format!("{before}{salt:016x}.{n}.{i}{after}");
                    let (status, answer) = connection
                        .exchange("POST", "/v1/jobs", body.as_bytes())
                        .expect("the controller answers");
                    assert_eq!(status, 201, "{}", String::from_utf8_lossy(&answer));
                }
            });
        }
    });
    began.elapsed().as_secs_f64()
}

/// Submits `count` jobs through one client, so many in a request, on so many connections; their ids and seconds it took.
pub fn submit_in_batches(
    cluster: &Cluster,
    user: &User,
    job: &Submission,
    count: usize,
    batch: usize,
    connections: usize,
) -> (Vec<i64>, f64) {
    let batches: Vec<SubmissionBatch> = (0..count)
        .step_by(batch)
        .map(|start| {
            let one = |_| Submission { idempotency_key: tests::submissions::fresh_key(), ..job.clone() };
            SubmissionBatch { jobs: (start..count.min(start + batch)).map(one).collect() }
        })
        .collect();
    let opened: Vec<Connection> = (0..connections).map(|_| cluster.api_as(user)).collect();
    let began = Instant::now();
    let ids = std::thread::scope(|scope| {
        let batches = &batches;
        let send = |(n, mut connection): (usize, Connection)| {
            scope.spawn(move || {
                let mine = batches.iter().skip(n).step_by(connections);
                let mut ids = Vec::new();
                for batch in mine {
                    let answer: SubmittedBatch =
                        connection.post("/v1/jobs/batch", batch).expect("the controller takes a batch");
                    ids.extend(answer.results.iter().map(|result| match result {
                        SubmittedResult::Job(job) => job.id,
                        SubmittedResult::Error(error) => panic!("refused: {error}"),
                    }));
                }
                ids
            })
        };
        let threads: Vec<_> = opened.into_iter().enumerate().map(send).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client does not panic")).collect()
    });
    (ids, began.elapsed().as_secs_f64())
}

/// Runs a command of the user's to its end: milliseconds it took, and what it printed. Waits without looking now and then, whose
/// interval would be in the figure.
pub fn timed(cluster: &Cluster, user: &User, program: &str, args: &[&str]) -> (f64, String) {
    let mut command = cluster.command(user, program);
    command.args(args).stderr(Stdio::inherit());
    let began = Instant::now();
    let ran = command.output().expect("a command runs");
    let took = ms(began.elapsed());
    assert!(ran.status.success(), "{program} {args:?}: {}", ran.status);
    (took, String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// Waits until no job is left in the queue: for the end of the last one there, again and again, so that looking costs nothing
/// beside what is measured.
pub fn drained(cluster: &Cluster) {
    let mut api = cluster.api();
    let began = Instant::now();
    loop {
        let list: JobList = api.get("/v1/jobs").expect("the controller answers");
        let Some(last) = list.jobs.iter().map(|job| job.id).max() else { return };
        assert!(began.elapsed() < WITHIN, "{} jobs are left in the queue", list.jobs.len());
        api.get::<JobList>(&format!("/v1/jobs/{last}/wait?timeout_s=60")).expect("the controller answers");
    }
}

/// Cancels everything and waits until it is over.
pub fn purge(cluster: &Cluster, user: &User) {
    cluster.run(user, "bcancel", &["--me"]).ok();
    drained(cluster);
}

/// Takes every node with a sleeping job, so that what follows stays pending.
pub fn block(cluster: &Cluster, user: &User) {
    for _ in 0..4 {
        cluster.run(user, "bsub", &["--exclusive", "-o", "/dev/null", "sleep.sh"]).ok();
    }
    let mut api = cluster.api();
    until("the blockers", WITHIN, || {
        let list: JobList = api.get("/v1/jobs?states=running").expect("the controller answers");
        (list.jobs.len() == 4).then_some(())
    });
}
