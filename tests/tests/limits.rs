//! Acceptance 4: jobs that misbehave end as their limit says, and their neighbour does not notice.

use nix::mount::{MsFlags, mount};
use proto::State;
use tests::{Cluster, SOON, User, processes, until};

/// A job that must not be hurt: it counts ten times a second, and says how long its longest gap was.
struct Neighbour {
    id: i64,
    user: User,
}

/// Half a minute of silence would be a machine at a standstill; what is allowed leaves room for a loaded one.
const GAP_MAX_MS: i64 = 8000;

impl Neighbour {
    fn start(cluster: &Cluster) -> Neighbour {
        let user = User::two();
        let script = "last=$(date +%s%3N); most=0\n\
                      until [ -e stop ]; do sleep 0.1; now=$(date +%s%3N); gap=$((now - last)); last=$now\n\
                      [ $gap -gt $most ] && most=$gap; echo $most > gap; done; exit 0";
        let id = cluster.submit(&user, &["-J", "neighbour", "--mem=200M"], script);
        cluster.reaches(id, State::Running);
        Neighbour { id, user }
    }

    fn unharmed(&self, cluster: &Cluster) {
        cluster.write(&self.user, "stop", "");
        let job = cluster.ended(self.id);
        assert_eq!((job.state, job.exit_code, job.attempt), (State::Completed, Some(0), 1), "{job:?}");
        let gap: i64 = cluster.read(&self.user, "gap").trim().parse().unwrap();
        assert!(gap < GAP_MAX_MS, "the neighbour stood still for {gap} ms");
        cluster.nothing_left_of_jobs();
        let node = cluster.node("n1");
        assert!(node.eligible && node.cpus_booked == 0, "{node:?}");
    }
}

#[test]
fn a_fork_bomb_ends_at_its_limit_and_its_neighbour_does_not_notice() {
    let cluster = Cluster::one_node();
    let neighbour = Neighbour::start(&cluster);
    let user = User::one();
    let bomb = "echo > armed; bomb() { bomb | bomb & }; bomb 2>/dev/null; while :; do :; done";
    let id = cluster.submit(&user, &["--time=0:04", "--mem=2G", "-o", "/dev/null"], bomb);
    until("the bomb", SOON, || cluster.home(&user).join("armed").exists().then_some(()));
    let job = cluster.ended(id);
    assert_eq!(job.state, State::Timeout, "{job:?}");
    neighbour.unharmed(&cluster);
}

/// Also when the script itself exits 0: the kernel killed a process of it, and that is what the user must know.
#[test]
fn a_memory_hog_is_told_apart_from_a_failure_and_its_neighbour_does_not_notice() {
    let cluster = Cluster::one_node();
    let neighbour = Neighbour::start(&cluster);
    let user = User::one();
    let hog = "head -c 1G /dev/zero | tail -c 1G > /dev/null; exit 0";
    let id = cluster.submit(&user, &["--mem=64M"], hog);
    let job = cluster.ended(id);
    assert_eq!((job.state, job.exit_code), (State::OutOfMemory, Some(0)), "{job:?}");
    let usage = job.detail.unwrap().usage.unwrap();
    assert!(usage.oom_kills >= 1 && usage.mem_peak_bytes.unwrap() <= 65 << 20, "{usage:?}");
    // A script that kills itself with SIGKILL was not out of memory.
    let own = cluster.submit(&user, &["--mem=64M"], "kill -9 $$");
    let job = cluster.ended(own);
    assert_eq!((job.state, job.signal), (State::Failed, Some(9)), "{job:?}");
    neighbour.unharmed(&cluster);
}

/// `bsub --wait` tells the same story to a script.
#[test]
fn the_waiter_of_a_job_that_was_killed_for_memory_does_not_see_success() {
    let cluster = Cluster::one_node();
    let user = User::one();
    let ran = cluster.bsub(
        &user,
        &["--wait", "--mem=64M"],
        "#!/bin/bash\nhead -c 1G /dev/zero | tail > /dev/null; exit 0\n",
    );
    assert_ne!(ran.status, 0, "{ran:?}");
    ran.says("out_of_memory");
}

#[test]
fn a_daemon_that_forked_twice_ends_with_its_job() {
    let cluster = Cluster::one_node();
    let neighbour = Neighbour::start(&cluster);
    let user = User::one();
    let script = "setsid bash -c '(trap \"\" TERM HUP; echo $BASHPID > daemon; exec sleep 1000) & disown' </dev/null >/dev/null 2>&1 &\n\
                  until [ -s daemon ]; do sleep 0.02; done; exit 0";
    let id = cluster.submit(&user, &[], script);
    let job = cluster.ended(id);
    assert_eq!((job.state, job.exit_code), (State::Completed, Some(0)), "{job:?}");
    let daemon: i32 = cluster.read(&user, "daemon").trim().parse().unwrap();
    assert!(!processes::alive(daemon), "the daemon outlived its job");
    neighbour.unharmed(&cluster);
}

/// A full disk is the job's own affair: it gets the error, its exit status is true, and nobody else is hurt.
#[test]
fn a_job_that_fills_its_output_disk_fails_alone() {
    let cluster = Cluster::one_node();
    let neighbour = Neighbour::start(&cluster);
    let user = User::one();
    let disk = cluster.home(&user).join("disk");
    std::fs::create_dir(&disk).unwrap();
    let options = format!("size=1m,mode=0755,uid={}", user.uid);
    mount(Some("tmpfs"), &disk, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
    let id = cluster.submit(&user, &["-o", "disk/out"], "head -c 8M /dev/zero || exit 28");
    let job = cluster.ended(id);
    assert_eq!((job.state, job.exit_code), (State::Failed, Some(28)), "{job:?}");
    assert_eq!(disk.join("out").metadata().unwrap().len(), 1 << 20);
    // The banner of a cancelled job does not fit either, which keeps nothing from ending.
    let stuck = cluster.submit(&user, &["-o", "disk/out", "--open-mode=append"], "sleep 600");
    cluster.reaches(stuck, State::Running);
    cluster.run(&user, "bcancel", &[&stuck.to_string()]).ok();
    assert_eq!(cluster.ended(stuck).state, State::Cancelled);
    neighbour.unharmed(&cluster);
}

/// What cannot be launched fails with the step named, and drains nothing.
#[test]
fn a_job_that_cannot_be_launched_says_at_which_step() {
    let cluster = Cluster::one_node();
    let user = User::one();
    for (args, said) in
        [(["-D", "/nonexistent/dir"], "/nonexistent/dir"), (["-o", "missing/out"], "missing/out")]
    {
        let job = cluster.ended(cluster.submit(&user, &args, "true"));
        assert_eq!((job.state, job.exit_code), (State::Failed, None), "{job:?}");
        assert_eq!(job.reasons[0].reason, proto::Reason::LaunchFailed);
        assert!(job.reasons[0].message.contains(said), "{job:?}");
    }
    // the interpreter may exist on the node; if not, it is the job's fault and no node's.
    let ran = cluster.bsub(&user, &["--parsable"], "#!/usr/bin/nonesuch\n");
    let job = cluster.ended(ran.ok().trim().parse().unwrap());
    assert_eq!((job.state, job.exit_code), (State::Failed, Some(127)), "{job:?}");
    assert!(job.reasons[0].message.contains("interpreter \"/usr/bin/nonesuch\" not found"), "{job:?}");
    assert!(cluster.node("n1").eligible);
    assert_eq!(cluster.ended(cluster.submit(&user, &[], "true")).state, State::Completed);
}
