//! What a crash loses: nothing that was acknowledged.
//!
//! Clients submit, each printing an id when it has one; controller, database or both are killed with -9; afterwards every
//! printed id must be there, once.

use crate::figures::{Report, rounded};
use crate::load::{self, shell};
use nix::sys::signal::Signal;
use proto::api::JobList;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tests::commands::Running;
use tests::{Cluster, User, processes, until};

/// 20 kills, of the controller, the database and both in turn.
pub fn run(report: &mut Report) {
    let (mut cluster, user) = (load::cluster(report), User::one());
    let mut all = BTreeSet::new();
    let (mut lost, mut again, mut acknowledged) = (0, 0, 0);
    let kills = report.times(20, 4);
    for kill in 0..kills {
        let what = ["controller", "database", "both"][kill % 3];
        let outcome = one_kill(&mut cluster, &user, what);
        acknowledged += outcome.ids.len();
        again += outcome.ids.iter().filter(|id| !all.insert(**id)).count();
        let there: JobList = cluster.api().get("/v1/jobs?states=all").expect("the controller answers");
        let there: BTreeSet<i64> = there.jobs.iter().map(|job| job.id).collect();
        let missing = outcome.ids.iter().filter(|id| !there.contains(id)).count();
        lost += missing;
        report.line(
            "kill9_mid_submission",
            json!({ "killed": what }),
            json!({ "acknowledged": outcome.ids.len(), "lost": missing, "recover_s": rounded(outcome.recover_s) }),
        );
    }
    report.line(
        "killloss",
        json!({ "kills": kills }),
        json!({ "acknowledged": acknowledged, "lost": lost, "ids_given_twice": again }),
    );
}

struct Outcome {
    ids: Vec<i64>,
    recover_s: f64,
}

fn one_kill(cluster: &mut Cluster, user: &User, what: &str) -> Outcome {
    let home = cluster.home(user);
    // What the last round left would be taken for this one's.
    for n in 0..4 {
        cluster.write(user, &format!("ack.{n}"), "");
    }
    // A file each, as people's scripts would keep them; a line that is cut off was not acknowledged.
    let clients: Vec<Running> = (0..4)
        .map(|n| {
            let script =
                format!("until [ -e stop ]; do bsub --parsable --hold true.sh >> ack.{n} || exit 1; done");
            Running::start(shell(cluster, user).args(["-c", &script]), b"")
        })
        .collect();
    let read = || -> Vec<i64> {
        let text = |n| std::fs::read_to_string(home.join(format!("ack.{n}"))).unwrap_or_default();
        let whole =
            |text: String| text.rsplit_once('\n').map_or(String::new(), |(whole, _)| whole.to_owned());
        (0..4)
            .flat_map(|n| whole(text(n)).lines().filter_map(|l| l.parse().ok()).collect::<Vec<_>>())
            .collect()
    };
    let more = 100 + usize::from(rand::random::<u8>());
    until("acknowledgements", Duration::from_secs(120), || (read().len() >= more).then_some(()));
    let began = Instant::now();
    let before = cluster.postmaster().expect("the database runs");
    if what != "controller" {
        processes::kill(before, Signal::SIGKILL);
    }
    if what != "database" {
        cluster.kill_ctld();
        cluster.start_ctld();
    }
    if what != "controller" {
        until("another database", Duration::from_secs(120), || {
            cluster.postmaster().filter(|pid| *pid != before)
        });
    }
    cluster.ready();
    let recover_s = began.elapsed().as_secs_f64();
    cluster.write(user, "stop", "");
    for client in clients {
        let ran = client.finish(Duration::from_secs(120));
        assert_eq!(ran.status, 0, "a client gave up: {}", ran.stderr);
    }
    std::fs::remove_file(home.join("stop")).expect("our own file can be removed");
    Outcome { ids: read(), recover_s }
}
