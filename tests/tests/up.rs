//! `bctl up` and `bctl down`: a whole cluster on this machine, brought up, used, taken down, and nobody else touched.

use nix::sys::signal::Signal;
use proto::State;
use proto::api::{Health, JobList};
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::commands::{self, Ran};
use tests::{Connection, SOON, Scratch, User, groups, processes, programs, until};

/// A directory for a cluster of `bctl up`; what it started ends with it.
struct Local {
    scratch: Scratch,
    dir: PathBuf,
}

impl Local {
    fn new() -> Local {
        let scratch = Scratch::new();
        let dir = scratch.make_dir("c", 0o755);
        Local { scratch, dir }
    }

    fn bctl(&self, args: &[&str]) -> Ran {
        let dir = self.dir.to_str().unwrap();
        let mut command = commands::command(&User::root(), &programs::program("bctl"), self.scratch.dir());
        command.args([args[0], "--dir", dir]).args(&args[1..]);
        commands::run(&mut command, b"")
    }

    /// In a shell that has sourced what `up` wrote, as somebody.
    fn shell(&self, user: &User, script: &str) -> Ran {
        let home = self.scratch.dir().join(&user.name);
        if !home.exists() {
            std::fs::create_dir(&home).unwrap();
            std::os::unix::fs::chown(&home, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        }
        let mut command = commands::command(user, Path::new("/bin/bash"), &home);
        let script = format!(". {}/env; {script}", self.dir.display());
        commands::run(command.args(["-c", &script]), b"")
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("run/ctld.sock")
    }

    fn jobs(&self, query: &str) -> JobList {
        Connection::open(&self.socket()).unwrap().get(&format!("/v1/jobs{query}")).unwrap()
    }

    /// The control groups of this cluster's nodes, by the name that its configuration gives them.
    fn groups(&self) -> Vec<String> {
        let nodes = std::fs::read_dir(self.dir.join("nodes")).into_iter().flatten().flatten();
        let base = |node: std::fs::DirEntry| {
            let text = std::fs::read_to_string(node.path().join("noded.toml")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("cgroup_base = "))?;
            Some(line.trim_matches('"').to_owned())
        };
        nodes.filter_map(base).collect()
    }

    fn pids(&self) -> Vec<i32> {
        let mut pids = processes::daemons_of(&self.dir);
        pids.extend(processes::database_processes(&self.dir));
        pids.sort_unstable();
        pids
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in std::fs::read_dir(self.dir.join("log")).into_iter().flatten().flatten() {
                eprintln!("---- the end of {}:\n{}", log.path().display(), tests::daemon::tail(&log.path()));
            }
        }
        // The daemons are found by their arguments when the directory is cleared; the jobs' groups have names of their own.
        for base in self.groups() {
            for pid in processes::daemons_of(&self.dir) {
                processes::kill(pid, Signal::SIGKILL);
            }
            groups::clear(&base);
        }
    }
}

#[test]
fn up_brings_a_cluster_up_once_and_down_leaves_nothing_running() {
    let local = Local::new();
    let user = User::one();
    let up =
        local.bctl(&["up", "--nodes", "2", "--gpus", "a100-80gb:2", "--cpus", "8", "--mem", "4G", "--json"]);
    up.exits(0).json();
    let ran = local.shell(&user, "bsub -W --gpus=1 -o out --wrap 'echo $CUDA_VISIBLE_DEVICES; exit 3'");
    ran.exits(3);
    let health: Health = local.shell(&User::root(), "bctl check --json").json().to_string().parse_json();
    assert_eq!((health.ok, health.nodes_connected, health.nodes_total), (true, 2, 2));
    assert!(health.database.unwrap().url.starts_with("postgres://"));

    // Again: the same processes.
    let before = daemons(&local);
    local.bctl(&["up"]).exits(0);
    local.bctl(&["up", "--nodes", "2", "--gpus", "a100-80gb:2", "--cpus", "8", "--mem", "4G"]).exits(0);
    assert_eq!(daemons(&local), before);
    // Otherwise: says what differs, and changes nothing.
    local.bctl(&["up", "--nodes", "3"]).refused(6).says("nodes");
    assert_eq!(daemons(&local), before);
    // One daemon died: it alone is started again.
    let victim = before.iter().copied().find(|pid| is_noded(*pid)).expect("a node's daemon");
    processes::kill(victim, Signal::SIGKILL);
    until("its end", SOON, || (!processes::alive(victim)).then_some(()));
    local.bctl(&["up"]).exits(0);
    let after = daemons(&local);
    assert_eq!(
        (after.len(), after.iter().filter(|pid| before.contains(pid)).count()),
        (before.len(), before.len() - 1)
    );

    local.bctl(&["down"]).exits(0);
    assert_eq!(local.pids(), Vec::<i32>::new());
    for base in local.groups() {
        assert_eq!(groups::processes(&base), Vec::<i32>::new());
    }
    // Twice is no error.
    local.bctl(&["down"]).exits(0);
}

