//! The life of a job, from `bsub` to its record: what researchers do every day.

use proto::State;
use std::os::unix::fs::MetadataExt;
use tests::{Cluster, ClusterOptions, NodeOptions, User, until};

/// Submitted, run as the user, output the user's own, exit status to the waiter, then in the record with what it used.
#[test]
fn a_script_runs_as_its_user_and_its_exit_status_reaches_the_waiter() {
    let cluster = Cluster::one_node();
    let user = User::one();
    let script = "#!/bin/bash\necho \"$(id -un) $(umask) $PWD $1 $BC_JOB_ID $SLURM_JOB_ID\"; \
                  i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 7\n";
    cluster.write(&user, "job.sh", script);
    let ran =
        cluster.shell(&user, "umask 0027; bsub --parsable --wait -J life -c 2 --mem=200M job.sh argument");
    ran.exits(7);
    let id: i64 = ran.stdout.trim().parse().expect("an id");

    let name = format!("slurm-{id}.out");
    let home = cluster.home(&user);
    let said = cluster.read(&user, &name);
    assert_eq!(said.trim(), format!("bctest1 0027 {} argument {id} {id}", home.display()));
    let found = home.join(&name).metadata().unwrap();
    assert_eq!(
        (found.uid(), found.gid(), found.mode() & 0o777),
        (user.uid.as_raw(), user.gid.as_raw(), 0o640)
    );

    let job = cluster.job(id);
    assert_eq!((job.state, job.exit_code, job.signal), (State::Failed, Some(7), None));
    assert_eq!((job.name.as_str(), job.user.as_str(), job.cpus, job.mem_mib), ("life", "bctest1", 2, 200));
    assert_eq!((job.attempt, job.nodes.clone()), (1, vec!["n1".to_owned()]));
    assert!(job.submitted_at <= job.started_at.unwrap() && job.started_at <= job.ended_at, "{job:?}");
    let usage = job.detail.unwrap().usage.expect("an ended job has its usage");
    assert!(usage.cpu_us > 1000 && usage.mem_peak_bytes.unwrap() > 100_000, "{usage:?}");

    // Ended, it is no longer in the queue, and still known.
    assert_eq!(cluster.run(&user, "bq", &["-h"]).ok(), "");
    let shown = cluster.run(&user, "bq", &["-h", "-t", "all", "-o", "id,state,user"]);
    assert!(shown.ok().contains("bctest1"), "{}", shown.stdout);
    let node = cluster.node("n1");
    assert_eq!((node.cpus_booked, node.mem_booked_mib, node.jobs.len()), (0, 0, 0));
    cluster.nothing_left_of_jobs();
}

/// Acceptance 2: a script as researchers have it, with Slurm's lines, runs unchanged.
#[test]
fn a_slurm_script_runs_unchanged() {
    let cluster = Cluster::one_node();
    let user = User::one();
    let script = r#"#!/bin/bash
#SBATCH --job-name=train
#SBATCH --partition=main
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:1
#SBATCH --mem=2G
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.log
#SBATCH --error=%x-%j.err
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=someone@example.org

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
echo "job $SLURM_JOB_ID on $SLURMD_NODENAME with $SLURM_CPUS_PER_TASK cpus in $SLURM_JOB_PARTITION"
echo "gpu ${CUDA_VISIBLE_DEVICES}"
echo "to stderr" >&2
"#;
    cluster.write(&user, "train.sh", script);
    let ran = cluster.shell(&user, "bsub train.sh");
    let id: i64 = ran.ok().trim().strip_prefix("Submitted batch job ").expect(&ran.stdout).parse().unwrap();
    ran.says("mail");
    let job = cluster.ended(id);
    assert_eq!(job.state, State::Completed, "{job:?}");
    assert_eq!((job.name.as_str(), job.cpus, job.mem_mib, job.time_limit_s), ("train", 4, 2048, Some(600)));
    let out = cluster.read(&user, &format!("train-{id}.log"));
    assert!(out.starts_with(&format!("job {id} on n1 with 4 cpus in main\ngpu GPU-")), "{out}");
    assert_eq!(cluster.read(&user, &format!("train-{id}.err")), "to stderr\n");
    let found = cluster.home(&user).join(format!("train-{id}.log")).metadata().unwrap();
    assert_eq!(found.uid(), user.uid.as_raw());
}

