//! The cluster's private database server, when nobody else is left to stop it.
//!
//! ctld stops its database when it is told to stop. A ctld that was killed cannot; then the server, which outlives it on
//! purpose, is stopped from here. It is recognised by its program and by the data directory it works in.

use super::daemon::Process;
use super::place::Place;
use crate::fail::Fail;
use std::path::Path;
use std::time::Duration;

/// A fast shutdown writes a checkpoint.
const STOP_WITHIN: Duration = Duration::from_secs(60);

/// Stops the server if it runs; says whether it did.
pub(super) async fn stop(place: &Place) -> Result<bool, Fail> {
    let Some(server) = running(place) else { return Ok(false) };
    let told = server.signal(libc::SIGINT);
    told.map_err(|e| {
        Fail::here(format!("cannot stop the database (pid {}): {}", server.pid, crate::text::os_error(&e)))
    })?;
    if server.gone_within(STOP_WITHIN).await {
        return Ok(true);
    }
    Err(Fail::here(format!(
        "the database (pid {}) is still there after {} s",
        server.pid,
        STOP_WITHIN.as_secs()
    ))
    .hint(format!("see its log in {}", place.ctld_state().join("postgres/log").display())))
}

fn running(place: &Place) -> Option<Process> {
    let data = place.database_data();
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let process = Process::open(text.lines().next()?.trim().parse().ok()?)?;
    let proc = Path::new("/proc").join(process.pid.to_string());
    let program_fits = std::fs::read_link(proc.join("exe"))
        .is_ok_and(|exe| exe.file_name().is_some_and(|name| name.to_string_lossy().starts_with("postgres")));
    let directory_fits = std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd == data);
    (!process.gone() && program_fits && directory_fits).then_some(process)
}
