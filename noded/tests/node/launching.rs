//! What can go wrong between the assignment and the first instruction: each is told by name, and nothing of the job's runs.

use crate::site::{BOB, Site};
use proto::api::OpenMode;
use proto::session::EndCause;

#[tokio::test]
async fn files_and_folders_that_cannot_be_used_fail_the_launch_by_name() {
    let mut site = Site::new().await;
    let bob = site.path("bob").display().to_string();
    for (chdir, output, input, said) in [
        (Some("/nonesuch/x"), "o", None, "chdir \"/nonesuch/x\": no such file or directory".to_owned()),
        (Some(bob.as_str()), "o", None, format!("chdir {bob:?}: permission denied")),
        (None, "/nonesuch/o", None, "output \"/nonesuch/o\": no such file or directory: its directory \"/nonesuch\" does not exist, and is not made".to_owned()),
        (None, "/etc/passwd", None, "output \"/etc/passwd\": permission denied".to_owned()),
        (None, ".", None, "output \".\": is a directory".to_owned()),
        (None, "o", Some("missing"), "input \"missing\": no such file or directory".to_owned()),
    ] {
        let mut job = site.job("echo ran > ran");
        job.chdir = chdir.map_or(job.chdir, str::to_owned);
        job.output = Some(output.to_owned());
        job.input = input.map(str::to_owned);
        let ended = site.ended(job).await;
        assert_eq!((ended.cause, ended.started_age_us, ended.exit_code), (EndCause::LaunchFailed, None, None), "{ended:?}");
        assert_eq!(ended.message, Some(said));
    }
    assert!(!site.path("alice/ran").exists());
    site.clean().await;
}

#[tokio::test]
async fn an_interpreter_that_cannot_be_run_is_the_scripts_failure() {
    let mut site = Site::new().await;
    for (first, code, said) in [
        ("#!/usr/bin/nonesuch", 127, "interpreter \"/usr/bin/nonesuch\" not found"),
        ("#!/etc/passwd", 126, "interpreter \"/etc/passwd\" cannot be executed: permission denied"),
        ("#!/", 126, "interpreter \"/\" cannot be executed: permission denied"),
        ("true", 126, "the script does not begin with \"#!\" and an interpreter"),
    ] {
        let mut job = site.job("");
        job.script = format!("{first}\necho hi\n");
        let id = job.allocation_id;
        let ended = site.ended(job).await;
        assert_eq!((ended.cause, ended.exit_code), (EndCause::Exited, Some(code)), "{first}: {ended:?}");
        assert_eq!(ended.message.as_deref(), Some(said));
        if first.starts_with("#!") {
            assert!(site.output(id).contains(said), "{}", site.output(id));
        }
    }
    let mut job = site.job("");
    job.script = "#! /bin/bash -u \necho ${unset_variable}\n".to_owned();
    assert_eq!(site.ended(job).await.exit_code, Some(1), "the interpreter's own argument counts");
    site.clean().await;
}