/// A throttle holds at every moment, not only on average, and each task ends once with its own index.
#[test]
fn an_array_runs_every_task_once_and_never_more_than_its_throttle() {
    let cluster = Cluster::one_node();
    let user = User::one();
    // Each task looks at who else is there while it is there itself.
    let script = "touch here.$SLURM_ARRAY_TASK_ID; ls here.* | wc -l >> most; echo $SLURM_ARRAY_TASK_ID >> tasks; \
                  sleep 0.1; rm here.$SLURM_ARRAY_TASK_ID; exit $((SLURM_ARRAY_TASK_ID % 2))";
    let id = cluster.submit(&user, &["--array=1-15:2,40%3", "-o", "out-%A_%a", "--mem=50M"], script);
    let jobs = cluster.all_ended(id, tests::until::SOON);
    assert_eq!(jobs.len(), 9);
    for job in &jobs {
        let task = job.task.expect("an entry for each task");
        let exit_code = i32::try_from(task % 2).unwrap();
        assert_eq!((job.exit_code, job.attempt), (Some(exit_code), 1), "{job:?}");
        assert!(cluster.home(&user).join(format!("out-{id}_{task}")).exists());
    }
    let lines = |name: &str| -> Vec<u32> {
        let mut all: Vec<u32> =
            cluster.read(&user, name).lines().map(|l| l.trim().parse().unwrap()).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(lines("tasks"), [1, 3, 5, 7, 9, 11, 13, 15, 40]);
    assert!(*lines("most").last().unwrap() <= 3, "{:?}", lines("most"));
    cluster.nothing_left_of_jobs();
}

/// Two jobs never share a GPU, also when more ask than there are, and each is told its own.
#[test]
fn gpu_jobs_get_their_own_gpus_and_never_share() {
    let cluster = Cluster::one_node();
    let user = User::one();
    let go = cluster.home(&user).join("go");
    let script = "echo \"$CUDA_VISIBLE_DEVICES\" > gpus.$SLURM_JOB_ID; until [ -e go ]; do sleep 0.05; done";
    let two = [1, 2].map(|_| cluster.submit(&user, &["--gpus=a100-80gb:1"], script));
    let jobs = two.map(|id| cluster.reaches(id, State::Running));
    let third = cluster.submit(&user, &["--gres=gpu:2"], script);
    let waiting = until("a reason for the third", tests::until::SOON, || {
        let job = cluster.job(third);
        let reason = job.reasons.first()?.reason;
        (job.state == State::Pending && reason == proto::Reason::Unschedulable).then_some(job)
    });
    assert_eq!(waiting.gpus, Vec::<String>::new());
    let told = cluster.run(&user, "bq", &["--why", &third.to_string()]);
    assert!(told.ok().contains("gpu"), "{}", told.stdout);

    let [first, second] = &jobs;
    assert_eq!((first.gpus.len(), second.gpus.len()), (1, 1));
    assert_ne!(first.gpus, second.gpus);
    for job in &jobs {
        let path = cluster.home(&user).join(format!("gpus.{}", job.id));
        let said = until("the script's word", tests::until::SOON, || {
            std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))
        });
        assert_eq!(said.trim(), job.gpus[0], "told what was booked");
    }
    std::fs::write(&go, "").unwrap();
    let third = cluster.ended(third);
    assert_eq!((third.state, third.gpus.len()), (State::Completed, 2));
    let mut said: Vec<String> =
        cluster.read(&user, &format!("gpus.{}", third.id)).trim().split(',').map(str::to_owned).collect();
    said.sort();
    let mut booked = third.gpus.clone();
    booked.sort();
    assert_eq!(said, booked);
    // A job without GPUs sees none, though the node has some.
    let none = cluster.submit(
        &user,
        &[],
        "echo \"[${CUDA_VISIBLE_DEVICES-unset}]\" > gpus.none; nvidia=${NVIDIA_VISIBLE_DEVICES-}",
    );
    cluster.ended(none);
    let said = cluster.read(&user, "gpus.none");
    assert!(!said.contains("GPU-") && !said.contains("unset"), "{said}");
}

