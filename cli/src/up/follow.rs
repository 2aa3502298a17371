//! `bctl up --foreground`: shows the daemons' logs and stops the cluster when it is told to, or when a part of it ends.

use super::daemon::Daemon;
use super::place::{Place, cannot};
use super::start::Started;
use super::stop::{self, Jobs};
use crate::fail::Fail;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Stays until SIGINT or SIGTERM, then stops the cluster; jobs run on. Fails when a daemon ends by itself.
pub(super) async fn until_stopped(place: &Place, started: Started) -> Result<ExitCode, Fail> {
    let listen = |kind| {
        signal(kind)
            .map_err(|e| Fail::here(format!("cannot wait for signals: {}", crate::text::os_error(&e))))
    };
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let daemons: Vec<Daemon> = started.nodes.into_iter().chain([started.ctld]).collect();
    let mut logs =
        daemons.iter().map(|daemon| Log::open(place, daemon.name())).collect::<Result<Vec<_>, _>>()?;
    let ended = loop {
        tokio::select! {
            _ = interrupt.recv() => break None,
            _ = terminate.recv() => break None,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        logs.iter_mut().for_each(Log::show);
        if let Some(dead) = daemons.iter().find(|daemon| daemon.gone()) {
            break Some(dead.name().to_owned());
        }
    };
    // A `bctl down` elsewhere holds this until it has removed the pid files.
    let _lock = place.lock().await?;
    let failure = match ended {
        Some(name) if place.pid_file(&name).exists() => Some(Daemon::failed(place, &name, "ended by itself")),
        _ => None,
    };
    stop::stop(place, Jobs::Keep).await?;
    logs.iter_mut().for_each(Log::show);
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// A log that is shown as it grows.
struct Log {
    name: String,
    file: File,
    /// A line whose end is not written yet.
    rest: Vec<u8>,
}

impl Log {
    fn open(place: &Place, name: &str) -> Result<Log, Fail> {
        let path = place.log(name);
        let mut file = File::open(&path).map_err(|e| cannot("open", &path, &e))?;
        file.seek(SeekFrom::End(0)).map_err(|e| cannot("read", &path, &e))?;
        Ok(Log { name: name.to_owned(), file, rest: Vec::new() })
    }

    /// Whole lines only; a stderr that cannot be written must not end the cluster.
    fn show(&mut self) {
        if self.file.read_to_end(&mut self.rest).is_err() {
            return;
        }
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return };
        let lines: Vec<u8> = self.rest.drain(..=end).collect();
        let mut stderr = std::io::stderr().lock();
        for line in String::from_utf8_lossy(&lines).lines() {
            let _ = writeln!(stderr, "{}: {line}", self.name);
        }
    }
}
