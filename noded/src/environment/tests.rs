//! What a script finds in its environment.

use super::*;
use proto::session::ArrayFacts;

fn assignment() -> Assignment {
    serde_json::from_value(serde_json::json!({
        "allocation_id": 417, "job_id": 12, "task": null, "array": null, "attempt": 1, "runs_script": true,
        "name": "train", "user": "alice", "uid": 1000, "gid": 1000, "tenant": "lab", "account": "phys", "pool": "main",
        "script": "#!/bin/sh\n", "args": [], "env": {}, "chdir": "/w", "output": null, "error": null, "input": null,
        "open_mode": "truncate", "umask": 18, "rlimits": {}, "cpus": 4, "mem_mib": 2048, "gpus": [], "nodes": ["n1"],
        "ntasks": null, "cpus_per_task": null, "time_limit_s": 60, "grace_s": 30, "warn": null, "submit_host": "login",
        "submit_dir": "/w/sub", "start_epoch_s": 1000
    }))
    .unwrap()
}

fn who() -> Identity {
    Identity { groups: vec![1000], home: "/home/alice".to_owned(), shell: "/bin/zsh".to_owned() }
}

fn env_of(a: &Assignment, gpus: &[GpuFacts]) -> BTreeMap<String, String> {
    of(a, &who(), "n1", gpus).0
}

#[test]
fn a_bare_job_has_the_minimum_and_the_facts_about_itself() {
    let (env, home) = of(&assignment(), &who(), "n1", &[]);
    for (name, value) in [
        ("PATH", PATH),
        ("HOME", "/home/alice"),
        ("USER", "alice"),
        ("LOGNAME", "alice"),
        ("SHELL", "/bin/zsh"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_JOBID", "12"),
        ("BC_JOB_ID", "12"),
        ("SLURM_JOB_NAME", "train"),
        ("SLURM_JOB_USER", "alice"),
        ("SLURM_JOB_UID", "1000"),
        ("SLURM_JOB_ACCOUNT", "phys"),
        ("SLURM_JOB_PARTITION", "main"),
        ("SLURM_JOB_NODELIST", "n1"),
        ("SLURM_NNODES", "1"),
        ("SLURM_JOB_CPUS_PER_NODE", "4"),
        ("SLURM_TASKS_PER_NODE", "1"),
        ("SLURM_CPUS_ON_NODE", "4"),
        ("SLURM_MEM_PER_NODE", "2048"),
        ("SLURM_SUBMIT_DIR", "/w/sub"),
        ("SLURM_SUBMIT_HOST", "login"),
        ("SLURM_JOB_START_TIME", "1000"),
        ("SLURM_JOB_END_TIME", "1060"),
        ("SLURM_RESTART_COUNT", "0"),
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_PROCID", "0"),
        ("BC_ALLOCATION_ID", "417"),
        ("BC_ATTEMPT", "1"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(home.as_deref(), Some("/home/alice"));
    for absent in [
        "SLURM_NTASKS",
        "SLURM_CPUS_PER_TASK",
        "SLURM_ARRAY_TASK_ID",
        "CUDA_VISIBLE_DEVICES",
        "SLURM_JOB_GPUS",
    ] {
        assert!(!env.contains_key(absent), "{absent}");
    }
}

#[test]
fn what_the_submitter_sets_in_our_families_does_not_survive_and_the_rest_does() {
    let mut a = assignment();
    for (name, value) in [
        ("SLURM_JOB_ID", "99"),
        ("SLURM_NTASKS", "9"),
        ("SLURM_ARRAY_TASK_ID", "3"),
        ("BC_ATTEMPT", "7"),
        ("BC_GPUS", "x"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("SLURMD_NODENAME", "x"),
        ("BC_SERVER", "unix:///s"),
        ("FOO", "a=b=c"),
        ("HOME", "/h"),
        ("PATH", "/p"),
    ] {
        a.env.insert(name.to_owned(), value.to_owned());
    }
    let (env, home) = of(&a, &who(), "n1", &[]);
    assert_eq!(
        (env["SLURM_JOB_ID"].as_str(), env["BC_ATTEMPT"].as_str(), env["SLURMD_NODENAME"].as_str()),
        ("12", "1", "n1")
    );
    for absent in ["SLURM_NTASKS", "SLURM_ARRAY_TASK_ID", "BC_GPUS", "CUDA_VISIBLE_DEVICES"] {
        assert!(!env.contains_key(absent), "{absent}");
    }
    assert_eq!((env["FOO"].as_str(), env["HOME"].as_str(), env["PATH"].as_str()), ("a=b=c", "/h", "/p"));
    assert_eq!(env["BC_SERVER"], "unix:///s");
    assert_eq!(home, None, "the submitter's own home is not ours to replace");
}

#[test]
fn an_array_task_and_what_was_asked_for_are_shown() {
    let mut a = assignment();
    a.task = Some(3);
    a.array = Some(ArrayFacts { count: 4, min: 1, max: 7, step: 2 });
    a.attempt = 3;
    a.ntasks = Some(5);
    a.cpus_per_task = Some(2);
    a.nodes = ["n1", "n2"].map(str::to_owned).to_vec();
    let env = env_of(&a, &[]);
    for (name, value) in [
        ("SLURM_ARRAY_JOB_ID", "12"),
        ("SLURM_ARRAY_TASK_ID", "3"),
        ("SLURM_ARRAY_TASK_COUNT", "4"),
        ("SLURM_ARRAY_TASK_MIN", "1"),
        ("SLURM_ARRAY_TASK_MAX", "7"),
        ("SLURM_ARRAY_TASK_STEP", "2"),
        ("SLURM_RESTART_COUNT", "2"),
        ("SLURM_NTASKS", "5"),
        ("SLURM_NPROCS", "5"),
        ("SLURM_CPUS_PER_TASK", "2"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
        ("SLURM_JOB_CPUS_PER_NODE", "4(x2)"),
        ("SLURM_TASKS_PER_NODE", "3,2"),
        ("SLURM_JOB_NUM_NODES", "2"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
}

#[test]
fn gpus_are_named_by_uuid_and_a_job_without_sees_none() {
    let node = crate::gpus::declared("n1", &["a100:3".to_owned()]).unwrap();
    let mut a = assignment();
    assert_eq!(env_of(&a, &node)["CUDA_VISIBLE_DEVICES"], "");
    a.gpus = vec![node[2].uuid.clone(), node[0].uuid.clone()];
    let env = env_of(&a, &node);
    let uuids = format!("{},{}", node[2].uuid, node[0].uuid);
    assert_eq!((&env["CUDA_VISIBLE_DEVICES"], &env["BC_GPUS"]), (&uuids, &uuids));
    assert_eq!((env["SLURM_JOB_GPUS"].as_str(), env["SLURM_GPUS_ON_NODE"].as_str()), ("2,0", "2"));
}

#[test]
fn files_are_named_by_their_patterns_under_the_working_directory() {
    let mut a = assignment();
    assert_eq!(paths(&a, "n1.site"), ["/w/slurm-12.out", "/w/slurm-12.out", "/dev/null"]);
    a.task = Some(4);
    a.output = Some("/o/%x-%A-%a-%N.out".to_owned());
    a.error = Some("e-%j".to_owned());
    a.input = Some("in".to_owned());
    assert_eq!(paths(&a, "n1.site"), ["/o/train-12-4-n1.out", "/w/e-12", "/w/in"]);
    a.error = a.output.clone();
    assert_eq!(files(&a, "n1").1, None, "one file is opened once");
}
