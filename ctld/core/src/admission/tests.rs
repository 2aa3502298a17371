use super::*;
use proto::api::{ArraySpec, Begin};
use std::collections::BTreeMap;

fn pools() -> Vec<PoolRules> {
    let pool = |id, name: &str, max| PoolRules {
        id,
        name: name.to_owned(),
        is_default: id == 1,
        time_limit_max_s: max,
        time_limit_default_s: max.map(|_| 60),
        mem_per_cpu_default_mib: 1024,
    };
    vec![pool(1, "main", None), pool(2, "short", Some(1800))]
}

fn job() -> Submission {
    Submission {
        idempotency_key: "k".into(),
        name: "n".into(),
        pool: None,
        account: None,
        script: "#!/bin/sh\n".into(),
        args: vec![],
        env: BTreeMap::new(),
        chdir: "/".into(),
        output: None,
        error: None,
        input: None,
        open_mode: Default::default(),
        umask: 0o22,
        rlimits: BTreeMap::new(),
        cpus: 2,
        mem_mib: None,
        disk_mib: 0,
        exclusive: false,
        mem_all: false,
        gpus: 0,
        gpu_type: None,
        nodes: 1,
        ntasks: None,
        cpus_per_task: None,
        time_limit_s: None,
        time_unlimited: false,
        warn: None,
        array: None,
        hold: false,
        begin: None,
        reservation: None,
        comment: None,
        nice: 0,
        requeue: true,
        submit_host: String::new(),
        submit_dir: String::new(),
    }
}

fn refused(change: impl FnOnce(&mut Submission)) -> ApiError {
    let mut job = job();
    change(&mut job);
    admit(&job, &pools(), false).expect_err("this submission should be refused")
}

#[test]
fn absent_values_come_from_the_pool() {
    let admitted = admit(&job(), &pools(), false).unwrap();
    assert_eq!(admitted, Admitted { pool_id: 1, mem_mib: 2048, time_limit_s: None, priority: 1000 });
    let short = admit(&Submission { pool: Some("short".into()), ..job() }, &pools(), false).unwrap();
    assert_eq!((short.pool_id, short.time_limit_s), (2, Some(60)));
}

#[test]
fn a_limit_over_the_pools_is_refused_with_both_numbers() {
    let error = refused(|job| {
        job.pool = Some("short".into());
        job.time_limit_s = Some(1860);
    });
    assert!(error.message.contains("1800 s per job, 1860 s requested"), "{}", error.message);
}

#[test]
fn no_limit_overrides_a_pools_default_and_never_its_longest() {
    let mut pools = pools();
    pools[0].time_limit_default_s = Some(60);
    let unlimited = Submission { time_unlimited: true, ..job() };
    assert_eq!(admit(&job(), &pools, false).unwrap().time_limit_s, Some(60));
    assert_eq!(admit(&unlimited, &pools, false).unwrap().time_limit_s, None);
    let error = admit(&Submission { pool: Some("short".into()), ..unlimited }, &pools, true).unwrap_err();
    assert!(error.message.contains("1800 s per job, no time limit requested"), "{}", error.message);
}

#[test]
fn an_unknown_pool_is_named_with_those_there_are() {
    let error = refused(|job| job.pool = Some("gpu".into()));
    assert!(error.message.contains("\"gpu\"") && error.hint.unwrap().contains("main, short"));
}

#[test]
fn going_before_others_is_for_operators() {
    assert_eq!(refused(|job| job.nice = -1).code, ErrorCode::PermissionDenied);
    assert_eq!(admit(&Submission { nice: -5, ..job() }, &pools(), true).unwrap().priority, 1005);
}

fn throttled(throttle: u32) -> ArraySpec {
    ArraySpec { indices: "0-9".parse().unwrap(), throttle: Some(throttle) }
}

fn year(year: i32) -> chrono::DateTime<chrono::Utc> {
    chrono::NaiveDate::from_ymd_opt(year, 6, 1).unwrap().and_time(chrono::NaiveTime::MIN).and_utc()
}

#[test]
fn impossible_values_are_refused_each_with_its_own_sentence() {
    let long = "x".repeat(SCRIPT_BYTES_MAX);
    let empty_array = ArraySpec { indices: proto::IndexSet::empty(), throttle: None };
    let cases: Vec<(&str, ApiError)> = vec![
        ("cpus is 0", refused(|j| j.cpus = 0)),
        ("nodes is 0", refused(|j| j.nodes = 0)),
        ("gpus is", refused(|j| j.gpus = u32::MAX)),
        ("memory is 0", refused(|j| j.mem_mib = Some(0))),
        ("time limit is 0", refused(|j| j.time_limit_s = Some(0))),
        ("time limit is", refused(|j| j.time_limit_s = Some(u64::MAX))),
        (
            "a time limit of 60 s and no time limit",
            refused(|j| (j.time_limit_s, j.time_unlimited) = (Some(60), true)),
        ),
        ("begin is", refused(|j| j.begin = Some(Begin::AfterS(u64::MAX)))),
        ("umask", refused(|j| j.umask = 0o1777)),
        ("interpreter line", refused(|j| j.script = "echo hi\n".into())),
        ("script is", refused(|j| j.script = format!("#!{long}"))),
        ("not absolute", refused(|j| j.chdir = "work".into())),
        ("zero byte", refused(|j| j.args = vec!["a\0b".into()])),
        ("environment variable", refused(|j| drop(j.env.insert("A=B".into(), String::new())))),
        ("job name", refused(|j| j.name = String::new())),
        ("idempotency key", refused(|j| j.idempotency_key = String::new())),
        ("no GPU asked for", refused(|j| j.gpu_type = Some("a100".into()))),
        ("no index", refused(|j| j.array = Some(empty_array))),
        ("throttle is 0", refused(|j| j.array = Some(throttled(0)))),
        ("throttle is 4294967295, 1 to 99999999", refused(|j| j.array = Some(throttled(u32::MAX)))),
        ("begin is in the year -5000, 1970 to 9999", refused(|j| j.begin = Some(Begin::At(year(-5000))))),
        ("begin is in the year 10000", refused(|j| j.begin = Some(Begin::At(year(10_000))))),
    ];
    for (expected, error) in cases {
        assert!(error.message.contains(expected), "{expected:?} not in {:?}", error.message);
    }
}
