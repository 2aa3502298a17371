//! Events as people follow them, with real daemons: over a controller that is killed, and a list that is drawn anew.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::time::Duration;
use tests::{Cluster, SOON, User, until};

/// The jobs of which `bctl events --json` told the end so far, into this file.
fn told(cluster: &Cluster, user: &User, file: &str) -> BTreeSet<i64> {
    let text = cluster.read(user, file);
    // The last line may not be whole yet.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let job = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["type"], "job.ended", "{event}");
        event["data"]["job"].as_i64().unwrap()
    };
    whole.lines().map(job).collect()
}

#[test]
fn who_follows_events_over_a_killed_controller_misses_none() {
    let mut cluster = Cluster::one_node();
    let user = User::one();
    cluster.write(&user, "ended", "");
    let following =
        cluster.start_shell(&user, "exec bctl events --follow --type job.ended --json >>ended 2>>errors");
    // It follows from some time on: until it has told of one.
    let first = until("something is told", Duration::from_secs(60), || {
        cluster.ended(cluster.submit(&user, &[], "true"));
        told(&cluster, &user, "ended").first().copied()
    });
    let mut jobs = BTreeSet::from([first]);
    for _ in 0..2 {
        jobs.insert(cluster.submit(&user, &[], "sleep 1"));
        cluster.kill_ctld();
        cluster.start_ctld();
        cluster.ready();
        jobs.insert(cluster.submit(&user, &[], "true"));
        for id in &jobs {
            cluster.ended(*id);
        }
    }
    until("every end is told", Duration::from_secs(60), || {
        told(&cluster, &user, "ended").is_superset(&jobs).then_some(())
    });
    kill(Pid::from_raw(following.pid()), Signal::SIGTERM).unwrap();
    following.finish(SOON);

    // What is kept has them too.
    let kept = cluster.run(&user, "bctl", &["events", "--type", "job.ended", "--json"]);
    let kept: BTreeSet<i64> = kept
        .ok()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["data"]["job"].as_i64().unwrap())
        .collect();
    assert!(kept.is_superset(&jobs), "{jobs:?} of {kept:?}");
}

#[test]
fn a_watched_list_is_shown_again_when_it_changes() {
    let cluster = Cluster::one_node();
    let user = User::one();
    cluster.write(&user, "lists", "");
    let watching = cluster.start_shell(&user, "exec bq --watch -h -o id >>lists 2>>errors");
    let id = cluster.submit(&user, &["--hold"], "true");
    let shown = || cluster.read(&user, "lists").lines().any(|line| line.trim() == id.to_string());
    until("the held job is shown", Duration::from_secs(30), || shown().then_some(()));
    cluster.run(&user, "bctl", &["release", &id.to_string()]).ok();
    cluster.ended(id);
    until("the empty list is shown", Duration::from_secs(30), || {
        cluster.read(&user, "lists").ends_with("\n\n").then_some(())
    });
    kill(Pid::from_raw(watching.pid()), Signal::SIGTERM).unwrap();
    watching.finish(SOON);
}