/// A held job waits for its release, one with a begin time for that time.
#[test]
fn held_jobs_wait_for_release_and_later_ones_for_their_time() {
    let cluster = Cluster::one_node();
    let user = User::one();
    let held = cluster.submit(&user, &["--hold"], "date +%s%N > held");
    let later = cluster.submit(&user, &["--begin=now+3"], "true");
    let sooner = cluster.submit(&user, &[], "true");
    assert_eq!(cluster.ended(sooner).state, State::Completed);
    let job = cluster.job(held);
    assert_eq!((job.state, job.reasons[0].reason), (State::Pending, proto::Reason::HeldByUser));
    let job = cluster.ended(later);
    let begin = job.begin_at.expect("a begin time is kept");
    assert!(job.started_at.unwrap() >= begin, "{job:?}");

    cluster.run(&user, "bctl", &["release", &held.to_string()]).ok();
    assert_eq!(cluster.ended(held).state, State::Completed);
    // Held while it waits for its time, released, and an operator's hold is not the user's to lift.
    let id = cluster.submit(&user, &["--begin=now+1hour"], "true").to_string();
    cluster.run(&User::root(), "bctl", &["hold", &id]).ok();
    cluster.run(&user, "bctl", &["release", &id]).refused(5);
    cluster.run(&user, "bcancel", &[&id]).ok();
}

/// Every way to end a job that its user has.
#[test]
fn cancelled_jobs_end_whatever_they_were_doing() {
    let cluster = Cluster::one_node();
    let (user, other) = (User::one(), User::two());
    let pending = cluster.submit(&user, &["--hold"], "touch never");
    let running = cluster.submit(&user, &[], "echo started > started; sleep 600");
    let trapped = cluster.submit(
        &user,
        &[],
        "trap 'echo TERM >> trapped' TERM; echo ready > ready; while :; do sleep 0.05; done",
    );
    let array = cluster.submit(&user, &["--array=1-3"], "sleep 600");
    for id in [running, trapped] {
        cluster.reaches(id, State::Running);
    }
    for name in ["started", "ready"] {
        until(name, tests::until::SOON, || cluster.home(&user).join(name).exists().then_some(()));
    }
    // Somebody else's is not theirs to cancel.
    cluster.run(&other, "bcancel", &[&running.to_string()]).refused(5);
    assert_eq!(cluster.job(running).state, State::Running);

    cluster.run(&user, "bcancel", &[&pending.to_string(), &running.to_string(), &format!("{array}_2")]).ok();
    cluster.run(&user, "bcancel", &[&trapped.to_string()]).ok();
    for id in [pending, running, trapped] {
        assert_eq!(cluster.ended(id).state, State::Cancelled, "job {id}");
    }
    assert!(!cluster.home(&user).join("never").exists());
    // It was told first, then killed.
    assert_eq!(cluster.read(&user, "trapped"), "TERM\n");
    assert_eq!(cluster.job(trapped).signal, Some(9));
    assert_eq!(cluster.job(running).signal, Some(15));
    let task = |task: u32| cluster.jobs(array).into_iter().find(|job| job.task == Some(task)).unwrap();
    until("the end of the task", tests::until::SOON, || (task(2).state == State::Cancelled).then_some(()));
    assert_eq!((task(1).state, task(3).state), (State::Running, State::Running));

    // Twice is no error, an id that never was is one.
    cluster.run(&user, "bcancel", &[&pending.to_string()]).ok();
    cluster.run(&user, "bcancel", &["4711000"]).refused(4).says("4711000");
    cluster.run(&user, "bcancel", &[]).refused(2);
    // A signal ends nothing by itself.
    let signalled = cluster.submit(
        &user,
        &[],
        "trap 'echo USR1 > usr1; exit 3' USR1; echo > armed; while :; do sleep 0.05; done",
    );
    until("the trap", tests::until::SOON, || cluster.home(&user).join("armed").exists().then_some(()));
    cluster.run(&user, "bcancel", &["--signal=USR1", "--batch", &signalled.to_string()]).ok();
    assert_eq!(cluster.ended(signalled).exit_code, Some(3));
    cluster.run(&user, "bcancel", &["--me"]).ok();
    assert!(cluster.all_ended(array, tests::until::SOON).iter().all(|job| job.state == State::Cancelled));
    cluster.nothing_left_of_jobs();
}

