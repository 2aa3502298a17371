//! How an end is told: exit statuses, signals, memory, limits, cancels; and that nothing is left after any of them.

use crate::site::Site;
use proto::api::WarnSignal;
use proto::session::{Command, CommandAct, EndCause};

#[tokio::test]
async fn exit_statuses_and_signals_are_two_things() {
    let mut site = Site::new().await;
    for (script, code, signal) in [
        ("exit 0", Some(0), None),
        ("exit 1", Some(1), None),
        ("exit 255", Some(255), None),
        ("exit 137", Some(137), None),
        ("kill -SEGV $$", None, Some(11)),
        ("kill -TERM $$", None, Some(15)),
        ("kill -KILL $$", None, Some(9)),
        ("bash -c 'kill -SEGV $$'; true", Some(0), None),
        ("exec /nonesuch", Some(127), None),
    ] {
        let (_, ended) = site.script(script).await;
        assert_eq!(
            (ended.cause, ended.exit_code, ended.signal),
            (EndCause::Exited, code, signal),
            "{script}: {ended:?}"
        );
        assert!(ended.started_age_us.unwrap() >= ended.age_us);
    }
    site.clean().await;
}

#[tokio::test]
async fn a_killed_child_is_out_of_memory_whatever_the_script_exits_with() {
    let mut site = Site::new().await;
    let mut job = site.job("bash -c 'echo 1000 > /proc/self/oom_score_adj; x=$(head -c 300000000 /dev/zero | tr \"\\0\" x)'; exit 0");
    job.mem_mib = 48;
    let ended = site.ended(job).await;
    assert_eq!(ended.cause, EndCause::OutOfMemory, "{ended:?}");
    // On a busy machine the kernel may take the script's own shell as well.
    let own = (ended.exit_code, ended.signal);
    assert!(own == (Some(0), None) || (ended.usage.oom_kills > 1 && own == (None, Some(9))), "{ended:?}");
    assert!(ended.usage.oom_kills >= 1);
    assert!(ended.usage.mem_peak_bytes.unwrap() > 40 << 20);
    assert!(ended.message.unwrap().contains("the job reached its 48 MiB"));
    site.clean().await;
}

#[tokio::test]
async fn cpu_time_of_daemonised_children_is_counted_and_they_are_gone() {
    let mut site = Site::new().await;
    let script = "
        burn() { local end=$((SECONDS + 1)); while [ $SECONDS -lt $end ]; do :; done; echo done > burnt; exec sleep 3000; }
        (setsid bash -c \"$(declare -f burn); burn\" > /dev/null 2>&1 &)
        setsid sh -c 'trap \"\" TERM HUP; sleep 3000' &
        until [ -s burnt ]; do sleep 0.05; done
        exit 7";
    let (_, ended) = site.script(script).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::Exited, Some(7)), "{ended:?}");
    assert!(ended.usage.cpu_us > 20_000, "{:?}", ended.usage);
    site.clean().await;
}

#[tokio::test]
async fn a_cancelled_job_that_ignores_sigterm_is_killed_after_its_grace() {
    let mut site = Site::new().await;
    let job = site.job("trap '' TERM; echo ready > ready; while :; do sleep 0.05; done");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    site.ctld.stop(id, 1);
    let ended = site.ctld.ended(id).await;
    assert_eq!((ended.cause, ended.signal), (EndCause::Stopped, Some(9)), "{ended:?}");
    assert!(ended.started_age_us.unwrap() - ended.age_us >= 1_000_000, "{ended:?}");
    assert!(site.ctld.book(|b| b.completing.contains(&id)));
    let output = site.output(id);
    assert!(
        output.contains("*** JOB 101 ON n1 CANCELLED AT 2") && output.contains("Z by alice ***"),
        "{output}"
    );
    site.clean().await;
}

#[tokio::test]
async fn a_cancelled_job_keeps_its_state_though_it_exits_0_and_its_program_keeps_its_grace() {
    let mut site = Site::new().await;
    // The shell dies of SIGTERM at once; its child takes a while to save, within the grace.
    let job = site.job("bash -c 'trap \"sleep 0.3; echo saved > saved; exit 0\" TERM; echo ready > ready; while :; do sleep 0.02; done'; true");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    site.ctld.stop(id, 30);
    let ended = site.ctld.ended(id).await;
    assert_eq!(ended.cause, EndCause::Stopped, "{ended:?}");
    assert_eq!(site.file(&site.path("alice/saved")).await, "saved\n");
    site.clean().await;
}

