//! `bctl up` and `bctl down` with the real programs: what they start, what they leave, and what they leave alone.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tests::programs::program;
use tests::{SOON, until};

/// A directory for one cluster; whatever runs in it is ended with the test, also when it panics.
struct Local {
    top: PathBuf,
    dir: PathBuf,
}

impl Local {
    fn new(name: &str) -> Local {
        let top = PathBuf::from(format!("/tmp/bct-up-{name}-{}", std::process::id()));
        std::fs::create_dir(&top).unwrap();
        std::fs::set_permissions(&top, std::fs::Permissions::from_mode(0o755)).unwrap();
        Local { dir: top.join("c"), top }
    }

    fn bctl(&self, words: &[&str]) -> Output {
        let (act, options) = words.split_first().unwrap();
        Command::new(program("bctl")).arg(act).arg("--dir").arg(&self.dir).args(options).output().unwrap()
    }

    /// A command that must succeed, and its JSON answer.
    fn answer(&self, words: &[&str]) -> Value {
        let ran = self.bctl(&[words, &["--json"]].concat());
        assert!(ran.status.success(), "{words:?}: {}", said(&ran));
        serde_json::from_slice(&ran.stdout).unwrap()
    }

    /// A command as somebody types it who sourced `env`.
    fn sh(&self, line: &str) -> String {
        let script = format!(". {}/env && cd {} && {line}", self.dir.display(), self.top.display());
        let ran = Command::new("/bin/sh").args(["-euc", &script]).output().unwrap();
        assert!(ran.status.success(), "{line}: {}", said(&ran));
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    }

    /// Processes that have this cluster's directory in their arguments.
    fn processes(&self) -> Vec<u32> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != std::process::id() && mentions(*pid, &self.top)).collect()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // A cluster that is down refuses to cancel, and one that was never up knows no directory: both are fine.
        self.bctl(&["down", "--cancel"]);
        self.bctl(&["down"]);
        std::fs::remove_dir_all(&self.top).unwrap();
    }
}

fn mentions(pid: u32, dir: &Path) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains(dir.to_str().unwrap())
}

fn said(ran: &Output) -> String {
    format!("{} {}{}", ran.status, String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr))
}

fn pid(answer: &Value) -> i32 {
    answer["pid"].as_i64().unwrap().try_into().unwrap()
}

/// Kills it, and returns when it runs no more: on a busy machine a process outlives its kill for a moment.
fn kill(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
    // A process is gone when its last thread is: its first one is a zombie before that.
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let gone = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => {
            let ended = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']));
            (ended && threads() <= 1).then_some(())
        }
        Err(_) => Some(()),
    };
    until("the killed process is gone", SOON, gone);
}

#[test]
fn up_is_repeatable_and_down_leaves_jobs_running_for_the_next_up() {
    let local = Local::new("jobs");
    let first = local.answer(&["up", "--nodes", "2", "--cpus", "1", "--mem", "1G", "--gpus", "t4:1"]);
    assert_eq!((&first["started"], first["nodes"].as_array().unwrap().len()), (&Value::Bool(true), 2));
    let second = local.answer(&["up"]);
    assert_eq!(second["started"], false);
    assert_eq!(
        (&second["ctld"], &second["nodes"]),
        (&first["ctld"], &first["nodes"]),
        "nothing was started anew"
    );

    let other = local.bctl(&["up", "--nodes", "3"]);
    assert_eq!(other.status.code(), Some(6), "{}", said(&other));
    assert!(said(&other).contains("2 runs, 3 asked for"), "{}", said(&other));

    let job = local.sh("bsub --parsable --output out --wrap 'touch started; while [ ! -e go ]; do sleep 0.05; done; echo done'");
    until("the job runs", SOON, || local.top.join("started").exists().then_some(()));
    let down = local.answer(&["down"]);
    assert_eq!(down["stopped"], serde_json::json!(["node1", "node2", "ctld"]));
    assert_eq!(down["jobs_running"], serde_json::json!([job]));
    assert!(!local.dir.join("ctld/postgres/data/postmaster.pid").exists(), "the database is stopped too");

    let third = local.answer(&["up"]);
    assert_ne!(third["ctld"], first["ctld"]);
    std::fs::write(local.top.join("go"), "").unwrap();
    let ended = || local.sh(&format!("bq --noheader -o state -j {job}"));
    until("the job ends as itself", SOON, || (ended().to_lowercase() == "completed").then_some(()));
    assert_eq!(std::fs::read_to_string(local.top.join("out")).unwrap(), "done\n");
}

#[test]
fn down_with_cancel_ends_every_job_and_leaves_nothing() {
    let local = Local::new("cancel");
    local.answer(&["up", "--cpus", "1", "--mem", "1G"]);
    local.sh("bsub --wrap 'touch started; sleep 600'; bsub --wrap 'sleep 600'");
    until("the first job runs", SOON, || local.top.join("started").exists().then_some(()));
    assert!(!local.processes().is_empty());
    let down = local.answer(&["down", "--cancel"]);
    assert_eq!(down["jobs_running"], serde_json::json!([]));
    until("no process is left", SOON, || local.processes().is_empty().then_some(()));
    assert!(local.answer(&["down"])["stopped"].as_array().unwrap().is_empty(), "down may be repeated");
    local.answer(&["up"]);
    assert_eq!(local.sh("bq --noheader"), "", "cancelled jobs, the waiting one too, do not come back");
}

#[test]
fn up_restarts_what_was_killed_and_down_stops_a_database_that_was_orphaned() {
    let local = Local::new("killed");
    let first = local.answer(&["up", "--cpus", "1", "--mem", "1G"]);
    kill(pid(&first["ctld"]));
    kill(pid(&first["nodes"][0]));
    let second = local.answer(&["up"]);
    assert_eq!(second["started"], true);
    assert_ne!(second["ctld"], first["ctld"]);
    kill(pid(&second["ctld"]));
    let down = local.answer(&["down"]);
    assert_eq!(down["stopped"], serde_json::json!(["node1", "database"]));
    until("no process is left", SOON, || local.processes().is_empty().then_some(()));
}

#[test]
fn a_start_that_fails_shows_the_daemons_own_words() {
    let local = Local::new("fails");
    std::fs::create_dir_all(local.dir.join("ctld")).unwrap();
    std::fs::write(local.dir.join("ctld/postgres"), "no directory").unwrap();
    let up = local.bctl(&["up"]);
    assert_eq!(up.status.code(), Some(1), "{}", said(&up));
    let text = said(&up);
    assert!(text.contains("ctld ended while it was starting") && text.contains("ctld/postgres"), "{text}");
}
