//! The parts of `up` and `down` that need no controller; whole clusters are brought up and down by the end-to-end tests.

use super::configure::{self, Machine};
use super::daemon::{Daemon, Identity};
use super::place::Place;
use super::record::{Record, Wanted};
use super::stop::{self, Jobs};
use super::*;
use clap::Parser;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

#[derive(Parser)]
struct UpLine {
    #[command(flatten)]
    up: Up,
}

fn options(line: &str) -> Up {
    UpLine::try_parse_from(["up"].into_iter().chain(line.split_whitespace())).unwrap().up
}

struct Scratch {
    top: TempDir,
    place: Place,
}

impl Scratch {
    fn new() -> Scratch {
        let top = tempfile::Builder::new().prefix("bc-up-").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let place = Place::prepare(Some(&top.path().join("c"))).unwrap();
        Scratch { top, place }
    }

    /// A stand-in for a daemon: says a word and stays until it is told to go.
    fn program(&self, name: &str, body: &str) -> PathBuf {
        let path = self.top.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for daemon in super::start::running(&self.place).unwrap_or_default() {
            daemon.signal(libc::SIGKILL).unwrap();
        }
    }
}

fn record() -> Record {
    Record::with(None, Wanted::default())
}

const MACHINE: Machine = Machine { cpus: 16, mem_mib: 65_536, disk_mib: 1000 };

#[test]
fn options_become_a_wish_and_bad_ones_are_named() {
    let wanted = options("--nodes 2 --gpus a100-80gb:8,t4 --cpus 4 --mem 1.5G --disk 10G").wanted().unwrap();
    let gpus = Some(vec!["a100-80gb:8".to_owned(), "t4".to_owned()]);
    assert_eq!(
        wanted,
        Wanted { nodes: Some(2), gpus, cpus: Some(4), mem_mib: Some(1536), disk_mib: Some(10_240) }
    );
    for (line, words) in [
        ("--gpus a100:0", "a100:0"),
        ("--gpus :3", ":3"),
        ("--mem much", "much"),
        ("--mem 0", "--mem 0"),
        ("--disk x", "--disk: \"x\""),
    ] {
        let failure = options(line).wanted().unwrap_err();
        assert!(failure.exit_code() == 2 && failure.to_string().contains(words), "{line}: {failure}");
    }
}

#[test]
fn left_out_options_keep_what_was_and_others_are_told_apart() {
    let first = Record::with(None, options("--nodes 3 --gpus t4:1").wanted().unwrap());
    assert_eq!(Record::with(Some(&first), Wanted::default()), first);
    let second = Record::with(Some(&first), options("--nodes 2 --mem 1G").wanted().unwrap());
    let differences = first.differences(&second);
    assert_eq!(differences, ["nodes: 3 runs, 2 asked for", "mem: the machine's runs, 1024 MiB asked for"]);
    assert_eq!(second.gpus, ["t4:1"]);
}

#[test]
fn nodes_share_the_machine_unless_told_otherwise() {
    let scratch = Scratch::new();
    let two = Record { nodes: 2, ..record() };
    let text = configure::noded(&scratch.place, &two, MACHINE, "node2").unwrap();
    assert!(text.contains("cpus = 8\n") && text.contains("mem = 28672\ndisk = 500\n"), "{text}");
    assert!(text.contains("root_jobs = \"allow\"") && !text.contains("gpus"), "{text}");
    let told =
        Record { cpus: Some(3), mem_mib: Some(500), disk_mib: Some(0), gpus: vec!["t4:2".into()], ..two };
    let text = configure::noded(&scratch.place, &told, MACHINE, "node2").unwrap();
    assert!(
        text.contains("cpus = 3\n")
            && text.contains("mem = 500\ndisk = 0\n")
            && text.contains("gpus = [\"t4:2\"]"),
        "{text}"
    );
}

#[test]
fn control_groups_differ_between_nodes_and_clusters_and_stay_the_same() {
    let base = |dir: &str, node: &str| {
        let place = Place { dir: dir.into() };
        let text = configure::noded(&place, &record(), MACHINE, node).unwrap();
        text.lines().find(|line| line.starts_with("cgroup_base")).unwrap().to_owned()
    };
    assert_eq!(base(super::place::DIR, "node1"), "cgroup_base = \"better-compute-bd2e1f12-node1\"");
    assert_ne!(base("/a", "node1"), base("/b", "node1"));
    assert_ne!(base("/a", "node1"), base("/a", "node2"));
}

