//! One node for one test: directories, users, control groups, a fake controller, and a noded that can be killed and started.

use crate::fake_ctld::FakeCtld;
use noded::cgroup::{JobGroup, Layout};
use proto::session::{Assignment, Ended};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub const ALICE: u32 = 54001;
pub const BOB: u32 = 54002;
/// A group that alice is in besides her own.
pub const LAB: u32 = 54100;
const NODE: &str = "n1";
/// What control groups of tests are called; the test's pid follows.
const BASE: &str = "bctest";

/// How long anything may take: a whole machine emulated in software is slow.
pub fn patience() -> Duration {
    if std::env::var_os("CGROUP2_VM").is_some() { Duration::from_secs(240) } else { Duration::from_secs(60) }
}

pub struct Site {
    pub dir: tempfile::TempDir,
    pub ctld: FakeCtld,
    pub config: Vec<String>,
    /// As if the machine had only v1 hierarchies.
    pub hide_unified: bool,
    /// As if the machine had been booted anew.
    pub boot_id: Option<String>,
    /// The state directory on a small disk of its own, in KiB.
    pub small_disk_kib: Option<u32>,
    base: String,
    noded: Option<Child>,
    next: i64,
}

impl Site {
    /// A node that is up and has its session.
    pub async fn new() -> Site {
        let mut site = Site::prepare();
        site.start().await;
        site
    }

