//! PostgreSQL fails over under load: a primary with a synchronous standby, killed, and the standby promoted. Nothing that was
//! acknowledged is lost, nothing is there twice, and nobody who asks meanwhile is left hanging.

use nix::sys::signal::Signal;
use nix::unistd::{Pid, User as SystemUser};
use proto::ErrorCode;
use proto::api::{Audit, Health, Submission, Submitted};
use std::collections::HashMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tests::daemon::Daemon;
use tests::programs::program;
use tests::{Connection, Refusal, Scratch, small_job, until};

const PATIENCE: Duration = Duration::from_secs(60);
/// As long as the controller may take to answer a submission while the database is away, with room for a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(25);
const SUBMITTERS: usize = 4;

/// A PostgreSQL server of the test's own, run by the user postgres.
struct Server {
    bin: PathBuf,
    data: PathBuf,
    socket: PathBuf,
}

impl Server {
    fn at(scratch: &Scratch, name: &str) -> Server {
        let socket = scratch.make_dir(name, 0o755);
        let user = postgres();
        chown(&socket, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        Server { bin: newest_binaries(), data: socket.join("data"), socket }
    }

    fn run(&self, program: &str, words: &[&str]) {
        let user = postgres();
        let mut command = Command::new(self.bin.join(program));
        command.args(words).current_dir("/").uid(user.uid.as_raw()).gid(user.gid.as_raw());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {words:?}: {said}");
    }

    fn settings(&self, text: &str) {
        use std::io::Write;
        let path = self.data.join("postgresql.auto.conf");
        std::fs::File::options().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn start(&self) {
        let log = self.socket.join("log");
        let options = format!("-k {} -c listen_addresses=", self.socket.display());
        self.run("pg_ctl", &["-D", text(&self.data), "-l", text(&log), "-o", &options, "-w", "start"]);
    }

    fn sql(&self, query: &str) -> String {
        let user = postgres();
        let mut command = Command::new(self.bin.join("psql"));
        command.args(["-h", text(&self.socket), "-U", "postgres", "-d", "bc", "-Atc", query]);
        let output = command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).output().unwrap();
        assert!(output.status.success(), "{query}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// As if its machine had lost its power: every process of it is gone at once.
    fn kill(&self) {
        let pid = std::fs::read_to_string(self.data.join("postmaster.pid")).unwrap();
        let pid = pid.lines().next().unwrap().parse().unwrap();
        nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGQUIT).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let user = postgres();
        let mut command = Command::new(self.bin.join("pg_ctl"));
        command.args(["-D", text(&self.data), "-m", "immediate", "-W", "stop"]);
        let _ = command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).output();
    }
}

fn postgres() -> SystemUser {
    SystemUser::from_name("postgres").unwrap().expect("PostgreSQL's package makes the user postgres")
}

fn newest_binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
    let newest = versions.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()).max();
    PathBuf::from(format!("/usr/lib/postgresql/{}/bin", newest.expect("a version of PostgreSQL")))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What one submitter was told.
#[derive(Default)]
struct Told {
    acknowledged: Mutex<HashMap<String, i64>>,
    slowest: Mutex<Duration>,
    refused: AtomicUsize,
    unknown: AtomicUsize,
}

impl Told {
    /// How often somebody was told to try again.
    fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed) + self.unknown.load(Ordering::Relaxed)
    }
}

