//! Who a job is on the node, and which files it may touch.

use crate::site::{ALICE, BOB, LAB, Site};
use proto::session::EndCause;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[tokio::test]
async fn a_job_runs_as_its_user_with_groups_umask_and_limits() {
    let mut site = Site::new().await;
    let mut job = site.job(
        "id -u; id -g; id -G; umask; pwd; ulimit -Sn; echo $HOME $USER $SLURM_JOB_ID $BC_ALLOCATION_ID $FOO; cat; \
         grep -E '^(Sig(Blk|Ign)|CapEff)' /proc/self/status; cat /proc/self/oom_score_adj; ls /proc/self/fd | wc -l",
    );
    let id = job.allocation_id;
    let home = job.chdir.clone();
    std::fs::write(site.path("alice/in"), "from input\n").unwrap();
    job.umask = 0o27;
    job.input = Some("in".to_owned());
    job.rlimits = [("nofile".to_owned(), Some(333)), ("core".to_owned(), None)].into();
    job.env = [("FOO".to_owned(), "a=b".to_owned())].into();
    let ended = site.ended(job).await;
    assert_eq!(ended.exit_code, Some(0), "{ended:?} {}", site.output(id));
    let expected = format!(
        "{ALICE}\n{ALICE}\n{ALICE} {LAB}\n0027\n{home}\n333\n{home} alice 101 1 a=b\nfrom input\n\
         SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nCapEff:\t0000000000000000\n0\n4\n"
    );
    assert_eq!(site.output(id), expected);
    let meta = std::fs::metadata(site.path("alice/101.out")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (ALICE, ALICE, 0o640));
    let paths = site.ctld.started(id).await;
    assert_eq!(paths, [format!("{home}/101.out"), format!("{home}/101.out"), format!("{home}/in")]);
}

#[tokio::test]
async fn a_primary_group_of_the_submission_is_taken_if_the_user_is_in_it() {
    let mut site = Site::new().await;
    let mut job = site.job("id -g");
    job.gid = LAB;
    let id = job.allocation_id;
    assert_eq!(site.ended(job).await.exit_code, Some(0));
    assert_eq!(site.output(id), format!("{LAB}\n"));
    let mut job = site.job("id -g");
    job.gid = BOB;
    let ended = site.ended(job).await;
    assert_eq!(ended.cause, EndCause::LaunchFailed);
    assert!(
        ended.message.as_deref().unwrap().contains(&format!("alice is not in group {BOB} here")),
        "{ended:?}"
    );
}

#[tokio::test]
async fn a_user_that_the_node_knows_otherwise_or_not_at_all_is_refused() {
    let mut site = Site::new().await;
    for (user, uid, said) in [
        ("alice", 4242, format!("user alice has uid {ALICE} here, 4242 at submission")),
        ("nonesuch", 4242, "user \"nonesuch\" is unknown on this node".to_owned()),
        ("root", 0, "jobs of root are refused on this node".to_owned()),
    ] {
        let mut job = site.job("true");
        (job.user, job.uid, job.gid) = (user.to_owned(), uid, uid);
        let ended = site.ended(job).await;
        assert_eq!((ended.cause, ended.started_age_us), (EndCause::LaunchFailed, None));
        assert!(ended.message.as_deref().unwrap().starts_with(&said), "{ended:?}");
    }
    site.clean().await;
}

#[tokio::test]
async fn root_runs_where_the_configuration_allows_it() {
    let mut site = Site::prepare();
    site.config.push("root_jobs = \"allow\"".to_owned());
    site.start().await;
    let mut job = site.job("id -u");
    (job.user, job.uid, job.gid) = ("root".to_owned(), 0, 0);
    let id = job.allocation_id;
    assert_eq!(site.ended(job).await.exit_code, Some(0));
    assert_eq!(site.output(id), "0\n");
}

#[tokio::test]
async fn a_script_is_its_users_alone_and_has_a_name_and_arguments() {
    let mut site = Site::new().await;
    let mut job = site.job("echo \"$0\" \"${BASH_SOURCE[0]}\" \"$#\" \"$1\" \"$2\"; stat -c '%a %U' \"$0\"; cat \"$0\" | head -1");
    job.args = vec!["a b".to_owned(), "c'd".to_owned()];
    job.task = Some(3);
    let id = job.allocation_id;
    assert_eq!(site.ended(job).await.exit_code, Some(0));
    let name = format!("{}/job101_3-{id}", site.scripts().display());
    assert!(site.output(id).starts_with(&format!("{name} {name} 2 a b c'd\n400 ")), "{}", site.output(id));
    assert!(site.output(id).ends_with("#!/bin/bash\n"));
    let meta = std::fs::metadata(site.scripts()).unwrap();
    assert_eq!(meta.mode() & 0o777, 0o711);
    site.clean().await;
}

#[tokio::test]
async fn a_script_runs_though_its_user_cannot_walk_to_it() {
    let mut site = Site::new().await;
    std::fs::set_permissions(site.scripts(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let (id, ended) = site.script("read line < \"$0\"; echo \"$line $1\"; exit 5").await;
    assert_eq!(ended.exit_code, Some(5), "{ended:?} {}", site.output(id));
}

#[tokio::test]
async fn a_home_that_does_not_exist_is_the_root_with_a_warning() {
    let mut site = Site::new().await;
    let mut job = site.job("echo home $HOME $SHELL");
    (job.user, job.uid, job.gid, job.chdir) =
        ("bob".to_owned(), BOB, BOB, site.path("bob").display().to_string());
    let ended = site.ended(job).await;
    assert_eq!(ended.exit_code, Some(0));
    let output = std::fs::read_to_string(site.path("bob/101.out")).unwrap();
    assert!(output.contains("warning: home directory") && output.ends_with("home / /bin/bash\n"), "{output}");
}
