//! A whole cluster of a test's own: ctld with its PostgreSQL, node daemons, and somebody's hands on the commands.
//!
//! The daemons are the test's children, so that killing them is aimed at nobody else; configuration is written here. (Clusters made
//! by `bctl up` are the subject of `tests/up.rs`.) Dropping a cluster ends everything of it; a test that fails first shows the logs.

use crate::commands::{self, Ran};
use crate::daemon::Daemon;
use crate::groups;
use crate::http::{Connection, Refusal};
use crate::processes;
use crate::programs::{self, program};
use crate::scratch::Scratch;
use crate::template;
use crate::until::{SOON, becomes, until};
use crate::users::User;
use proto::State;
use proto::api::{Audit, Connection as NodeConnection, Health, Job, JobList, Node, NodeList};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// A first start makes a database; a loaded machine takes its time.
const READY_WITHIN: Duration = Duration::from_secs(120);
const STOPS_WITHIN: Duration = Duration::from_secs(60);

/// One node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// CPUs it says it has.
    pub cpus: u32,
    /// Memory it says it has, MiB.
    pub mem_mib: u64,
    /// GPUs to declare: `a100-80gb:2`.
    pub gpus: Vec<String>,
    /// The most processes of a job.
    pub pids_max: u32,
}

impl NodeOptions {
    /// A node of 16 CPUs, 16 GiB and two GPUs in the pool `main`.
    pub fn named(name: &str) -> NodeOptions {
        NodeOptions {
            name: name.to_owned(),
            pool: "main".into(),
            cpus: 16,
            mem_mib: 16 << 10,
            gpus: vec!["a100-80gb:2".into()],
            pids_max: 1000,
        }
    }
}

/// What cluster to make.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The nodes.
    pub nodes: Vec<NodeOptions>,
    /// Further controllers over the first one's database.
    pub further_ctlds: usize,
    /// Seconds between SIGTERM and SIGKILL.
    pub kill_grace_s: u64,
    /// Further lines of `ctld.toml`; tables such as `[pools.x]` last.
    pub ctld: String,
    /// Let ctld make its database instead of copying one.
    pub fresh_database: bool,
    /// Settings of the database's own (`local.conf`), for a copied one.
    pub database: String,
    /// The log filter of the daemons.
    pub log: String,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            nodes: vec![NodeOptions::named("n1")],
            further_ctlds: 0,
            kill_grace_s: 2,
            ctld: String::new(),
            fresh_database: false,
            database: String::new(),
            log: "info".into(),
        }
    }
}

/// A running cluster.
pub struct Cluster {
    options: ClusterOptions,
    ctld: Option<Daemon>,
    further: Vec<Option<Daemon>>,
    nodes: Vec<Option<Daemon>>,
    commands: PathBuf,
    /// Last, so that the daemons are dropped before their directory is cleared.
    scratch: Scratch,
}

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster::start(ClusterOptions::default())
    }
}

impl Cluster {
    /// A cluster of one node, [`NodeOptions::named`] `n1`.
    pub fn one_node() -> Cluster {
        Cluster::default()
    }

    /// Starts it and waits until every node is connected.
    pub fn start(options: ClusterOptions) -> Cluster {
        let mut cluster = Cluster::without_nodes(options);
        for index in 0..cluster.options.nodes.len() {
            cluster.start_node(index);
        }
        cluster.nodes_connected();
        cluster
    }

    /// Starts the controller only, and waits until it answers.
    pub fn without_nodes(options: ClusterOptions) -> Cluster {
        let scratch = Scratch::new();
        for name in ["run", "log", "nodes"] {
            scratch.make_dir(name, 0o755);
        }
        if !options.fresh_database {
            let state = scratch.dir().join("ctld");
            template::copy_state(&state);
            std::fs::write(state.join("postgres/data/local.conf"), &options.database)
                .expect("a copy can be written");
        }
        let commands = programs::for_users(&scratch);
        let nodes = options.nodes.iter().map(|_| None).collect();
        let further = (0..options.further_ctlds).map(|_| None).collect();
        let mut cluster = Cluster { options, ctld: None, further, nodes, commands, scratch };
        cluster.configure();
        cluster.start_ctld();
        cluster.ready();
        for index in 0..cluster.options.further_ctlds {
            cluster.configure_further(index);
            cluster.start_further(index);
        }
        cluster
    }

