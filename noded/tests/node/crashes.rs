//! Any process killed at any moment: every job ends exactly once with its true end, and nothing is left.

use crate::site::Site;
use proto::session::{Assignment, EndCause};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SEED={seed}");
    seed
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: the caller has just found the process in a group of this test.
    unsafe { libc::kill(pid, signal) };
}

/// A job that says that it ran, in one write, and has an exit status of its own.
fn counted(site: &mut Site) -> Assignment {
    let mut job = site.job("");
    job.script =
        format!("#!/bin/sh\necho {0} >> ran\nexit {1}\n", job.allocation_id, job.allocation_id % 200 + 3);
    job.output = Some("/dev/null".to_owned());
    job
}

/// Waits for all, and checks that each ran once and ended once with its own exit status.
async fn all_counted(site: &Site, ids: &[i64]) {
    for id in ids {
        let ended = site.ctld.ended(*id).await;
        assert_eq!(
            (ended.cause, ended.exit_code),
            (EndCause::Exited, Some((*id % 200 + 3) as i32)),
            "{id}: {ended:?}"
        );
    }
    site.clean().await;
    let mut ran: Vec<i64> = std::fs::read_to_string(site.path("alice/ran"))
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    ran.sort_unstable();
    assert_eq!(ran, ids);
    site.ctld.book(|b| {
        for (id, all) in &b.ended {
            // Reported again after a crash, it must be the same.
            assert!(
                all.iter().all(|ended| ended.exit_code == all[0].exit_code && ended.cause == all[0].cause),
                "{id}: {all:?}"
            );
        }
    });
}

#[tokio::test]
async fn noded_killed_at_random_moments_of_200_launches_loses_and_repeats_nothing() {
    let mut random = StdRng::seed_from_u64(seed());
    let mut site = Site::new().await;
    let jobs: Vec<Assignment> = (0..200).map(|_| counted(&mut site)).collect();
    let ids: Vec<i64> = jobs.iter().map(|job| job.allocation_id).collect();
    for some in jobs.chunks(20) {
        for job in some {
            site.ctld.run(vec![job.clone()]);
        }
        // A random moment is what is wanted here, not a condition.
        tokio::time::sleep(Duration::from_micros(random.random_range(0..60_000))).await;
        site.kill_noded();
        site.start().await;
    }
    all_counted(&site, &ids).await;
}

#[tokio::test]
async fn the_launcher_killed_at_random_moments_of_200_launches_loses_and_repeats_nothing() {
    let mut random = StdRng::seed_from_u64(seed());
    let mut site = Site::new().await;
    let jobs: Vec<Assignment> = (0..200).map(|_| counted(&mut site)).collect();
    let ids: Vec<i64> = jobs.iter().map(|job| job.allocation_id).collect();
    for some in jobs.chunks(20) {
        let launcher = site.launcher();
        site.ctld.run(some.to_vec());
        tokio::time::sleep(Duration::from_micros(random.random_range(0..40_000))).await;
        kill(launcher, libc::SIGKILL);
        site.until("there is a new launcher", || {
            let shepherds = site.shepherds();
            (!shepherds.contains(&launcher) && has_child(site.noded_pid(), &shepherds)).then_some(())
        })
        .await;
    }
    all_counted(&site, &ids).await;
}

#[tokio::test]
async fn a_noded_waits_for_the_launcher_of_one_that_was_killed() {
    let mut site = Site::new().await;
    let first = counted(&mut site);
    let mut ids = vec![first.allocation_id];
    site.ended(first).await;
    let launcher = site.launcher();
    kill(launcher, libc::SIGSTOP);
    let jobs: Vec<Assignment> = (0..5).map(|_| counted(&mut site)).collect();
    ids.extend(jobs.iter().map(|job| job.allocation_id));
    let last = format!("\"allocation_id\":{},", ids[5]);
    site.ctld.run(jobs);
    let journal = site.state().join("journal");
    site.until("all are accepted", || {
        String::from_utf8_lossy(&std::fs::read(&journal).unwrap()).contains(&last).then_some(())
    })
    .await;
    // They now lie in a socket that only the stopped launcher reads.
    site.kill_noded();
    let before = site.ctld.book(|b| b.hellos.len());
    site.spawn();
    let lock = std::fs::metadata(site.state().join("launcher.lock")).unwrap();
    let inode = format!(":{} ", std::os::unix::fs::MetadataExt::ino(&lock));
    site.until("the new launcher waits for the old one", || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains(" -> ") && line.contains(&inode)).then_some(())
    })
    .await;
    assert_eq!(site.ctld.book(|b| b.hellos.len()), before);
    kill(launcher, libc::SIGCONT);
    all_counted(&site, &ids).await;
}

fn has_child(parent: i32, pids: &[i32]) -> bool {
    pids.iter().any(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.split(' ').nth(2) == Some(&parent.to_string()))
    })
}

