//! Submitting arrays: ranges, whatever their length.

use crate::figures::{Report, summary};
use crate::load::{self, block, purge, timed};
use serde_json::json;
use tests::User;

/// Arrays of 10,000 and of 1,000,000, behind blockers on every node.
pub fn run(report: &mut Report) {
    let (cluster, user) = (load::cluster(report), User::one());
    block(&cluster, &user);
    for tasks in [10_000, 1_000_000] {
        let (mut submits, mut lists, mut cancels) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..report.times(10, 3) {
            let indices = format!("--array=0-{}", tasks - 1);
            let args = ["--parsable", "-o", "/dev/null", &indices, "true.sh"];
            let (submit, id) = timed(&cluster, &user, "bsub", &args);
            submits.push(submit);
            lists.push(timed(&cluster, &user, "bq", &["-h"]).0);
            cancels.push(timed(&cluster, &user, "bcancel", &[id.trim()]).0);
        }
        report.line(
            "array_ms",
            json!({ "tasks": tasks }),
            json!({ "submit": summary(&submits), "list": summary(&lists), "cancel": summary(&cancels) }),
        );
    }
    purge(&cluster, &user);
}
