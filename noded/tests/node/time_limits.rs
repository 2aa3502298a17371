//! A time limit that changes under its job: longer, shorter, early, twice, and over restarts of noded.

use crate::site::Site;
use proto::api::WarnSignal;
use proto::session::{Assignment, EndCause, Ended};

/// Its limit until somebody changes it is `limit_s`; it would run for 5 s and exit with 4.
fn five_seconds(site: &mut Site, limit_s: u64) -> Assignment {
    let id = site.job("").allocation_id + 1;
    let mut job =
        site.job(&format!("echo ready > ready{id}; while [ $SECONDS -lt 5 ]; do sleep 0.05; done; exit 4"));
    job.time_limit_s = Some(limit_s);
    job
}

/// For ever, with a limit that is far away.
fn endless(site: &mut Site, script: &str) -> Assignment {
    let mut job = site.job(&format!("{script}; while :; do sleep 0.02; done"));
    job.time_limit_s = Some(600);
    job.grace_s = 1;
    job
}

fn ran_us(ended: &Ended) -> u64 {
    ended.started_age_us.unwrap() - ended.age_us
}

#[tokio::test]
async fn a_longer_limit_is_the_one_that_counts_however_early_it_comes() {
    let mut site = Site::new().await;
    let jobs: Vec<Assignment> = (0..3).map(|_| five_seconds(&mut site, 4)).collect();
    let ids: Vec<i64> = jobs.iter().map(|job| job.allocation_id).collect();
    site.ctld.run(jobs);
    // There is no shepherd yet, and hardly an acceptance.
    site.ctld.limit(ids[0], Some(600), 1);
    for id in &ids[1..] {
        site.file(&site.path(&format!("alice/ready{id}"))).await;
        // The last one's is taken away.
        site.ctld.limit(*id, (*id != ids[2]).then_some(600), 2);
    }
    for id in ids {
        let ended = site.ctld.ended(id).await;
        assert_eq!((ended.cause, ended.exit_code), (EndCause::Exited, Some(4)), "{id}: {ended:?}");
        // The shell counts whole seconds of the clock, so its five are at least four.
        assert!(ran_us(&ended) >= 4_000_000, "{id}: {ended:?}");
    }
    site.clean().await;
}

#[tokio::test]
async fn a_shorter_limit_that_has_passed_ends_the_job_as_any_limit_does() {
    let mut site = Site::new().await;
    let job = endless(
        &mut site,
        "trap 'exit 0' TERM; while [ $SECONDS -lt 2 ]; do sleep 0.02; done; echo ready > ready",
    );
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    site.ctld.limit(id, Some(1), 1);
    let ended = site.ctld.ended(id).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::TimeLimit, Some(0)), "{ended:?}");
    assert!(site.output(id).contains("DUE TO TIME LIMIT ***"), "{}", site.output(id));
    site.clean().await;
}

#[tokio::test]
async fn the_warning_moves_with_the_limit_and_comes_again_before_a_later_one() {
    let mut site = Site::new().await;
    let mut job = endless(&mut site, "trap 'echo warned >> warned' USR1; echo ready > ready");
    job.warn = Some(WarnSignal { signal: libc::SIGUSR1, before_s: 2, script_only: true });
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    site.ctld.limit(id, Some(4), 1);
    site.file(&site.path("alice/warned")).await;
    site.ctld.limit(id, Some(8), 2);
    let ended = site.ctld.ended(id).await;
    assert_eq!(ended.cause, EndCause::TimeLimit, "{ended:?}");
    assert!(ran_us(&ended) >= 8_000_000, "{ended:?}");
    assert_eq!(site.file(&site.path("alice/warned")).await, "warned\nwarned\n");
    site.clean().await;
}

#[tokio::test]
async fn a_limit_that_changed_while_noded_was_dead_is_met_also_if_it_is_an_earlier_one() {
    let mut site = Site::new().await;
    let jobs: Vec<Assignment> = (0..2)
        .map(|_| {
            let id = site.job("").allocation_id + 1;
            endless(&mut site, &format!("echo ready > ready{id}"))
        })
        .collect();
    let ids: Vec<i64> = jobs.iter().map(|job| job.allocation_id).collect();
    site.ctld.run(jobs);
    for id in &ids {
        site.file(&site.path(&format!("alice/ready{id}"))).await;
        site.ctld.started(*id).await;
    }
    // The second one's way is from 600 to 1000 and, unseen, back to 600: what the journal says, and not what its shepherd knows.
    site.ctld.limit(ids[1], Some(1000), 1);
    let orders = site.state().join(format!("jobs/{}.orders", ids[1]));
    let given = |n: usize| {
        let orders = noded::attempt::orders(&orders, 0).unwrap().0;
        (orders.len() == n).then(|| orders.last().cloned())
    };
    site.until("it is given its longer limit", || given(1)).await;
    site.kill_noded();
    site.ctld.limit(ids[0], Some(1), 1);
    site.ctld.limit(ids[1], Some(600), 1);
    site.start().await;
    assert_eq!(site.ctld.ended(ids[0]).await.cause, EndCause::TimeLimit);
    let last = site.until("it is given its first limit again", || given(2)).await;
    assert_eq!(last, Some(noded::attempt::Order::Limit { time_limit_s: Some(600) }));
    site.ctld.stop(ids[1], 0);
    assert_eq!(site.ctld.ended(ids[1]).await.cause, EndCause::Stopped);
    site.clean().await;
}

#[tokio::test]
async fn a_limit_given_before_the_launch_survives_noded_and_launcher() {
    let mut site = Site::new().await;
    let mut job = site.job("while [ $SECONDS -lt 4 ]; do sleep 0.05; done; echo done > done; exit 4");
    job.time_limit_s = Some(1);
    job.grace_s = 0;
    let id = job.allocation_id;
    let launcher = site.launcher();
    // SAFETY: the launcher was just found in a group of this test.
    unsafe { libc::kill(launcher, libc::SIGSTOP) };
    site.ctld.run(vec![job]);
    site.ctld.limit(id, None, 1);
    let orders = site.state().join(format!("jobs/{id}.orders"));
    site.until("the limit lies among the orders", || orders.exists().then_some(())).await;
    site.kill_noded();
    // Nobody is there who could say it again.
    site.ctld.book(|b| b.refuse = Some("not now".to_owned()));
    site.spawn();
    // SAFETY: as above; it is stopped, so its number is its own.
    unsafe { libc::kill(launcher, libc::SIGCONT) };
    site.file(&site.path("alice/done")).await;
    site.ctld.book(|b| b.refuse = None);
    let ended = site.ctld.ended(id).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::Exited, Some(4)), "{ended:?}");
    site.clean().await;
}
