//! How many submissions a second are acknowledged, durably.

use crate::figures::{Report, ms, summary};
use crate::load::{self, bsub_loop, finish, purge, submit_in_batches, submit_singly};
use proto::api::Submission;
use serde_json::json;
use std::time::Instant;
use tests::User;

/// Shell loops of separate `bsub` processes: held jobs, and jobs that run at once.
pub fn processes(report: &mut Report) {
    let (cluster, user) = (load::cluster(report), User::one());
    for held in [true, false] {
        for clients in [1, 4, 16] {
            let total = if clients == 1 { 400 } else { 800 };
            let mut rates = Vec::new();
            for _ in 0..report.times(5, 2) {
                let began = Instant::now();
                let options = if held { "--hold" } else { "" };
                finish((0..clients).map(|_| bsub_loop(&cluster, &user, total / clients, options)).collect());
                rates.push(total as f64 / began.elapsed().as_secs_f64());
                purge(&cluster, &user);
            }
            report.line(
                "submit_bsub",
                json!({ "held": held, "clients": clients }),
                json!({ "per_s": summary(&rates) }),
            );
        }
    }
}

/// One client: a request a job on several connections, and many jobs a request.
pub fn one_client(report: &mut Report) {
    let (cluster, user) = (load::cluster(report), User::one());
    let job = Submission { hold: true, ..load::true_job(&cluster, &user) };
    for connections in [1, 4, 16, 64] {
        let count = if connections == 1 { 1000 } else { 5000 };
        let mut rates = Vec::new();
        for _ in 0..report.times(5, 2) {
            rates.push(count as f64 / submit_singly(&cluster, &user, &job, count, connections));
            purge(&cluster, &user);
        }
        report.line(
            "submit_api",
            json!({ "held": true, "connections": connections }),
            json!({ "per_s": summary(&rates) }),
        );
    }
    for (batch, connections) in [(100, 1), (100, 4), (1000, 1)] {
        let mut rates = Vec::new();
        for _ in 0..report.times(5, 2) {
            rates.push(5000.0 / submit_in_batches(&cluster, &user, &job, 5000, batch, connections).1);
            purge(&cluster, &user);
        }
        report.line(
            "submit_api_batch",
            json!({ "held": true, "batch": batch, "connections": connections }),
            json!({ "per_s": summary(&rates) }),
        );
    }
}

/// A process that does nothing, and a command that speaks to nobody.
pub fn floor(report: &mut Report) {
    let (cluster, user) = (load::cluster(report), User::one());
    for (name, line) in
        [("true", "/bin/true"), ("bsub --version", "bsub --version"), ("bctl check", "bctl check")]
    {
        let mut times = Vec::new();
        for _ in 0..report.times(10, 3) {
            let script = format!("i=0; while [ $i -lt 100 ]; do {line} >/dev/null; i=$((i+1)); done");
            let began = Instant::now();
            finish(vec![tests::commands::Running::start(
                load::shell(&cluster, &user).args(["-c", &script]),
                b"",
            )]);
            times.push(ms(began.elapsed()) / 100.0);
        }
        report.line("process", json!({ "command": name }), json!({ "ms": summary(&times) }));
    }
}