    /// A node that is not up yet.
    pub fn prepare() -> Site {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests need root: they make control groups and change users"
        );
        sweep_dead();
        let dir = tempfile::Builder::new().prefix("bctest-").tempdir().unwrap();
        let path = dir.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        for (name, uid) in [("alice", ALICE), ("bob", BOB)] {
            let home = path.join(name);
            fs::create_dir(&home).unwrap();
            fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
            chown(&home, Some(uid), Some(uid)).unwrap();
        }
        // The machine's, without users that it may have by the same names.
        let read = |file: &str| {
            let text = fs::read_to_string(file).unwrap();
            let others = text.lines().filter(|line| !line.contains("alice") && !line.contains("bob"));
            others.map(|line| format!("{line}\n")).collect::<String>()
        };
        let shown = path.display();
        let users = format!(
            "alice:x:{ALICE}:{ALICE}::{shown}/alice:/bin/sh\nbob:x:{BOB}:{BOB}::{shown}/nonesuch:/bin/bash\n"
        );
        let groups = format!("alice:x:{ALICE}:\nbob:x:{BOB}:\nlab:x:{LAB}:alice\n");
        fs::write(path.join("passwd"), users + &read("/etc/passwd")).unwrap();
        fs::write(path.join("group"), groups + &read("/etc/group")).unwrap();
        let ctld = FakeCtld::start(&path.join("ctld.sock"));
        let config = vec!["cpus = 64".to_owned(), "mem = \"64G\"".to_owned()];
        static SITES: AtomicUsize = AtomicUsize::new(0);
        let base = format!("{BASE}-{}-{}", std::process::id(), SITES.fetch_add(1, Ordering::Relaxed));
        Site {
            dir,
            ctld,
            config,
            hide_unified: false,
            boot_id: None,
            small_disk_kib: None,
            base,
            noded: None,
            next: 1,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Where scripts lie.
    pub fn scripts(&self) -> PathBuf {
        noded::spool::prepare(&self.state()).unwrap()
    }

    /// A file under the state directory as noded sees it.
    pub fn state_inside(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.noded_pid(), self.state().join(name).display()))
    }

    pub fn noded_pid(&self) -> i32 {
        self.noded.as_ref().expect("noded runs").id() as i32
    }

    pub fn command(&self) -> Command {
        let dir = self.dir.path().display();
        let mut text = format!(
            "node = \"{NODE}\"\ncontroller = \"unix://{dir}/ctld.sock\"\nstate_dir = \"{dir}/state\"\ncgroup_base = \"{}\"\nlog = \"noded=debug\"\n",
            self.base
        );
        text.push_str(&self.config.join("\n"));
        fs::write(self.path("noded.toml"), text).unwrap();
        let program = std::env::var_os("NODED").unwrap_or_else(|| env!("CARGO_BIN_EXE_noded").into());
        let mut command = Command::new(program);
        command.arg("--config").arg(self.path("noded.toml")).stdin(Stdio::null());
        let mut mounts = vec![
            Mount::bind(&self.path("passwd"), "/etc/passwd"),
            Mount::bind(&self.path("group"), "/etc/group"),
        ];
        if let Some(boot_id) = &self.boot_id {
            fs::write(self.path("boot_id"), boot_id).unwrap();
            mounts.push(Mount::bind(&self.path("boot_id"), "/proc/sys/kernel/random/boot_id"));
        }
        if let Some(kib) = self.small_disk_kib {
            fs::create_dir_all(self.state()).unwrap();
            mounts.push(Mount::tmpfs(&self.state(), kib));
        }
        let hidden = self.hide_unified.then(|| unified_mount().expect("a hybrid machine"));
        // SAFETY: everything is prepared before the fork; only system calls follow.
        unsafe {
            command.pre_exec(move || {
                check(libc::unshare(libc::CLONE_NEWNS))?;
                let private = libc::MS_REC | libc::MS_PRIVATE;
                check(libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    private,
                    std::ptr::null(),
                ))?;
                for mount in &mounts {
                    mount.make()?;
                }
                if let Some(unified) = &hidden {
                    check(libc::umount2(unified.as_ptr(), libc::MNT_DETACH))?;
                }
                Ok(())
            });
        }
        command
    }

    /// Starts noded and waits for its session.
    pub async fn start(&mut self) {
        let before = self.ctld.book(|b| b.hellos.len());
        self.spawn();
        let wait = self.ctld.until("noded opens a session", |b| (b.hellos.len() > before).then_some(()));
        tokio::select! {
            () = wait => {}
            () = async {
                while self.noded_pid_alive() { tokio::time::sleep(Duration::from_millis(50)).await; }
            } => panic!("noded ended: {}", self.log()),
        }
    }

    /// Starts noded.
    pub fn spawn(&mut self) {
        assert!(self.noded.is_none());
        let log = fs::File::options().append(true).create(true).open(self.path("noded.log")).unwrap();
        let child = self.command().stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.noded = Some(child);
    }

    fn noded_pid_alive(&self) -> bool {
        noded::sys::pidfd_open(self.noded_pid()).is_ok()
            && fs::read_to_string(format!("/proc/{}/stat", self.noded_pid()))
                .is_ok_and(|s| !s.contains(") Z "))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("noded.log")).unwrap_or_default()
    }

    /// Kills noded with SIGKILL.
    pub fn kill_noded(&mut self) {
        let mut child = self.noded.take().expect("noded runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks noded to stop and returns whether it said that all was well.
    pub fn stop_noded(&mut self) -> bool {
        let mut child = self.noded.take().expect("noded runs");
        // SAFETY: it is our child and not reaped.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        child.wait().unwrap().success()
    }

    /// A script of alice's, in her home.
    pub fn job(&mut self, script: &str) -> Assignment {
        let id = self.next;
        self.next += 1;
        let home = self.path("alice").display().to_string();
        serde_json::from_value(serde_json::json!({
            "allocation_id": id, "job_id": 100 + id, "task": null, "array": null, "attempt": 1, "runs_script": true,
            "name": "test", "user": "alice", "uid": ALICE, "gid": ALICE, "tenant": "lab", "account": null, "pool": "main",
            "script": format!("#!/bin/bash\n{script}\n"), "args": [], "env": {}, "chdir": home, "output": "%j.out", "error": null,
            "input": null, "open_mode": "truncate", "umask": 0o22, "rlimits": {}, "cpus": 1, "mem_mib": 256, "gpus": [],
            "nodes": [NODE], "ntasks": null, "cpus_per_task": null, "time_limit_s": null, "grace_s": 5, "warn": null,
            "submit_host": "login", "submit_dir": home, "start_epoch_s": 1000
        }))
        .unwrap()
    }

    /// Runs it to its end.
    pub async fn ended(&self, job: Assignment) -> Ended {
        let id = job.allocation_id;
        self.ctld.run(vec![job]);
        self.ctld.ended(id).await
    }

    /// Runs a script of alice's to its end.
    pub async fn script(&mut self, script: &str) -> (i64, Ended) {
        let job = self.job(script);
        (job.allocation_id, self.ended(job).await)
    }

    /// What a job of [`Site::job`] wrote.
    pub fn output(&self, id: i64) -> String {
        fs::read_to_string(self.path(&format!("alice/{}.out", 100 + id))).unwrap()
    }

    /// Waits until a file is there and not empty.
    pub async fn file(&self, path: &Path) -> String {
        self.until(&format!("{} is written", path.display()), || {
            fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
        })
        .await
    }

    pub async fn until<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + patience();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < deadline, "waited in vain until {what}; noded's log: {}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn layout(&self) -> Layout {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let seen = mounts.lines().filter(|line| !self.hide_unified || !line.contains(" - cgroup2 "));
        Layout::of_mounts(&seen.collect::<Vec<_>>().join("\n"), &self.base, NODE).unwrap()
    }

    /// Every process of an allocation.
    pub fn processes(&self, id: i64) -> Vec<i32> {
        JobGroup::new(&self.layout(), id).processes()
    }

    /// The shepherds (and the launcher, if there is one) of this node.
    pub fn shepherds(&self) -> Vec<i32> {
        let layout = self.layout();
        let file = layout.guard_dir().join("shepherds/cgroup.procs");
        fs::read_to_string(file).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// The launcher's pid.
    pub fn launcher(&self) -> i32 {
        let named = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "noded")
        };
        let parent = |pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')')
                .is_some_and(|(_, rest)| rest.split(' ').nth(2) == Some(&self.noded_pid().to_string()))
        };
        self.shepherds().into_iter().find(|pid| named(pid) || parent(pid)).expect("a launcher")
    }

    /// The shepherd of an attempt, as its record says.
    pub fn shepherd(&self, id: i64) -> i32 {
        let record = noded::attempt::examine(&self.state().join("jobs").join(id.to_string())).unwrap().record;
        record.claim.expect("a claim").pid
    }

    /// Waits until nothing of any job is left: groups, files, scripts.
    pub async fn clean(&self) {
        self.until("nothing is left of any job", || {
            let records = noded::attempt::StateDir::at(&self.state()).attempts().unwrap().len();
            let scripts = fs::read_dir(self.scripts()).unwrap().count();
            (self.layout().job_ids().unwrap().is_empty() && records + scripts == 0).then_some(())
        })
        .await;
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(mut noded) = self.noded.take() {
            let _ = noded.kill();
            let _ = noded.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- noded's log\n{}---", self.log());
        }
        sweep(&self.base);
        let _ = fs::remove_dir_all(self.scripts());
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

struct Mount {
    source: CString,
    target: CString,
    tmpfs: Option<CString>,
}

impl Mount {
    fn bind(source: &Path, target: &str) -> Mount {
        Mount { source: c_path(source), target: CString::new(target).unwrap(), tmpfs: None }
    }

    fn tmpfs(target: &Path, kib: u32) -> Mount {
        let options = CString::new(format!("size={kib}k,mode=755")).unwrap();
        Mount { source: c_path(Path::new("tmpfs")), target: c_path(target), tmpfs: Some(options) }
    }

    fn make(&self) -> io::Result<()> {
        let (kind, flags, data) = match &self.tmpfs {
            Some(options) => (c"tmpfs".as_ptr(), 0, options.as_ptr().cast()),
            None => (std::ptr::null(), libc::MS_BIND, std::ptr::null()),
        };
        // SAFETY: all strings are terminated and outlive the call.
        check(unsafe { libc::mount(self.source.as_ptr(), self.target.as_ptr(), kind, flags, data) })
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

/// Where the unified hierarchy is mounted beside v1 ones.
pub fn unified_mount() -> Option<CString> {
    let layout = Layout::detect(BASE, NODE).ok()?;
    let tree = layout.trees.iter().find(|tree| tree.unified)?;
    (layout.trees.len() > 1).then(|| c_path(&tree.mount))
}

/// Ends and removes everything under a test's base group.
fn sweep(base: &str) {
    let Ok(layout) = Layout::detect(base, NODE) else { return };
    let mounts: Vec<PathBuf> = fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .filter_map(|line| line.split(' ').nth(4).map(PathBuf::from))
        .chain(layout.trees.iter().map(|tree| tree.mount.clone()))
        .collect();
    let deadline = Instant::now() + Duration::from_secs(20);
    for mount in mounts {
        let top = mount.join(base);
        while top.exists() && Instant::now() < deadline {
            let mut dirs = vec![top.clone()];
            let mut at = 0;
            while at < dirs.len() {
                let below = fs::read_dir(&dirs[at]).into_iter().flatten().flatten();
                dirs.extend(
                    below
                        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
                        .map(|e| e.path())
                        .collect::<Vec<_>>(),
                );
                at += 1;
            }
            for dir in dirs.iter().rev() {
                for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
                    // SAFETY: it is listed in a group that only this test uses.
                    unsafe { libc::kill(pid.parse().unwrap_or(i32::MAX), libc::SIGKILL) };
                }
                let _ = fs::remove_dir(dir);
            }
            std::thread::yield_now();
        }
    }
}

/// Sweeps what tests left that were themselves killed.
fn sweep_dead() {
    let Ok(layout) = Layout::detect(BASE, NODE) else { return };
    for entry in fs::read_dir(&layout.trees[0].mount).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix(&format!("{BASE}-"))
            .and_then(|rest| rest.split('-').next()?.parse::<i32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            sweep(&name);
        }
    }
}
