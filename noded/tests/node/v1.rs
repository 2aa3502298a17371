//! The same on a machine that has v1 hierarchies only, made by hiding the unified one from noded.
//!
//! On a machine that has no v1 there is nothing to show, and the tests say so.

use crate::site::{Site, unified_mount};
use proto::session::EndCause;

async fn v1_site() -> Option<Site> {
    if unified_mount().is_none() {
        println!("this machine has no v1 hierarchies beside a unified one: nothing to test here");
        return None;
    }
    let mut site = Site::prepare();
    site.hide_unified = true;
    site.start().await;
    assert_eq!(site.ctld.book(|b| b.hellos[0].cgroup_mode.clone()), "v1");
    Some(site)
}

#[tokio::test]
async fn on_v1_ends_are_told_and_daemons_are_gone() {
    let Some(mut site) = v1_site().await else { return };
    let script = "(setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 0.01 & wait; done' &); for i in 1 2 3; do sleep 3000 & done; exit 7";
    let (_, ended) = site.script(script).await;
    assert_eq!((ended.cause, ended.exit_code), (EndCause::Exited, Some(7)), "{ended:?}");
    assert!(ended.usage.cpu_us > 0);
    site.clean().await;
}

#[tokio::test]
async fn on_v1_memory_and_cancel_work() {
    let Some(mut site) = v1_site().await else { return };
    let mut job = site.job("bash -c 'x=$(head -c 300000000 /dev/zero | tr \"\\0\" x)'; exit 0");
    job.mem_mib = 48;
    assert_eq!(site.ended(job).await.cause, EndCause::OutOfMemory);
    let job = site.job("trap '' TERM; echo ready > ready; while :; do sleep 0.05; done");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.file(&site.path("alice/ready")).await;
    site.ctld.stop(id, 1);
    let ended = site.ctld.ended(id).await;
    assert_eq!((ended.cause, ended.signal), (EndCause::Stopped, Some(9)), "{ended:?}");
    site.clean().await;
}

#[tokio::test]
async fn on_v1_a_killed_shepherd_is_lost_and_nothing_is_left() {
    let Some(mut site) = v1_site().await else { return };
    let job = site.job("(setsid sh -c 'trap \"\" TERM; while :; do sleep 0.01; done' &); sleep 3000");
    let id = job.allocation_id;
    site.ctld.run(vec![job]);
    site.ctld.started(id).await;
    // SAFETY: the record says that it is this attempt's shepherd, and it runs.
    unsafe { libc::kill(site.shepherd(id), libc::SIGKILL) };
    assert_eq!(site.ctld.ended(id).await.cause, EndCause::Lost);
    site.clean().await;
}
