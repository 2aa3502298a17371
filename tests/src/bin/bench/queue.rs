//! A long queue: what it costs to list, to cancel from, and to hold in memory.

use crate::figures::{Report, ms, rounded, summary};
use crate::load::{self, block, submit_in_batches};
use serde_json::json;
use std::process::Stdio;
use std::time::Instant;
use tests::{Cluster, User, processes};

const PENDING: usize = 10_000;

/// Everything with 10,000 jobs pending behind blockers on every node.
pub fn run(report: &mut Report) {
    let (cluster, user) = (load::cluster(report), User::one());
    let times = report.times(20, 5);
    report.line(
        "bq_ms",
        json!({ "pending": 0 }),
        json!({ "all": timed(&cluster, &user, times, "bq", &["-h"]) }),
    );
    memory(report, &cluster, 0);
    block(&cluster, &user);
    let job = load::true_job(&cluster, &user);
    let (ids, seconds) = submit_in_batches(&cluster, &user, &job, PENDING, 1000, 1);
    report.line("fill", json!({ "pending": PENDING }), json!({ "seconds": rounded(seconds) }));
    memory(report, &cluster, PENDING);

    let one = ids[PENDING / 2].to_string();
    let time = |args: &[&str]| timed(&cluster, &user, times, args[0], &args[1..]);
    let figures = json!({
        "all": time(&["bq", "-h"]),
        "all_json": time(&["bq", "--json"]),
        "mine": time(&["bq", "-h", "--me"]),
        "other": time(&["bq", "-h", "-u", "nobody"]),
        "one": time(&["bq", "-h", "-j", &one]),
        "one_full": time(&["bq", &one]),
        "why": time(&["bq", "--why", &one]),
        "running": time(&["bq", "-h", "-t", "running"]),
        "binfo": time(&["binfo"]),
    });
    report.line("bq_ms", json!({ "pending": PENDING }), figures);
    memory(report, &cluster, PENDING);

    let under_load: Vec<_> = (0..4).map(|_| load::bsub_loop(&cluster, &user, 100, "")).collect();
    let listed = timed(&cluster, &user, times, "bq", &["-h", "-j", &one]);
    load::finish(under_load);
    report.line("bq_one_ms_under_submit", json!({ "pending": PENDING }), json!({ "ms": listed }));

    let singles: Vec<f64> =
        ids[..times].iter().map(|id| load::timed(&cluster, &user, "bcancel", &[&id.to_string()]).0).collect();
    report.line("bcancel_one_ms", json!({ "pending": PENDING }), json!({ "ms": summary(&singles) }));
    let thousands: Vec<f64> = (0..3)
        .map(|k| {
            let ids: Vec<String> = ids[100 + k * 1000..1100 + k * 1000].iter().map(i64::to_string).collect();
            let args: Vec<&str> = ids.iter().map(String::as_str).collect();
            let began = Instant::now();
            cluster.run(&user, "bcancel", &args).ok();
            began.elapsed().as_secs_f64()
        })
        .collect();
    report.line("bcancel_1000_s", json!({ "pending": PENDING }), json!({ "seconds": summary(&thousands) }));
    let began = Instant::now();
    cluster.run(&user, "bcancel", &["--me"]).ok();
    let took = began.elapsed().as_secs_f64();
    report.line(
        "bcancel_all_s",
        json!({ "pending": PENDING - 3000 - times }),
        json!({ "seconds": rounded(took) }),
    );
}

fn timed(cluster: &Cluster, user: &User, times: usize, program: &str, args: &[&str]) -> serde_json::Value {
    let mut taken = Vec::new();
    for _ in 0..times {
        let mut command = cluster.command(user, program);
        command.args(args).stdout(Stdio::null()).stderr(Stdio::inherit());
        let began = Instant::now();
        let status = command.status().expect("a command runs");
        taken.push(ms(began.elapsed()));
        assert!(status.success(), "{program} {args:?}: {status}");
    }
    summary(&taken)
}

/// Resident memory of the controller, and what its database has for itself.
fn memory(report: &mut Report, cluster: &Cluster, pending: usize) {
    let (now, most) = processes::memory_kib(cluster.ctld_pid()).expect("the controller runs");
    let share = |pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse::<u64>().ok());
        line.unwrap_or(0)
    };
    let database: u64 = processes::database_processes(cluster.dir()).into_iter().map(share).sum();
    report.line(
        "memory_mib",
        json!({ "pending": pending }),
        json!({ "ctld": now / 1024, "ctld_most": most / 1024, "database_pss": database / 1024 }),
    );
}