#[tokio::test]
async fn a_job_that_ends_while_noded_is_dead_keeps_its_exit_status() {
    let mut site = Site::new().await;
    let job = site.job("echo ready > ready; until [ -e go ]; do sleep 0.02; done; exit 7");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    site.kill_noded();
    std::fs::write(site.path("alice/go"), "").unwrap();
    site.until("the job is gone", || site.layout().job_ids().unwrap().is_empty().then_some(())).await;
    site.start().await;
    let ended = site.ctld.ended(id).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::Exited, Some(7)), "{ended:?}");
    site.clean().await;
}

#[tokio::test]
async fn a_time_limit_holds_while_noded_is_dead() {
    let mut site = Site::new().await;
    let mut job = site.job(
        "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 3000' &); echo ready > ready; while :; do sleep 0.05; done",
    );
    job.time_limit_s = Some(1);
    job.grace_s = 1;
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    site.kill_noded();
    site.until("the job is gone", || site.layout().job_ids().unwrap().is_empty().then_some(())).await;
    site.start().await;
    let ended = site.ctld.ended(id).await;
    assert_eq!((ended.cause, ended.signal), (EndCause::TimeLimit, Some(9)), "{ended:?}");
    let ran_us = ended.started_age_us.unwrap() - ended.age_us;
    assert!(ran_us >= 2_000_000, "{ran_us}");
    site.clean().await;
}

#[tokio::test]
async fn a_readopted_job_can_be_cancelled_and_its_end_is_seen_at_once() {
    let mut site = Site::new().await;
    let jobs: Vec<Assignment> = (0..3).map(|_| site.job("echo $$ >> pids; sleep 1000")).collect();
    let ids: Vec<i64> = jobs.iter().map(|job| job.allocation_id).collect();
    site.ctld.run(jobs);
    for id in &ids {
        site.ctld.started(*id).await;
    }
    assert!(site.stop_noded(), "a stop that leaves jobs running is a good one");
    site.start().await;
    site.ctld.stop(ids[0], 600);
    let ended = site.ctld.ended(ids[0]).await;
    assert_eq!((ended.cause, ended.signal), (EndCause::Stopped, Some(15)), "{ended:?}");
    for pid in site.processes(ids[1]) {
        kill(pid, libc::SIGKILL);
    }
    let ended = site.ctld.ended(ids[1]).await;
    assert_eq!((ended.cause, ended.signal), (EndCause::Exited, Some(9)), "{ended:?}");
    site.ctld.stop(ids[2], 0);
    site.ctld.ended(ids[2]).await;
    site.clean().await;
}

#[tokio::test]
async fn a_killed_shepherd_is_lost_and_nothing_of_its_job_is_left() {
    let mut site = Site::new().await;
    for noded_dead in [false, true] {
        // Long enough at work that the kernel, which counts in ticks here, has counted something.
        let job = site.job(&format!(
            "for n in $(seq 30000); do :; done; echo > worked.{noded_dead}
            (setsid sh -c 'trap \"\" TERM; sleep 3000' &); sleep 3000"
        ));
        let id = job.allocation_id;
        site.ctld.run(vec![job]);
        site.ctld.started(id).await;
        site.file(&site.path(&format!("alice/worked.{noded_dead}"))).await;
        if noded_dead {
            site.kill_noded();
        }
        kill(site.shepherd(id), libc::SIGKILL);
        if noded_dead {
            site.start().await;
        }
        let ended = site.ctld.ended(id).await;
        assert_eq!((ended.cause, ended.exit_code, ended.signal), (EndCause::Lost, None, None), "{ended:?}");
        assert!(ended.started_age_us.is_some() && ended.usage.cpu_us > 0, "{ended:?}");
        site.clean().await;
    }
}

#[tokio::test]
async fn shepherds_killed_at_random_moments_leave_nothing_and_each_job_ends_once() {
    let mut random = StdRng::seed_from_u64(seed());
    let mut site = Site::new().await;
    let jobs: Vec<Assignment> = (0..60).map(|_| counted(&mut site)).collect();
    let ids: Vec<i64> = jobs.iter().map(|job| job.allocation_id).collect();
    for some in jobs.chunks(6) {
        let launcher = site.launcher();
        site.ctld.run(some.to_vec());
        tokio::time::sleep(Duration::from_micros(random.random_range(0..15_000))).await;
        for pid in site.shepherds() {
            if pid != launcher {
                kill(pid, libc::SIGKILL);
            }
        }
    }
    for id in &ids {
        let ended = site.ctld.ended(*id).await;
        match ended.cause {
            EndCause::Exited => assert_eq!(ended.exit_code, Some((*id % 200 + 3) as i32), "{id}: {ended:?}"),
            EndCause::Lost | EndCause::LaunchFailed => {}
            _ => panic!("{id}: {ended:?}"),
        }
    }
    site.clean().await;
    let text = std::fs::read_to_string(site.path("alice/ran")).unwrap_or_default();
    for id in ids {
        assert!(text.lines().filter(|line| *line == id.to_string()).count() <= 1, "{id} ran twice");
    }
}

