//! How long a job takes on an idle cluster: to its acknowledgement, its first instruction, and its end as others see it.

use crate::figures::{Report, ms, summary};
use crate::load;
use serde_json::json;
use std::time::{Duration, Instant};
use tests::{Cluster, User};

/// One job at a time, 50 times each way.
pub fn run(report: &mut Report) {
    let (cluster, user) = (load::cluster(report), User::one());
    let stamp = std::env::current_exe().expect("a running program has a path").with_file_name("stamp");
    assert!(stamp.is_file(), "{} is not there: build the package `tests` first", stamp.display());
    let interpreter = cluster.dir().join("stamp");
    std::fs::copy(&stamp, &interpreter).expect("a program can be copied");
    cluster.write(&user, "stamp.sh", format!("#!{}\n", interpreter.display()));
    cluster.write(&user, "date.sh", "#!/bin/sh\ndate +%s%N\n");
    for (interpreter, script) in [("a program", "stamp.sh"), ("sh and date", "date.sh")] {
        let (mut acknowledged, mut first, mut completed) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..report.times(50, 10) {
            idle();
            let one = by_bq(&cluster, &user, script);
            acknowledged.push(one.0);
            first.push(one.1);
            completed.push(one.2);
        }
        report.line(
            "latency_ms",
            json!({ "script": interpreter }),
            json!({ "acknowledged": summary(&acknowledged), "first_instruction": summary(&first),
                    "completed_in_bq": summary(&completed) }),
        );
    }
    let mut waited = Vec::new();
    for _ in 0..report.times(50, 10) {
        idle();
        let began = Instant::now();
        cluster.run(&user, "bsub", &["--wait", "--parsable", "-o", "/dev/null", "true.sh"]).ok();
        waited.push(ms(began.elapsed()));
    }
    report.line("bsub_wait_ms", json!({ "script": "sh and true" }), json!({ "ms": summary(&waited) }));
}

/// Out of step with whatever ticks.
fn idle() {
    std::thread::sleep(Duration::from_millis(300) + Duration::from_millis(700).mul_f64(rand::random()));
}

/// Milliseconds to acknowledgement, first instruction, and completion in `bq`.
fn by_bq(cluster: &Cluster, user: &User, script: &str) -> (f64, f64, f64) {
    let (began, began_ns) = (Instant::now(), wall_ns());
    let ran = cluster.run(user, "bsub", &["--parsable", "-o", "stamped", script]);
    let acknowledged = ms(began.elapsed());
    let id = ran.ok().trim().to_owned();
    let completed = loop {
        let state = cluster.run(user, "bq", &["-h", "-t", "all", "-j", &id, "-o", "state"]);
        match state.ok().trim() {
            "completed" => break ms(began.elapsed()),
            "failed" => panic!("job {id} failed"),
            _ => assert!(began.elapsed() < Duration::from_secs(60), "job {id} does not complete"),
        }
    };
    let stamped: i128 = cluster.read(user, "stamped").trim().parse().expect("a number of nanoseconds");
    (acknowledged, (stamped - began_ns) as f64 / 1e6, completed)
}

/// The wall clock, as the job reads it.
fn wall_ns() -> i128 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one timespec of our own to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}