/// State survives: the queue, a running job, ids.
#[test]
fn queue_and_running_jobs_survive_down_and_up() {
    let local = Local::new();
    let user = User::one();
    local.bctl(&["up", "--cpus", "4", "--mem", "2G"]).exits(0);
    let held: i64 = local.shell(&user, "bsub --parsable --hold --wrap true").ok().trim().parse().unwrap();
    let running: i64 = local
        .shell(&user, "bsub --parsable --wrap 'until [ -e go ]; do sleep 0.1; done; exit 4'")
        .ok()
        .trim()
        .parse()
        .unwrap();
    until("running", SOON, || (local.jobs("?states=running").jobs.len() == 1).then_some(()));
    let down = local.bctl(&["down"]);
    assert!(down.ok().contains(&running.to_string()), "down names the jobs that run on: {}", down.stdout);
    assert_eq!(local.pids().iter().filter(|pid| !is_noded(**pid)).count(), 0);
    // It ends while the cluster is down.
    std::fs::write(local.scratch.dir().join("bctest1/go"), "").unwrap();
    local.bctl(&["up"]).exits(0);
    let job = until("the end", SOON, || {
        let mut list = local.jobs(&format!("?ids={running}"));
        list.jobs.pop().filter(|job| job.state.terminal())
    });
    assert_eq!(job.exit_code, Some(4));
    assert_eq!(local.jobs(&format!("?ids={held}")).jobs[0].state, State::Pending);
    let next: i64 = local.shell(&user, "bsub --parsable --hold --wrap true").ok().trim().parse().unwrap();
    assert!(next > running);
    // With --cancel everything ends first.
    local.shell(&user, "bsub --wrap 'sleep 1000'").exits(0);
    until("running", SOON, || (local.jobs("?states=running").jobs.len() == 1).then_some(()));
    local.bctl(&["down", "--cancel"]).exits(0);
    assert_eq!(local.pids(), Vec::<i32>::new());
    for base in local.groups() {
        assert_eq!(groups::processes(&base), Vec::<i32>::new());
    }
}

/// A pid file whose number belongs to a stranger by now: the stranger lives on.
#[test]
fn down_never_touches_a_process_it_did_not_start() {
    let local = Local::new();
    local.bctl(&["up", "--cpus", "4", "--mem", "2G"]).exits(0);
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = i32::try_from(stranger.id()).unwrap();
    let noded =
        processes::daemons_of(&local.dir).into_iter().find(|pid| is_noded(*pid)).expect("a node's daemon");
    let file = local.dir.join("run/node1.pid");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with(&format!("{noded} ")), "{text}");
    processes::kill(noded, Signal::SIGKILL);
    until("its end", SOON, || (!processes::alive(noded)).then_some(()));
    // The kernel has given the number to somebody else, as far as the file can tell.
    std::fs::write(&file, text.replacen(&noded.to_string(), &pid.to_string(), 1)).unwrap();
    local.bctl(&["down"]).exits(0);
    assert!(processes::alive(pid), "down killed a stranger");
    // Without a cluster there is nothing to do, and a foreign directory is not touched.
    let foreign = local.scratch.make_dir("foreign", 0o755);
    std::fs::write(foreign.join("precious"), "").unwrap();
    let mut command = commands::command(&User::root(), &programs::program("bctl"), local.scratch.dir());
    commands::run(command.args(["up", "--dir", foreign.to_str().unwrap()]), b"").refused(2).says("precious");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// A lock that the shell of `bctl up` held is free when that shell is done: the daemons have none of its open files.
#[test]
fn the_daemons_keep_nothing_open_of_the_shell_that_started_them() {
    let local = Local::new();
    let (lock, dir) = (local.scratch.dir().join("lock"), local.dir.display());
    let bctl = programs::program("bctl");
    let script =
        format!("exec 9>{0}; flock 9; {1} up --dir {dir} --cpus 2 --mem 1G", lock.display(), bctl.display());
    let mut command = commands::command(&User::root(), Path::new("/bin/bash"), local.scratch.dir());
    commands::run(command.args(["-c", &script]), b"").exits(0);
    let file = std::fs::File::open(&lock).unwrap();
    let free = nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock);
    assert!(free.is_ok(), "a daemon holds the lock");
    local.bctl(&["down"]).exits(0);
}

/// Only root can bring a cluster up that runs jobs as their users.
#[test]
fn an_ordinary_user_is_told_to_use_sudo() {
    let local = Local::new();
    let mut command = commands::command(&User::one(), &programs::program("bctl"), Path::new("/"));
    commands::run(command.args(["up", "--dir", "/tmp/bct-nobody"]), b"").refused(5).says("sudo");
    assert!(!Path::new("/tmp/bct-nobody").exists());
    assert_eq!(local.pids(), Vec::<i32>::new());
}

/// ctld and the nodes' daemons, without what they fork.
fn daemons(local: &Local) -> Vec<i32> {
    let mut pids = processes::daemons_of(&local.dir);
    pids.sort_unstable();
    pids
}

fn is_noded(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "noded")
}

trait ParseJson {
    fn parse_json<T: serde::de::DeserializeOwned>(&self) -> T;
}

impl ParseJson for String {
    fn parse_json<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_str(self).unwrap_or_else(|error| panic!("{error} in {self}"))
    }
}