#[tokio::test]
async fn a_stranger_with_a_dead_shepherds_number_lives() {
    let mut site = Site::new().await;
    let job = site.job("sleep 3000");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.ctld.started(id).await;
    site.kill_noded();
    kill(site.shepherd(id), libc::SIGKILL);
    let record = site.state().join("jobs").join(id.to_string());
    let examined = site.until("the lock is free", || {
        Some(noded::attempt::examine(&record).unwrap()).filter(|examined| !examined.held)
    });
    let mut claim = examined.await.record.claim.unwrap();
    // As if the kernel had given the number to another process meanwhile: never within the same tick of its clock.
    let mut stranger = loop {
        let mut stranger = std::process::Command::new("sleep").arg("3000").spawn().unwrap();
        if noded::sys::start_ticks(stranger.id() as i32).unwrap() != claim.start_ticks {
            break stranger;
        }
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    };
    claim.pid = stranger.id() as i32;
    let mut file = std::fs::File::options().read(true).write(true).open(&record).unwrap();
    noded::attempt::append(&mut file, &noded::attempt::Entry::Claimed(claim)).unwrap();
    // Held, so that noded has to decide by the number's start time.
    assert!(noded::sys::try_lock(&file).unwrap());
    site.start().await;
    site.until("the job's processes are gone", || site.processes(id).is_empty().then_some(())).await;
    drop(file);
    assert_eq!(site.ctld.ended(id).await.cause, EndCause::Lost);
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger was killed");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn after_a_reboot_ends_are_told_and_the_rest_is_rebooted() {
    let mut site = Site::new().await;
    site.ctld.book(|b| b.deaf = true);
    let done = site.job("exit 6");
    let running = site.job("sleep 3000");
    let (done_id, running_id) = (done.allocation_id, running.allocation_id);
    site.ctld.run(vec![done, running]);
    site.ctld.ended(done_id).await;
    site.ctld.started(running_id).await;
    site.kill_noded();
    let layout = site.layout();
    kill(site.shepherd(running_id), libc::SIGKILL);
    for pid in site.processes(running_id) {
        kill(pid, libc::SIGKILL);
    }
    // As a machine that goes down takes the groups with it.
    let group = noded::cgroup::JobGroup::new(&layout, running_id);
    site.until("its group can be removed", || group.remove().unwrap().then_some(())).await;
    site.ctld.book(|b| {
        b.deaf = false;
        b.ended.clear();
    });
    site.boot_id = Some("11111111-2222-3333-4444-555555555555\n".to_owned());
    site.start().await;
    let ended = site.ctld.ended(done_id).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::Exited, Some(6)), "{ended:?}");
    let ended = site.ctld.ended(running_id).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::Rebooted, None), "{ended:?}");
    site.clean().await;
}

#[tokio::test]
async fn a_torn_journal_tail_is_cut_off_and_a_damaged_journal_refused() {
    let mut site = Site::new().await;
    let job = site.job("sleep 3000");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.ctld.started(id).await;
    site.kill_noded();
    let journal = site.state().join("journal");
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, [&whole[..], &whole[..30]].concat()).unwrap();
    site.start().await;
    site.ctld.stop(id, 0);
    assert_eq!(site.ctld.ended(id).await.cause, EndCause::Stopped);
    assert!(site.stop_noded());
    let mut damaged = whole;
    damaged[20] ^= 1;
    std::fs::write(&journal, damaged).unwrap();
    let output = site.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("is damaged at byte 0"), "{said}");
}

#[tokio::test]
async fn what_is_in_no_journal_is_ended() {
    let mut site = Site::new().await;
    let job = site.job("sleep 3000");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.ctld.started(id).await;
    let journal_id = site.ctld.book(|b| b.hellos[0].journal_id.clone());
    site.kill_noded();
    std::fs::remove_file(site.state().join("journal")).unwrap();
    site.start().await;
    let ended = site.ctld.ended(id).await;
    assert_eq!(ended.cause, EndCause::Lost, "{ended:?}");
    assert_ne!(site.ctld.book(|b| b.hellos[1].journal_id.clone()), journal_id);
    site.clean().await;
    // Nor is it launched for a controller that has not heard of its start.
    let job = site.job("echo ran >> ran; sleep 3000");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ran")).await;
    site.kill_noded();
    std::fs::remove_file(site.state().join("journal")).unwrap();
    site.ctld.book(|b| b.started.clear());
    site.start().await;
    assert_eq!(site.ctld.ended(id).await.cause, EndCause::Lost);
    site.clean().await;
    assert_eq!(std::fs::read_to_string(site.path("alice/ran")).unwrap(), "ran\n");
}
