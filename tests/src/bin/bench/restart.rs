//! How long the controller is away when it is restarted with a long queue.

use crate::figures::{Report, summary};
use crate::load::{self, block, submit_in_batches};
use nix::sys::signal::Signal;
use proto::api::JobList;
use serde_json::json;
use std::time::{Duration, Instant};
use tests::{Cluster, Connection, User, processes};

const PENDING: usize = 10_000;

/// Killed, killed together with its database, and stopped in good order: from its start to the first answered request.
pub fn run(report: &mut Report) {
    let (mut cluster, user) = (load::cluster(report), User::one());
    block(&cluster, &user);
    submit_in_batches(&cluster, &user, &load::true_job(&cluster, &user), PENDING, 1000, 1);
    for how in ["kill9", "kill9_with_database", "graceful"] {
        let mut seconds = Vec::new();
        for _ in 0..report.times(5, 2) {
            if how == "graceful" {
                assert!(cluster.stop_ctld().success());
            } else {
                if how == "kill9_with_database" {
                    processes::kill(cluster.postmaster().expect("the database runs"), Signal::SIGKILL);
                }
                cluster.kill_ctld();
            }
            let began = Instant::now();
            cluster.start_ctld();
            first_answer(&cluster);
            seconds.push(began.elapsed().as_secs_f64());
            // The next round begins with everything connected again.
            cluster.ready();
            cluster.nodes_connected();
        }
        let left: JobList = cluster.api().get("/v1/jobs?states=pending").expect("the controller answers");
        assert_eq!(left.jobs.len(), PENDING, "every pending job is still there");
        report.line(
            "restart_s",
            json!({ "how": how, "pending": PENDING }),
            json!({ "seconds": summary(&seconds) }),
        );
    }
}

fn first_answer(cluster: &Cluster) {
    let began = Instant::now();
    loop {
        let answer = Connection::open(&cluster.socket())
            .ok()
            .and_then(|mut api| api.get::<JobList>("/v1/jobs?states=pending&limit=1").ok());
        if answer.is_some_and(|list| list.jobs.len() == 1) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "the controller does not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
}
