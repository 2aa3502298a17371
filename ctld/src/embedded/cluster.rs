//! Making the database cluster, and its configuration files.
//!
//! A cluster is made in `data.new/`, with ctld's role and database already in it, and renamed to `data/` when it is whole and
//! on disk: a run that was cut short leaves only a `data.new/`, which the next run throws away. The configuration files
//! are ctld's, written anew before each start; an administrator's own settings go to `data/local.conf`, read last.

use super::binaries::Binaries;
use super::layout::{Layout, ServerUser, file};
use super::{DATABASE, EmbeddedError, ROLE};
use nix::unistd::syncfs;
use std::fs::File;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// How much of a failed program's output an error carries.
const OUTPUT_SHOWN: usize = 2000;

/// Makes the cluster when `data/` is missing or empty.
pub(super) async fn ensure_made(
    layout: &Layout,
    binaries: &Binaries,
    user: &ServerUser,
) -> Result<(), EmbeddedError> {
    if layout.data_version()?.is_some() {
        return Ok(());
    }
    if layout.data_new.exists() {
        tracing::warn!(dir = %layout.data_new.display(), "throwing away a database cluster that was not finished");
        std::fs::remove_dir_all(&layout.data_new)
            .map_err(|source| file("remove directory", &layout.data_new, source))?;
    }
    tracing::info!(
        dir = %layout.data.display(),
        postgres.version = binaries.major,
        postgres.user = %user.name,
        "making the database cluster"
    );
    initdb(layout, binaries, user).await?;
    make_database(layout, binaries, user).await?;
    sync_file_system(layout).await?;
    std::fs::rename(&layout.data_new, &layout.data)
        .map_err(|source| file("rename", &layout.data_new, source))?;
    File::open(&layout.dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|source| file("sync directory", &layout.dir, source))
}

/// The programs are told to sync nothing: one call here does it for all of their thousand files, in a third of the time.
async fn sync_file_system(layout: &Layout) -> Result<(), EmbeddedError> {
    let dir = layout.data_new.clone();
    let synced = tokio::task::spawn_blocking(move || File::open(dir).and_then(|dir| Ok(syncfs(&dir)?)));
    let synced = synced.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    synced.map_err(|source| file("sync", &layout.data_new, source))
}

/// Writes `postgresql.conf`, `pg_hba.conf` and `pg_ident.conf`.
pub(super) fn write_configuration(layout: &Layout, user: &ServerUser) -> Result<(), EmbeddedError> {
    write_file(&layout.data.join("postgresql.conf"), &settings(layout, machine_memory_mib()), user)?;
    write_file(&layout.data.join("pg_hba.conf"), HBA, user)?;
    write_file(&layout.data.join("pg_ident.conf"), &ident(user), user)
}