#[tokio::test]
async fn a_job_cancelled_while_its_files_are_opened_never_starts() {
    let mut site = Site::new().await;
    let mut job = site.job("echo ran > ran");
    let fifo = site.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    std::fs::set_permissions(&fifo, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    // Opening it for reading waits for a writer.
    job.input = Some(fifo.display().to_string());
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.until("the child is on its way", || (!site.processes(id).is_empty()).then_some(())).await;
    site.ctld.stop(id, 600);
    let ended = site.ctld.ended(id).await;
    assert_eq!(
        (ended.cause, ended.started_age_us, ended.signal),
        (EndCause::Stopped, None, None),
        "{ended:?}"
    );
    assert!(!site.path("alice/ran").exists() && site.ctld.book(|b| !b.started.contains_key(&id)));
    site.clean().await;
}

#[tokio::test]
async fn jobs_cancelled_in_the_moment_of_their_launch_end_once_and_leave_nothing() {
    let mut site = Site::new().await;
    let jobs: Vec<_> = (0..60).map(|_| site.job("sleep 1000")).collect();
    let ids: Vec<i64> = jobs.iter().map(|job| job.allocation_id).collect();
    for job in jobs {
        let id = job.allocation_id;
        site.ctld.run(vec![job]);
        // Some before the next step of the node, some after.
        for _ in 0..id % 7 {
            tokio::task::yield_now().await;
        }
        site.ctld.stop(id, 0);
    }
    for id in &ids {
        assert_eq!(site.ctld.ended(*id).await.cause, EndCause::Stopped);
    }
    site.clean().await;
    assert!(site.ctld.book(|b| b.ended.values().all(|all| all.len() == 1)));
}

#[tokio::test]
async fn output_is_emptied_or_added_to_and_errors_go_where_they_are_told() {
    let mut site = Site::new().await;
    for (mode, expected) in
        [(OpenMode::Truncate, "out\n"), (OpenMode::Append, "out\nout\n"), (OpenMode::Truncate, "out\n")]
    {
        let mut job = site.job("echo out; echo err >&2");
        (job.output, job.error, job.open_mode) = (Some("o".to_owned()), Some("e-%x-%j".to_owned()), mode);
        let job_id = job.job_id;
        assert_eq!(site.ended(job).await.exit_code, Some(0));
        assert_eq!(std::fs::read_to_string(site.path("alice/o")).unwrap(), expected);
        assert_eq!(std::fs::read_to_string(site.path(&format!("alice/e-test-{job_id}"))).unwrap(), "err\n");
    }
    // Joined: both at the end of one file, in order.
    let (id, _) = site.script("echo 1; echo 2 >&2; echo 3").await;
    assert_eq!(site.output(id), "1\n2\n3\n");
}

#[tokio::test]
async fn a_job_sees_its_declared_gpus_and_an_overlap_is_refused() {
    let mut site = Site::prepare();
    site.config.push("gpus = [\"a100-80gb:2\", \"t4:1\"]".to_owned());
    site.start().await;
    let gpus = site.ctld.book(|b| b.hellos[0].inventory.gpus.clone());
    assert_eq!(gpus.len(), 3);
    let mut first = site.job("echo $CUDA_VISIBLE_DEVICES > gpus; sleep 1000");
    first.gpus = vec![gpus[0].uuid.clone(), gpus[2].uuid.clone()];
    let id = first.allocation_id;
    site.ctld.run(vec![first]);
    assert_eq!(site.file(&site.path("alice/gpus")).await, format!("{},{}\n", gpus[0].uuid, gpus[2].uuid));
    let mut second = site.job("true");
    second.gpus = vec![gpus[2].uuid.clone()];
    let refused = site.ended(second).await;
    assert_eq!(refused.cause, EndCause::Refused);
    assert!(refused.message.as_deref().unwrap().contains("is held by allocation 1, job 101"), "{refused:?}");
    let mut third = site.job("true");
    third.gpus = vec!["GPU-none".to_owned()];
    assert_eq!(site.ended(third).await.cause, EndCause::Refused);
    let mut fourth = site.job("true");
    fourth.gpus = vec![gpus[1].uuid.clone()];
    assert_eq!(site.ended(fourth).await.exit_code, Some(0));
    // The same UUIDs after a restart.
    site.kill_noded();
    site.start().await;
    assert_eq!(site.ctld.book(|b| b.hellos[1].inventory.gpus.clone()), gpus);
    site.ctld.stop(id, 0);
    site.ctld.ended(id).await;
}

#[tokio::test]
async fn a_member_holds_its_share_without_a_process_until_it_is_stopped() {
    let mut site = Site::new().await;
    let mut job = site.job("echo ran > ran");
    job.runs_script = false;
    (job.user, job.uid) = ("nonesuch".to_owned(), BOB);
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    assert_eq!(site.ctld.started(id).await, ["", "", ""].map(str::to_owned));
    site.kill_noded();
    site.start().await;
    site.ctld.stop(id, 600);
    let ended = site.ctld.ended(id).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::Stopped, None));
    assert!(ended.started_age_us.unwrap() >= ended.age_us);
    assert!(!site.path("alice/ran").exists());
}

#[tokio::test]
async fn a_folder_of_scripts_that_somebody_removed_is_made_again() {
    let mut site = Site::new().await;
    assert_eq!(site.script("exit 3").await.1.exit_code, Some(3));
    std::fs::remove_dir_all(site.scripts()).unwrap();
    assert_eq!(site.script("exit 4").await.1.exit_code, Some(4));
    site.clean().await;
}