#[tokio::test]
async fn a_stopped_process_acts_on_a_cancel() {
    let mut site = Site::new().await;
    let job = site.job("echo ready > ready; kill -STOP $$");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    site.ctld.stop(id, 600);
    let ended = site.ctld.ended(id).await;
    assert_eq!((ended.cause, ended.signal), (EndCause::Stopped, Some(15)), "{ended:?}");
}

#[tokio::test]
async fn a_time_limit_warns_terminates_and_is_the_state_though_the_script_exits_0() {
    let mut site = Site::new().await;
    let mut job =
        site.job("trap 'echo warned > warned' USR1; trap 'exit 0' TERM; while :; do sleep 0.02; done");
    job.time_limit_s = Some(2);
    job.warn = Some(WarnSignal { signal: libc::SIGUSR1, before_s: 1, script_only: true });
    let id = job.allocation_id;
    let ended = site.ended(job).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::TimeLimit, Some(0)), "{ended:?}");
    let ran_us = ended.started_age_us.unwrap() - ended.age_us;
    assert!(ran_us >= 2_000_000, "{ran_us}");
    assert_eq!(site.file(&site.path("alice/warned")).await, "warned\n");
    assert!(site.output(id).contains("DUE TO TIME LIMIT ***"), "{}", site.output(id));
    site.clean().await;
}

#[tokio::test]
async fn a_command_signals_the_script_or_everything_and_once_per_key() {
    let mut site = Site::new().await;
    let script = "
        trap 'echo usr1 >> script' USR1
        bash -c 'trap \"echo usr1 >> child\" USR1; echo ready > ready; while :; do sleep 0.02; done' &
        while :; do wait; done";
    let job = site.job(script);
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    assert_eq!(site.ctld.signal(1, "a", id, libc::SIGUSR1, true).await, None);
    site.file(&site.path("alice/script")).await;
    assert!(!site.path("alice/child").exists());
    assert_eq!(site.ctld.signal(2, "b", id, libc::SIGUSR1, false).await, None);
    site.file(&site.path("alice/child")).await;
    assert_eq!(
        site.ctld.signal(3, "b", id, libc::SIGKILL, false).await,
        None,
        "answered from memory, not run again"
    );
    site.until("the script was signalled twice", || {
        (site_text(&site, "script") == "usr1\nusr1\n").then_some(())
    })
    .await;
    assert!(
        site.ctld
            .signal(4, "c", 999, libc::SIGUSR1, false)
            .await
            .unwrap()
            .contains("999 is not on this node")
    );
    assert!(site.ctld.signal(5, "d", id, 99, false).await.unwrap().contains("99 is not a signal"));
    // Across a restart the answer is the same.
    site.kill_noded();
    site.start().await;
    assert!(
        site.ctld.signal(6, "c", id, libc::SIGKILL, false).await.unwrap().contains("999 is not on this node")
    );
    site.ctld.stop(id, 0);
    assert_eq!(site.ctld.ended(id).await.cause, EndCause::Stopped);
}

#[tokio::test]
async fn a_command_waits_for_the_generation_of_the_target_that_it_needs() {
    let mut site = Site::new().await;
    let job = site.job("trap 'echo usr1 >> got' USR1; echo ready > ready; while :; do sleep 0.02; done");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    let next = site.ctld.generation() + 1;
    let act = CommandAct::Signal { allocation_id: id, signal: libc::SIGUSR1, script_only: true };
    let early =
        Command { id: 1, idempotency_key: "early".into(), min_generation: next, retry_safe: false, act };
    site.ctld.send(early);
    // Sent later and answered: the first was read before, and waits.
    assert!(site.ctld.signal(2, "later", 999, libc::SIGUSR1, true).await.is_some());
    assert!(site.ctld.book(|b| !b.answers.contains_key(&1)), "its generation is not applied yet");
    site.ctld.limit(id, Some(3600), 1);
    assert_eq!(site.ctld.answer(1).await, None);
    assert_eq!(site.file(&site.path("alice/got")).await, "usr1\n");
    site.ctld.stop(id, 0);
    site.ctld.ended(id).await;
}

fn site_text(site: &Site, name: &str) -> String {
    std::fs::read_to_string(site.path(&format!("alice/{name}"))).unwrap_or_default()
}
