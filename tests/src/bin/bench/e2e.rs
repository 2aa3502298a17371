//! Many short jobs, from the first submission to the last completion: user change, control groups and durability included.

use crate::figures::{Report, summary};
use crate::load::{self, bsub_loop, drained, finish, submit_singly};
use proto::State;
use proto::api::JobList;
use serde_json::json;
use std::time::{Duration, Instant};
use tests::{Cluster, User};

/// Runs `1000` and `5000` jobs, submitted by four clients, by one client, and as one array.
pub fn run(report: &mut Report) {
    let user = User::one();
    for count in [1000, 5000] {
        for how in ["bsub4", "api", "array"] {
            let cluster = load::cluster(report);
            let (mut rates, mut submits) = (Vec::new(), Vec::new());
            for _ in 0..report.times(3, 1) {
                let began = Instant::now();
                submits.push(submit(&cluster, &user, how, count));
                drained(&cluster);
                rates.push(count as f64 / began.elapsed().as_secs_f64());
            }
            all_completed(&cluster, how, rates.len(), count);
            report.line(
                "e2e",
                json!({ "jobs": count, "how": how }),
                json!({ "jobs_per_s": summary(&rates), "submit_s": summary(&submits) }),
            );
        }
    }
}

/// Seconds until everything was acknowledged.
fn submit(cluster: &Cluster, user: &User, how: &str, count: usize) -> f64 {
    let began = Instant::now();
    match how {
        "bsub4" => finish((0..4).map(|_| bsub_loop(cluster, user, count / 4, "")).collect()),
        "api" => {
            submit_singly(cluster, user, &load::true_job(cluster, user), count, 16);
        }
        _ => {
            let indices = format!("--array=0-{}", count - 1);
            cluster.run(user, "bsub", &["--parsable", "-o", "/dev/null", "-n1", &indices, "true.sh"]).ok();
        }
    }
    began.elapsed().as_secs_f64()
}

/// A rate of jobs that did not run would be no rate.
fn all_completed(cluster: &Cluster, how: &str, rounds: usize, count: usize) {
    let list: JobList = cluster.api().get("/v1/jobs?states=completed").expect("the controller answers");
    let completed =
        list.jobs.iter().filter(|job| job.state == State::Completed && job.exit_code == Some(0)).count();
    assert_eq!(completed, rounds * count, "{how}: not every job completed");
    // The node is clean before the next cluster starts.
    tests::until("clean nodes", Duration::from_secs(60), || {
        tests::groups::job_groups(cluster.base()).is_empty().then_some(())
    });
}
