//! Submissions made by hand, for tests that send many or break off in the middle.

use proto::api::{OpenMode, Submission};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A key that no other submission of this process has, nor of another one.
pub fn fresh_key() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A job of one CPU and little memory that runs this script in this directory, its output thrown away.
pub fn small_job(script: &str, chdir: &Path) -> Submission {
    Submission {
        idempotency_key: fresh_key(),
        name: "small".into(),
        pool: None,
        account: None,
        script: format!("#!/bin/sh\n{script}\n"),
        args: Vec::new(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        chdir: chdir.to_str().expect("a test's directory is plain text").to_owned(),
        output: Some("/dev/null".into()),
        error: None,
        input: None,
        open_mode: OpenMode::Truncate,
        umask: 0o022,
        rlimits: BTreeMap::new(),
        cpus: 1,
        mem_mib: Some(32),
        disk_mib: 0,
        exclusive: false,
        mem_all: false,
        gpus: 0,
        gpu_type: None,
        nodes: 1,
        ntasks: None,
        cpus_per_task: None,
        time_limit_s: Some(600),
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