    /// Configures another controller over the first one's database.
    fn configure_further(&self, index: usize) {
        let options = &self.options;
        let text = format!(
            "database = \"{}\"\nstate_dir = \"{}\"\nsocket = \"{}\"\nkill_grace_s = {}\nlog = \"{}\"\n{}",
            self.database_url(),
            self.dir().join(format!("ctld{}", index + 2)).display(),
            self.further_socket(index).display(),
            options.kill_grace_s,
            options.log,
            options.ctld
        );
        std::fs::write(self.dir().join(format!("ctld{}.toml", index + 2)), text)
            .expect("our own directory can be written");
    }

    /// Starts a further controller and waits until it answers.
    pub fn start_further(&mut self, index: usize) {
        let name = format!("ctld{}", index + 2);
        let (config, log) =
            (self.dir().join(format!("{name}.toml")), self.dir().join(format!("log/{name}.log")));
        let mut daemon = Daemon::start(&name, &program("ctld"), &config, &log);
        let socket = self.further_socket(index);
        let ready =
            becomes(READY_WITHIN, || health(&socket).is_some_and(|h| answers(&h)) || !daemon.running());
        assert!(ready && daemon.running(), "{name} does not start:\n{}", daemon.log_tail());
        self.further[index] = Some(daemon);
    }

    /// `kill -9` of a further controller.
    pub fn kill_further(&mut self, index: usize) {
        if let Some(mut daemon) = self.further[index].take() {
            daemon.kill();
        }
    }

    /// A further controller's process id.
    pub fn further_pid(&self, index: usize) -> i32 {
        self.further[index].as_ref().expect("the controller runs").pid()
    }

    /// The socket of a further controller.
    pub fn further_socket(&self, index: usize) -> PathBuf {
        self.dir().join(format!("run/ctld{}.sock", index + 2))
    }