/// The limit is told first by its warning, then by SIGTERM, and ends everything.
#[test]
fn a_job_ends_at_its_time_limit_after_its_warning() {
    let cluster = Cluster::one_node();
    let user = User::one();
    let script = "trap 'echo USR2 >> told' USR2; trap 'echo TERM >> told' TERM; while :; do sleep 0.05; done";
    let id = cluster.submit(&user, &["--time=0:03", "--signal=B:USR2@2"], script);
    let job = cluster.ended(id);
    assert_eq!(job.state, State::Timeout, "{job:?}");
    assert_eq!(job.reasons[0].reason, proto::Reason::TimeLimit);
    assert_eq!(cluster.read(&user, "told"), "USR2\nTERM\n");
    assert!((3..20).contains(&job.run_s.unwrap()), "{job:?}");
    assert!(cluster.read(&user, &format!("slurm-{id}.out")).contains("TIME LIMIT"));
    cluster.nothing_left_of_jobs();
}

/// A requeued job runs again from the beginning as a new attempt; its output says so.
#[test]
fn a_requeued_job_runs_again_as_another_attempt() {
    let cluster = Cluster::one_node();
    let user = User::one();
    let script = "echo \"$SLURM_RESTART_COUNT\" >> runs; [ \"$SLURM_RESTART_COUNT\" = 1 ] || sleep 600";
    let id = cluster.submit(&user, &["--open-mode=append"], script);
    until("the first run", tests::until::SOON, || cluster.home(&user).join("runs").exists().then_some(()));
    cluster.run(&user, "bctl", &["requeue", &id.to_string()]).ok();
    let job = cluster.ended(id);
    assert_eq!((job.state, job.attempt), (State::Completed, 2), "{job:?}");
    assert_eq!(cluster.read(&user, "runs"), "0\n1\n");
    cluster.nothing_left_of_jobs();
}

/// Two pools: a job runs in its own, and one that names none in the default one.
#[test]
fn jobs_run_in_their_pool() {
    let mut far = NodeOptions::named("far1");
    far.pool = "far".into();
    far.gpus.clear();
    let cluster = Cluster::start(ClusterOptions {
        nodes: vec![NodeOptions::named("n1"), far],
        ctld: "[pools.main]\ndefault = true\n[pools.far]\ntime_limit_max = \"30:00\"\n".into(),
        ..ClusterOptions::default()
    });
    let user = User::one();
    let here = cluster.submit(&user, &[], "true");
    let there = cluster.submit(&user, &["-p", "far"], "true");
    assert_eq!(cluster.ended(here).nodes, ["n1"]);
    assert_eq!(cluster.ended(there).nodes, ["far1"]);
    cluster.bsub(&user, &["-p", "nonesuch"], "#!/bin/sh\ntrue\n").refused(2).says("nonesuch");
    cluster
        .bsub(&user, &["-p", "far", "--time=0"], "#!/bin/sh\ntrue\n")
        .refused(2)
        .says("at most 1800 s per job");
    assert_eq!(cluster.job(cluster.submit(&user, &["--time=0"], "true")).time_limit_s, None);
    // A-01: the pool's limit is read by the same parser, and holds.
    cluster.bsub(&user, &["-p", "far", "--time=31"], "#!/bin/sh\ntrue\n").refused(2).says("far");
    assert_eq!(
        cluster.job(cluster.submit(&user, &["-p", "far", "--time=30"], "true")).time_limit_s,
        Some(1800)
    );
}
