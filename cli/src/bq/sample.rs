//! A job for tests, to be changed with `..job(7)`.

use proto::State;
use proto::api::Job;

/// A pending job of one CPU.
pub fn job(id: i64) -> Job {
    Job {
        id,
        task: None,
        display_id: id.to_string(),
        name: "train".to_owned(),
        user: "alice".to_owned(),
        tenant: "default".to_owned(),
        account: None,
        pool: "main".to_owned(),
        state: State::Pending,
        reasons: Vec::new(),
        exit_code: None,
        signal: None,
        attempt: 0,
        nodes: Vec::new(),
        gpus: Vec::new(),
        cpus: 1,
        mem_mib: 1024,
        disk_mib: 0,
        gpu_count: 0,
        gpu_type: None,
        node_count: 1,
        priority: 1000,
        submitted_at: "2026-11-30T14:00:00Z".parse().expect("an instant"),
        begin_at: None,
        started_at: None,
        ended_at: None,
        run_s: None,
        time_limit_s: Some(3600),
        array: None,
        comment: None,
        detail: None,
    }
}