    /// Every controller's socket.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let further = (0..self.options.further_ctlds).map(|index| self.further_socket(index));
        std::iter::once(self.socket()).chain(further).collect()
    }

    /// Where the database is, by whichever controller answers.
    pub fn database_url(&self) -> String {
        let found = self.sockets().iter().find_map(|socket| health(socket)?.database);
        found.expect("root is told the database by a controller").url
    }

    fn configure(&self) {
        let dir = self.dir().display();
        let options = &self.options;
        let ctld = format!(
            "state_dir = \"{dir}/ctld\"\nsocket = \"{}\"\nkill_grace_s = {}\nlog = \"{}\"\n{}",
            self.socket().display(),
            options.kill_grace_s,
            options.log,
            options.ctld
        );
        std::fs::write(self.dir().join("ctld.toml"), ctld).expect("our own directory can be written");
        for node in &options.nodes {
            let name = &node.name;
            let mut text = format!("node = \"{name}\"\npool = \"{}\"\n", node.pool);
            let gpus = node.gpus.iter().map(|gpu| format!("\"{gpu}\"")).collect::<Vec<_>>().join(", ");
            let _ = write!(
                text,
                "controller = [{}]\nstate_dir = \"{dir}/nodes/{name}\"\ncgroup_base = \"{}\"\ncpus = {}\nmem = {}\n\
                 gpus = [{gpus}]\nroot_jobs = \"allow\"\npids_max = {}\nlog = \"{}\"\n",
                self.sockets()
                    .iter()
                    .map(|socket| format!("\"unix://{}\"", socket.display()))
                    .collect::<Vec<_>>()
                    .join(", "),
                self.base(),
                node.cpus,
                node.mem_mib,
                node.pids_max,
                options.log
            );
            std::fs::write(self.dir().join(format!("{name}.toml")), text)
                .expect("our own directory can be written");
        }
    }

    // ---- where things are

    /// Everything of this cluster's is below it.
    pub fn dir(&self) -> &Path {
        self.scratch.dir()
    }

    /// The name of its control groups.
    pub fn base(&self) -> &str {
        self.scratch.name()
    }

    /// The API's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir().join("run/ctld.sock")
    }

    /// The API's address; with several controllers, all of theirs.
    pub fn server(&self) -> String {
        let sockets = self.sockets();
        let addresses: Vec<String> = sockets.iter().map(|s| format!("unix://{}", s.display())).collect();
        addresses.join(",")
    }

    /// The directory of the commands, for scripts that call them.
    pub fn commands(&self) -> &Path {
        &self.commands
    }

    /// A directory that is the user's own, where commands of theirs are run.
    pub fn home(&self, user: &User) -> PathBuf {
        let home = self.dir().join(&user.name);
        if !home.exists() {
            std::fs::create_dir(&home).expect("our own directory can be written");
            std::os::unix::fs::chown(&home, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
                .expect("root can give a directory away");
            std::fs::set_permissions(&home, PermissionsExt::from_mode(0o755)).expect("root can set a mode");
        }
        home
    }

    /// A file in the user's directory.
    pub fn read(&self, user: &User, name: &str) -> String {
        let path = self.home(user).join(name);
        std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
    }

    /// Puts a file into the user's directory and gives its path.
    pub fn write(&self, user: &User, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.home(user).join(name);
        std::fs::write(&path, text).expect("our own directory can be written");
        std::os::unix::fs::chown(&path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .expect("root can give a file away");
        path
    }

    /// What the controller's audit finds; `None` if it does not answer.
    pub fn audit(&self) -> Option<Audit> {
        Connection::open(&self.socket()).ok()?.get("/v1/audit").ok()
    }

    // ---- daemons

    /// Starts the controller; [`Cluster::ready`] waits for it.
    pub fn start_ctld(&mut self) {
        let daemon = Daemon::start(
            "ctld",
            &program("ctld"),
            &self.dir().join("ctld.toml"),
            &self.dir().join("log/ctld.log"),
        );
        self.ctld = Some(daemon);
    }

    /// Waits until the controller answers.
    pub fn ready(&mut self) {
        let socket = self.socket();
        let daemon = self.ctld.as_mut().expect("the controller was started");
        let ready = becomes(READY_WITHIN, || {
            health(&socket).is_some_and(|health| answers(&health)) || !daemon.running()
        });
        assert!(ready && daemon.running(), "the controller does not start:\n{}", daemon.log_tail());
    }

    /// Starts a node's daemon.
    pub fn start_node(&mut self, index: usize) {
        let name = self.options.nodes[index].name.clone();
        let (config, log) =
            (self.dir().join(format!("{name}.toml")), self.dir().join(format!("log/{name}.log")));
        self.nodes[index] = Some(Daemon::start(&name, &program("noded"), &config, &log));
    }

    /// Waits until every started node is connected.
    pub fn nodes_connected(&mut self) {
        let want: Vec<String> = self.nodes.iter().flatten().map(|daemon| daemon.name().to_owned()).collect();
        let dead =
            |nodes: &mut Vec<Option<Daemon>>| nodes.iter_mut().flatten().any(|daemon| !daemon.running());
        let socket = self.socket();
        let nodes = &mut self.nodes;
        let connected = becomes(READY_WITHIN, || {
            let Some(list) =
                Connection::open(&socket).ok().and_then(|mut api| api.get::<NodeList>("/v1/nodes").ok())
            else {
                return false;
            };
            let is_up = |name: &String| {
                list.nodes
                    .iter()
                    .any(|node| node.name == *name && node.connection == NodeConnection::Connected)
            };
            want.iter().all(is_up) || dead(nodes)
        });
        assert!(connected && !dead(&mut self.nodes), "not every node of {want:?} connects");
    }

    /// The controller's process id.
    pub fn ctld_pid(&self) -> i32 {
        self.ctld.as_ref().expect("the controller runs").pid()
    }

    /// A node daemon's process id.
    pub fn node_pid(&self, index: usize) -> i32 {
        self.nodes[index].as_ref().expect("the node's daemon runs").pid()
    }

    /// `kill -9` of the controller.
    pub fn kill_ctld(&mut self) {
        if let Some(mut daemon) = self.ctld.take() {
            daemon.kill();
        }
    }

    /// `kill -9` of a node's daemon.
    pub fn kill_node(&mut self, index: usize) {
        if let Some(mut daemon) = self.nodes[index].take() {
            daemon.kill();
        }
    }

    /// SIGTERM for the controller, and its exit status.
    pub fn stop_ctld(&mut self) -> ExitStatus {
        self.ctld.take().expect("the controller runs").terminate(STOPS_WITHIN)
    }

    /// SIGTERM for a node's daemon, and its exit status.
    pub fn stop_node(&mut self, index: usize) -> ExitStatus {
        self.nodes[index].take().expect("the node's daemon runs").terminate(STOPS_WITHIN)
    }

    /// The embedded PostgreSQL's process id.
    pub fn postmaster(&self) -> Option<i32> {
        processes::postmaster(&self.dir().join("ctld"))
    }

    // ---- commands

    /// A command of the user's, in their directory, with `BC_SERVER` set.
    pub fn command(&self, user: &User, name: &str) -> Command {
        let mut command = commands::command(user, &self.commands.join(name), &self.home(user));
        command.env("BC_SERVER", self.server());
        command
    }

    /// Runs a command as the user.
    #[track_caller]
    pub fn run(&self, user: &User, name: &str, args: &[&str]) -> Ran {
        commands::run(self.command(user, name).args(args), b"")
    }

    /// Runs `bsub` with this script on its standard input.
    #[track_caller]
    pub fn bsub(&self, user: &User, args: &[&str], script: &str) -> Ran {
        commands::run(self.command(user, "bsub").args(args), script.as_bytes())
    }

    /// Submits a script, which must be accepted, and gives its id.
    #[track_caller]
    pub fn submit(&self, user: &User, args: &[&str], script: &str) -> i64 {
        let script =
            if script.starts_with("#!") { script.to_owned() } else { format!("#!/bin/bash\n{script}\n") };
        let mut all = vec!["--parsable"];
        all.extend(args);
        let ran = self.bsub(user, &all, &script);
        let id = ran.ok().trim();
        id.parse().unwrap_or_else(|_| panic!("`{}` printed {id:?} for an id", ran.line))
    }

    /// Runs a shell script of the user's with the commands in its PATH.
    #[track_caller]
    pub fn shell(&self, user: &User, script: &str) -> Ran {
        commands::run(self.bash(user).args(["-c", script]), b"")
    }

    /// Starts one, to be ended with a signal.
    #[track_caller]
    pub fn start_shell(&self, user: &User, script: &str) -> commands::Running {
        commands::Running::start(self.bash(user).args(["-c", script]), b"")
    }

    fn bash(&self, user: &User) -> Command {
        let mut command = commands::command(user, Path::new("/bin/bash"), &self.home(user));
        command.env("BC_SERVER", self.server());
        command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", self.commands.display()));
        command
    }

    // ---- what the controller says

    /// A new connection to the API, as root.
    #[track_caller]
    pub fn api(&self) -> Connection {
        Connection::open(&self.socket()).expect("the controller listens")
    }

    /// A new connection to the API, as this user.
    #[track_caller]
    pub fn api_as(&self, user: &User) -> Connection {
        Connection::open_as(&self.socket(), user).expect("the controller listens")
    }

    /// Everything about a job: one entry, or an array's entries.
    #[track_caller]
    pub fn jobs(&self, id: i64) -> Vec<Job> {
        let list: Result<JobList, Refusal> = self.api().get(&format!("/v1/jobs/{id}"));
        list.unwrap_or_else(|refusal| panic!("job {id}: {refusal:?}")).jobs
    }

    /// A job that is no array.
    #[track_caller]
    pub fn job(&self, id: i64) -> Job {
        let mut jobs = self.jobs(id);
        assert_eq!(jobs.len(), 1, "job {id} has {} entries", jobs.len());
        jobs.remove(0)
    }

    /// Waits until a job is in this state.
    #[track_caller]
    pub fn reaches(&self, id: i64, state: State) -> Job {
        let mut last = None;
        let reached = becomes(SOON, || {
            let job = self.job(id);
            let there = job.state == state;
            let past = job.state.terminal();
            last = Some(job);
            there || past
        });
        let job = last.expect("it was looked at");
        assert!(reached && job.state == state, "job {id} does not become {state}: {job:?}");
        job
    }

    /// Waits until a job, or every task of an array, has ended.
    #[track_caller]
    pub fn all_ended(&self, id: i64, within: Duration) -> Vec<Job> {
        until(&format!("the end of job {id}"), within, || {
            let path = format!("/v1/jobs/{id}/wait?timeout_s=5");
            // A controller that is away for a moment is asked again.
            let list: JobList = Connection::open(&self.socket()).ok()?.get(&path).ok()?;
            let ended = !list.jobs.is_empty() && list.jobs.iter().all(|job| job.state.terminal());
            ended.then_some(list.jobs)
        })
    }

    /// Waits until a job that is no array has ended.
    #[track_caller]
    pub fn ended(&self, id: i64) -> Job {
        self.all_ended(id, SOON);
        self.job(id)
    }

    /// A node.
    #[track_caller]
    pub fn node(&self, name: &str) -> Node {
        let list: Result<NodeList, Refusal> = self.api().get(&format!("/v1/nodes/{name}"));
        list.unwrap_or_else(|refusal| panic!("node {name}: {refusal:?}")).nodes.remove(0)
    }

    /// What a query gives, as `psql -At` prints it.
    #[track_caller]
    pub fn sql(&self, query: &str) -> String {
        self.psql(query, &[])
    }

    /// The same as the database's superuser.
    #[track_caller]
    pub fn sql_as_postgres(&self, query: &str) -> String {
        self.psql(query, &["-U", "postgres"])
    }

    #[track_caller]
    fn psql(&self, query: &str, options: &[&str]) -> String {
        let url = self.database_url();
        // A user in the URL would win over the option.
        let url =
            if options.is_empty() { url } else { url.split("&user=").next().unwrap_or(&url).to_owned() };
        let ran = Command::new("psql")
            .args(["-At", "-d", &url, "-c", query])
            .args(options)
            .output()
            .expect("psql can be run");
        assert!(ran.status.success(), "psql: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    }

    /// Waits until no process and no control group of any job is left.
    #[track_caller]
    pub fn nothing_left_of_jobs(&self) {
        let clean = becomes(SOON, || {
            groups::job_processes(self.base()).is_empty() && groups::job_groups(self.base()).is_empty()
        });
        let (left, kept) = (groups::job_processes(self.base()), groups::job_groups(self.base()));
        assert!(clean, "left of jobs: processes {left:?}, control groups {kept:?}");
    }
}

fn health(socket: &Path) -> Option<Health> {
    Connection::open(socket).ok()?.get("/v1/check").ok()
}

/// A controller with a database; nodes may be missing.
fn answers(health: &Health) -> bool {
    health.checks.iter().any(|check| check.name == "database" && check.ok)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let further = self.further.iter().flatten();
            for daemon in self.ctld.iter().chain(further).chain(self.nodes.iter().flatten()) {
                eprintln!("---- the end of {}'s log:\n{}", daemon.name(), daemon.log_tail());
            }
        }
        // Every end-to-end test ends with an audit, if its controller is still there to make one.
        let there = !std::thread::panicking() && self.ctld.as_mut().is_some_and(Daemon::running);
        let audit = if there { self.audit() } else { None };
        let controllers = self.further.iter_mut().flatten().chain(self.ctld.iter_mut());
        for daemon in self.nodes.iter_mut().flatten().chain(controllers) {
            daemon.kill();
        }
        if let Some(audit) = audit.filter(|audit| !audit.ok) {
            panic!("the audit is not empty: {:#?}", audit.invariants);
        }
    }
}
