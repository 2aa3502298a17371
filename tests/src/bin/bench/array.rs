//! Submitting arrays: ranges, whatever their length.

use crate::figures::{Report, ms, summary};
use crate::load::{self, block, purge};
use serde_json::json;
use std::time::Instant;
use tests::User;

/// Arrays of 10,000 and of 1,000,000, behind blockers on every node.
pub fn run(report: &mut Report) {
    let (cluster, user) = (load::cluster(report), User::one());
    block(&cluster, &user);
    for tasks in [10_000, 1_000_000] {
        let (mut submits, mut lists, mut cancels) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..report.times(10, 3) {
            let began = Instant::now();
            let indices = format!("--array=0-{}", tasks - 1);
            let ran = cluster.run(&user, "bsub", &["--parsable", "-o", "/dev/null", &indices, "true.sh"]);
            submits.push(ms(began.elapsed()));
            let id = ran.ok().trim().to_owned();
            let began = Instant::now();
            cluster.run(&user, "bq", &["-h"]).ok();
            lists.push(ms(began.elapsed()));
            let began = Instant::now();
            cluster.run(&user, "bcancel", &[&id]).ok();
            cancels.push(ms(began.elapsed()));
        }
        report.line(
            "array_ms",
            json!({ "tasks": tasks }),
            json!({ "submit": summary(&submits), "list": summary(&lists), "cancel": summary(&cancels) }),
        );
    }
    purge(&cluster, &user);
}