/// A program of PostgreSQL, run as the server's user with an environment of its own.
pub(super) fn program(path: &Path, user: &ServerUser) -> Command {
    let mut command = std::process::Command::new(path);
    command.env_clear().env("LC_ALL", "C.UTF-8").env("TZ", "UTC").current_dir("/").stdin(Stdio::null());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    if user.switch {
        // As root this also drops the supplementary groups.
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command.into()
}

async fn initdb(layout: &Layout, binaries: &Binaries, user: &ServerUser) -> Result<(), EmbeddedError> {
    let output = program(&binaries.initdb(), user)
        .args(["--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--auth=reject"])
        .args(["--data-checksums", "--no-sync", "--no-instructions", "--pgdata"])
        .arg(&layout.data_new)
        .output()
        .await
        .map_err(|source| file("run", &binaries.initdb(), source))?;
    succeeded(layout, &output)
}

/// The role and the database, made by a server without clients: a cluster that can be connected to has both.
async fn make_database(layout: &Layout, binaries: &Binaries, user: &ServerUser) -> Result<(), EmbeddedError> {
    let postgres = binaries.postgres();
    let ran = |source| file("run", &postgres, source);
    let mut child = program(&postgres, user)
        .args(["--single", "-c", "exit_on_error=true", "-c", "fsync=off", "-c", "log_checkpoints=off", "-D"])
        .arg(&layout.data_new)
        .arg("postgres")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(ran)?;
    let statements = format!("CREATE ROLE {ROLE} LOGIN CREATEDB\nCREATE DATABASE {DATABASE} OWNER {ROLE}\n");
    let mut stdin = child.stdin.take().expect("stdin was asked for as a pipe");
    // A server that has already failed closes the pipe; its exit status and words below say why.
    let written = stdin.write_all(statements.as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await.map_err(ran)?;
    succeeded(layout, &output)?;
    written.map_err(ran)
}

fn succeeded(layout: &Layout, output: &Output) -> Result<(), EmbeddedError> {
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let said = String::from_utf8_lossy(&said);
    let from = said.char_indices().rev().nth(OUTPUT_SHOWN).map_or(0, |(at, _)| at);
    Err(EmbeddedError::Initdb {
        dir: layout.data_new.clone(),
        status: output.status.to_string(),
        output: said[from..].trim().to_owned(),
    })
}

/// Whole or not at all: a server may be started from these files at any moment.
fn write_file(path: &Path, text: &str, user: &ServerUser) -> Result<(), EmbeddedError> {
    if std::fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let new = path.with_extension("new");
    let write = || {
        let mut open =
            std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        std::io::Write::write_all(&mut open, text.as_bytes())?;
        fchown(&open, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        open.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().map_err(|source| file("write", path, source))
}

/// Who may connect is decided by the kernel's word on who the peer is. There is no password and no network.
const HBA: &str = "\
# Written by ctld. Peer credentials only: see pg_ident.conf.
local all         all peer map=better_compute
local replication all peer map=better_compute
";

fn ident(user: &ServerUser) -> String {
    let mut text =
        String::from("# Written by ctld. Operating system users, and the database roles they may take.\n");
    let mut names = vec![user.name.as_str()];
    if user.name != "root" {
        names.push("root");
    }
    for name in names {
        for role in [ROLE, "postgres"] {
            text.push_str(&format!("better_compute \"{name}\" {role}\n"));
        }
    }
    text
}

/// Sized for a controller that shares its machine; durable, whatever that costs.
fn settings(layout: &Layout, memory_mib: u64) -> String {
    // An eighth leaves room for jobs on a one-machine cluster; the book and the queue fit in far less than the most.
    let buffers_mib = (memory_mib / 8).clamp(64, 1024);
    let cache_mib = (memory_mib / 2).max(128);
    format!(
        "\
# Written by ctld before each start of the server. Your own settings go to local.conf beside this file.
listen_addresses = ''
port = {port}
unix_socket_directories = {run}
unix_socket_permissions = 0700
max_connections = 100

shared_buffers = {buffers_mib}MB
effective_cache_size = {cache_mib}MB
work_mem = 8MB
maintenance_work_mem = 64MB
huge_pages = off
dynamic_shared_memory_type = posix

# What was acknowledged is on disk.
fsync = on
synchronous_commit = on
full_page_writes = on
# Bounds the log that a restart after a crash replays.
max_wal_size = 1GB
min_wal_size = 256MB
wal_buffers = 16MB
checkpoint_timeout = 5min
checkpoint_completion_target = 0.9

# Many short statements: compiling them or spreading them over workers costs more than it gives.
jit = off
max_parallel_workers_per_gather = 0
random_page_cost = 1.1

# The queue's tables are small and change all the time.
autovacuum = on
autovacuum_naptime = 10s
autovacuum_vacuum_scale_factor = 0.05
autovacuum_vacuum_threshold = 500
autovacuum_analyze_scale_factor = 0.05
autovacuum_analyze_threshold = 500
autovacuum_vacuum_cost_limit = 2000

# A week of logs, one file a weekday.
logging_collector = on
log_directory = {log}
log_filename = 'postgresql-%a.log'
log_file_mode = 0600
log_rotation_age = 1d
log_rotation_size = 0
log_truncate_on_rotation = on
log_line_prefix = '%m [%p] %a '
log_lock_waits = on
log_min_duration_statement = 2s
timezone = 'UTC'
log_timezone = 'UTC'
lc_messages = 'C'

include_if_exists = 'local.conf'
",
        port = super::layout::PORT,
        run = quoted(&list_element(&layout.run.to_string_lossy())),
        log = quoted(&layout.log.to_string_lossy()),
    )
}

/// `unix_socket_directories` is a list: a name with a comma or a space in it is one element only in double quotes.
fn list_element(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

fn machine_memory_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    memory_total_mib(&text).unwrap_or(1024)
}

fn memory_total_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}
