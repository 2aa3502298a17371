//! One job's excess is its own: neighbours and noded do not notice.

use crate::site::Site;
use proto::session::EndCause;

#[tokio::test]
async fn a_fork_bomb_stays_within_its_processes_and_ends_at_its_limit() {
    let mut site = Site::prepare();
    site.config.push("pids_max = 100".to_owned());
    site.start().await;
    let mut bomb =
        site.job("echo ready > ready; bomb() { bomb | bomb & }; bomb; while :; do sleep 0.1; done");
    bomb.time_limit_s = Some(3);
    bomb.grace_s = 0;
    let id = bomb.allocation_id;
    site.ctld.run(vec![bomb]);
    site.file(&site.path("alice/ready")).await;
    let (_, neighbour) = site.script("seq 3 | wc -l").await;
    assert_eq!((neighbour.cause, neighbour.exit_code), (EndCause::Exited, Some(0)));
    assert!(site.processes(id).len() <= 100);
    let ended = site.ctld.ended(id).await;
    assert!(matches!(ended.cause, EndCause::TimeLimit), "{ended:?}");
    site.clean().await;
}

#[tokio::test]
async fn a_full_output_disk_is_the_jobs_own_affair() {
    let mut site = Site::new().await;
    let mut job = site.job("echo hello || exit 3");
    job.output = Some("/dev/full".to_owned());
    let ended = site.ended(job).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::Exited, Some(3)), "{ended:?}");
    assert_eq!(site.script("echo hello").await.1.exit_code, Some(0));
}

#[tokio::test]
async fn a_full_state_directory_loses_no_exit_status() {
    let mut site = Site::prepare();
    site.small_disk_kib = Some(512);
    site.start().await;
    let job = site.job("echo ready > ready; until [ -e go ]; do sleep 0.02; done; exit 9");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    let filler = site.state_inside("filler");
    let full = std::fs::write(&filler, vec![1; 1 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    // Nothing new is launched, and the reason is told.
    let refused = site.script("true").await.1;
    assert_eq!(refused.cause, EndCause::LaunchFailed);
    // Whichever file was the first that found no room.
    let said = refused.message.unwrap();
    assert!(said.contains("no space left on device") || said.contains("is its disk full?"), "{said}");
    std::fs::write(site.path("alice/go"), "").unwrap();
    site.until("the job's processes are gone", || site.processes(id).is_empty().then_some(())).await;
    std::fs::remove_file(filler).unwrap();
    let ended = site.ctld.ended(id).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::Exited, Some(9)), "{ended:?}");
    assert_eq!(site.script("exit 4").await.1.exit_code, Some(4));
}

#[tokio::test]
async fn cpu_quota_and_limits_are_set_before_the_first_instruction() {
    let mut site = Site::new().await;
    let mut job = site.job(
        "cat /proc/self/cgroup > groups; sh -c 'cat /proc/self/cgroup' | cmp - groups && exit 0; exit 1",
    );
    job.cpus = 2;
    job.mem_mib = 100;
    let id = job.allocation_id;
    let ended = site.ended(job).await;
    assert_eq!(ended.exit_code, Some(0), "{}", site.output(id));
    let groups = site.file(&site.path("alice/groups")).await;
    let layout = site.layout();
    let ours = groups.lines().filter(|line| line.ends_with(&format!("/n1/jobs/{id}"))).count();
    assert_eq!(ours, layout.trees.len(), "{groups}");
}