/// Submits one job after the other, each under its key until it is acknowledged.
fn submit_on(socket: &Path, told: &Told, enough: &AtomicBool) {
    let mut api = None;
    while !enough.load(Ordering::Relaxed) {
        let job: Submission = small_job("true", Path::new("/"));
        loop {
            let connection = match api.take() {
                Some(connection) => connection,
                None => Connection::open(socket).unwrap(),
            };
            let connection = api.insert(connection);
            let asked = Instant::now();
            let answer = connection.post::<Submitted>("/v1/jobs", &job);
            {
                let mut slowest = told.slowest.lock().unwrap();
                *slowest = (*slowest).max(asked.elapsed());
            }
            match answer {
                Ok(submitted) => {
                    told.acknowledged.lock().unwrap().insert(job.idempotency_key, submitted.id);
                    break;
                }
                Err(Refusal::Api(_, error)) => {
                    assert!(error.retryable, "{error:?}");
                    let counter =
                        if error.code == ErrorCode::OutcomeUnknown { &told.unknown } else { &told.refused };
                    counter.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
                Err(Refusal::Lost(error)) => panic!("the controller is not to go away: {error}"),
            }
        }
    }
}

#[test]
fn a_promoted_standby_has_every_acknowledged_submission_once_and_nobody_hangs() {
    let scratch = Scratch::new();
    for name in ["run", "log"] {
        scratch.make_dir(name, 0o755);
    }
    let (primary, standby) = (Server::at(&scratch, "a"), Server::at(&scratch, "b"));
    primary.run("initdb", &["-D", text(&primary.data), "-A", "trust", "-U", "postgres", "--no-sync"]);
    // Durable only across the death of processes, which is all that is tried here.
    primary.settings("fsync = off\n");
    primary.start();
    primary.run("createdb", &["-h", text(&primary.socket), "-U", "postgres", "bc"]);
    let words = [
        "-h",
        text(&primary.socket),
        "-U",
        "postgres",
        "-D",
        text(&standby.data),
        "-R",
        "-X",
        "stream",
        "-c",
        "fast",
        "--no-sync",
    ];
    standby.run("pg_basebackup", &words);
    standby.start();
    primary.settings("synchronous_standby_names = '*'\n");
    primary.sql("SELECT pg_reload_conf()");
    until("the standby is synchronous", PATIENCE, || {
        (primary.sql("SELECT sync_state FROM pg_stat_replication") == "sync").then_some(())
    });

    let socket = scratch.dir().join("run/ctld.sock");
    let config = scratch.dir().join("ctld.toml");
    std::fs::write(
        &config,
        format!(
            "state_dir = \"{dir}/ctld\"\nsocket = \"{}\"\ndatabase = \"postgres:///bc?host={},{}&user=postgres&target_session_attrs=read-write\"\n",
            socket.display(),
            // The standby first: it is found out and passed over.
            standby.socket.display(),
            primary.socket.display(),
            dir = scratch.dir().display(),
        ),
    )
    .unwrap();
    std::fs::set_permissions(&config, PermissionsExt::from_mode(0o600)).unwrap();
    let log = scratch.dir().join("log/ctld.log");
    let mut ctld = Daemon::start("ctld", &program("ctld"), &config, &log);
    let well = || Connection::open(&socket).ok()?.get::<Health>("/v1/check").ok();
    until("the controller answers", PATIENCE, || well().filter(|health| health.checks[0].ok).map(drop));

    let told = Arc::new(Told::default());
    let enough = Arc::new(AtomicBool::new(false));
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|_| {
            let (socket, told, enough) = (socket.clone(), told.clone(), enough.clone());
            std::thread::spawn(move || submit_on(&socket, &told, &enough))
        })
        .collect();
    let count = || told.acknowledged.lock().unwrap().len();
    until("jobs are acknowledged", PATIENCE, || (count() >= 200).then_some(()));

    primary.kill();
    until("somebody is told to try again", PATIENCE, || (told.refused() > 0).then_some(()));
    let before = count();
    standby.run("pg_ctl", &["-D", text(&standby.data), "-w", "promote"]);
    let promoted = Instant::now();
    until("jobs are acknowledged again", PATIENCE, || (count() >= before + 20).then_some(()));
    let back = promoted.elapsed();
    until("many are", PATIENCE, || (count() >= before + 200).then_some(()));
    enough.store(true, Ordering::Relaxed);
    for submitter in submitters {
        submitter.join().unwrap();
    }
    assert!(ctld.running(), "{}", ctld.log_tail());

    // Against the database itself, not through what is tried.
    let mut stored: HashMap<String, Vec<i64>> = HashMap::new();
    for line in standby.sql("SELECT key, job_id FROM idempotency_keys").lines() {
        let (key, id) = line.split_once('|').unwrap();
        stored.entry(key.to_owned()).or_default().push(id.parse().unwrap());
    }
    let acknowledged = told.acknowledged.lock().unwrap();
    for (key, id) in acknowledged.iter() {
        assert_eq!(stored.get(key), Some(&vec![*id]), "what was acknowledged under {key}");
    }
    let jobs: usize = standby.sql("SELECT count(*) FROM jobs").parse().unwrap();
    assert_eq!(
        (jobs, stored.len()),
        (acknowledged.len(), acknowledged.len()),
        "jobs that nobody was told of, or twice"
    );
    let slowest = *told.slowest.lock().unwrap();
    assert!(slowest < ANSWERED_WITHIN, "an answer took {slowest:?}");
    let audit: Audit = Connection::open(&socket).unwrap().get("/v1/audit").unwrap();
    assert!(audit.ok, "{audit:?}");
    println!(
        "{} acknowledged, {before} before; back {back:?} after the promotion; slowest answer {slowest:?}, {} refused, {} unknown",
        acknowledged.len(),
        told.refused.load(Ordering::Relaxed),
        told.unknown.load(Ordering::Relaxed)
    );

    // The old primary comes back as it was, takes writes, and is all there is: it lacks what was acknowledged since, and is not used.
    primary.settings("synchronous_standby_names = ''\n");
    primary.start();
    assert_eq!(primary.sql("SELECT pg_is_in_recovery()"), "f");
    let left_behind = primary.sql("SELECT count(*) FROM jobs");
    standby.kill();
    match Connection::open(&socket).unwrap().post::<Submitted>("/v1/jobs", &small_job("true", Path::new("/")))
    {
        Err(Refusal::Api(_, error)) => assert!(error.retryable, "{error:?}"),
        other => panic!("answered {other:?}"),
    }
    assert_eq!(primary.sql("SELECT count(*) FROM jobs"), left_behind);
}