#[test]
fn the_person_behind_sudo_becomes_an_operator() {
    let scratch = Scratch::new();
    let text = configure::ctld(&scratch.place, Some("ada".into())).unwrap();
    assert!(text.contains("operators = [\"ada\"]") && text.contains("database = \"embedded\""), "{text}");
}

#[test]
fn env_is_read_by_a_shell_and_adds_the_programs_once() {
    let scratch = Scratch::new();
    configure::write(&scratch.place, &record(), MACHINE, Path::new("/opt/b c/bin")).unwrap();
    let env = scratch.place.env_file();
    let script = format!(". {0}; . {0}; echo \"$BC_SERVER|$PATH\"", env.display());
    let said =
        std::process::Command::new("/bin/sh").args(["-euc", &script]).env("PATH", "/bin").output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said, format!("{}|/opt/b c/bin:/bin\n", scratch.place.server()));
}

#[test]
fn directories_that_will_not_do_are_refused_with_the_reason() {
    let scratch = Scratch::new();
    let top = scratch.top.path();
    let refused = |dir: &Path| Place::prepare(Some(dir)).unwrap_err().to_string();
    assert!(refused(&top.join("d".repeat(90))).contains("too long"));
    let home = top.join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("thesis.tex"), "draft").unwrap();
    assert!(refused(&home).contains("thesis.tex"));
    let open = top.join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(refused(&open).contains("written by others"));
    let closed = top.join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(refused(&closed.join("c")).contains("cannot pass through"));
    let missing = Place::existing(Some(&top.join("nothing"))).unwrap_err();
    assert_eq!(missing.exit_code(), 4);
}

#[tokio::test]
async fn a_daemon_is_found_again_in_its_own_session_and_its_words_are_kept() {
    let scratch = Scratch::new();
    let program = scratch.program("ctld", "echo ready; exec tail -f /dev/null");
    let config = scratch.place.ctld_config();
    let started = Daemon::start(&scratch.place, "ctld", &program, &config).unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while !std::fs::read_to_string(scratch.place.log("ctld")).unwrap().contains("ready") {
        assert!(std::time::Instant::now() < until, "it says nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let found = Daemon::find(&scratch.place, "ctld").unwrap().expect("it runs");
    assert_eq!(found.pid(), started.pid());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(found.pid()).unwrap());
    assert_eq!(nix::unistd::getsid(Some(pid)).unwrap(), pid);
    found.signal(libc::SIGTERM).unwrap();
    assert!(found.gone_within(Duration::from_secs(10)).await);
    assert!(Daemon::find(&scratch.place, "ctld").unwrap().is_none());
    assert!(Daemon::failed(&scratch.place, "ctld", "ended").to_string().contains("ready"));
}

#[tokio::test]
async fn a_process_that_got_a_daemons_number_is_never_touched() {
    let scratch = Scratch::new();
    record().write(&scratch.place).unwrap();
    let mut stranger = std::process::Command::new("tail").args(["-f", "/dev/null"]).spawn().unwrap();
    let text = Identity::of(stranger.id()).unwrap().text();
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words[1] = "1";
    std::fs::write(scratch.place.pid_file("node1"), words.join(" ")).unwrap();
    words[1] = text.split_whitespace().nth(1).unwrap();
    words[2] = "another-boot";
    std::fs::write(scratch.place.pid_file("ctld"), words.join(" ")).unwrap();

    let stopped = stop::stop(&scratch.place, Jobs::Keep).await.unwrap();
    assert!(stopped.stopped.is_empty(), "{stopped:?}");
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger was ended");
    assert!(scratch.place.with_pid_files().unwrap().is_empty(), "stale pid files are removed");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn a_second_command_in_the_same_directory_waits_for_the_first() {
    let scratch = Scratch::new();
    let first = scratch.place.lock().await.unwrap();
    let place = scratch.place.clone();
    let mut second = std::pin::pin!(place.lock());
    let early = tokio::time::timeout(Duration::from_millis(200), second.as_mut()).await;
    assert!(early.is_err(), "the second got the lock beside the first");
    drop(first);
    second.await.unwrap();
}

#[tokio::test]
async fn jobs_cannot_be_cancelled_without_a_controller() {
    let scratch = Scratch::new();
    let failure = stop::stop(&scratch.place, Jobs::Cancel).await.unwrap_err();
    assert_eq!(failure.exit_code(), 3);
}
