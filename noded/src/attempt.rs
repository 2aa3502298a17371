//! The files of one attempt under the state directory, and who may write them.
//!
//! ```text
//! jobs/ID          the attempt's record: frames, appended by its shepherd only. Its write lock is the shepherd's life.
//! jobs/ID.orders   what noded wants of the shepherd: frames, appended by noded only
//! scripts/JOB-ID   the script, readable by its user alone, gone with the attempt
//! events           a FIFO: a shepherd writes its allocation's id when its record has grown
//! ```
//!
//! The lock is an open file description lock, taken by the launcher before it forks, so there is no moment at which an attempt has begun
//! and is not locked. It is inherited by the script's process until that execs, so a free lock says that every process is in the control group or
//! gone. From lock and record together every state can be told apart after any crash: see [`examine`]. Nothing here is synced: a record
//! need only outlive processes, since after a crash of the machine nothing of it runs any more; the end, which must outlive the machine, is
//! in the journal, and the shepherd syncs it where no noded is there to do so.

use crate::{frame, sys};
use proto::api::Usage;
use proto::session::EndCause;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The paths of a state directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDir(pub PathBuf);

impl StateDir {
    /// The record of an attempt.
    pub fn record(&self, id: i64) -> PathBuf {
        self.0.join("jobs").join(id.to_string())
    }

    /// The orders to its shepherd.
    pub fn orders(&self, id: i64) -> PathBuf {
        self.0.join("jobs").join(format!("{id}.orders"))
    }

    /// Its script. The job's name for people comes first, since this is the script's `$0`.
    pub fn script(&self, id: i64, job: &str) -> PathBuf {
        self.0.join("scripts").join(format!("job{job}-{id}"))
    }

    /// The shepherds' FIFO.
    pub fn events(&self) -> PathBuf {
        self.0.join("events")
    }

    /// The journal.
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    /// The attempts that have files, in no order.
    pub fn attempts(&self) -> io::Result<Vec<i64>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(self.0.join("jobs"))? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            ids.extend(name.strip_suffix(".orders").unwrap_or(&name).parse::<i64>().ok());
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Removes an attempt's files.
    pub fn forget(&self, id: i64) -> io::Result<()> {
        for path in [self.record(id), self.orders(id)] {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

/// One entry of an attempt's record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A shepherd has taken the attempt: it may have run from here on, and is never launched again.
    Claimed(Claim),
    /// The script runs.
    Started {
        /// Microseconds since boot.
        at_us: u64,
    },
    /// The script ended or was asked to, and there are processes left.
    Completing,
    /// It is over and clean.
    Ended(End),
}

/// Which process is the shepherd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its pid.
    pub pid: i32,
    /// Its start time: with pid and boot an identity.
    pub start_ticks: u64,
    /// The boot that it is of.
    pub boot_id: String,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// When it was clean, microseconds since boot.
    pub at_us: u64,
    /// When the script started.
    pub started_us: Option<u64>,
    /// Why.
    pub cause: EndCause,
    /// The script's exit status.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// For people.
    pub message: Option<String>,
    /// What it used.
    pub usage: Usage,
}

impl End {
    /// An end without exit status or usage.
    pub fn without_run(cause: EndCause, message: impl Into<String>) -> End {
        let (at_us, message) = (crate::clock::boottime_us(), Some(message.into()));
        End {
            at_us,
            started_us: None,
            cause,
            exit_code: None,
            signal: None,
            message,
            usage: Usage::default(),
        }
    }
}

/// What noded wants of a shepherd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// End it.
    Stop {
        /// Seconds between SIGTERM and SIGKILL.
        grace_s: u32,
        /// For the error file; empty for none.
        banner: String,
    },
    /// Signal it.
    Signal {
        /// The signal.
        signal: i32,
        /// To the script's own process only.
        script_only: bool,
    },
}

/// What an attempt's record says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The claim.
    pub claim: Option<Claim>,
    /// When the script started.
    pub started_us: Option<u64>,
    /// Whether it is being ended.
    pub completing: bool,
    /// Its end.
    pub end: Option<End>,
}

impl Record {
    fn read(bytes: &[u8]) -> Record {
        let mut record = Record::default();
        for payload in frame::decode_all(bytes).0 {
            match serde_json::from_slice(payload) {
                Ok(Entry::Claimed(claim)) => record.claim = Some(claim),
                Ok(Entry::Started { at_us }) => record.started_us = Some(at_us),
                Ok(Entry::Completing) => record.completing = true,
                Ok(Entry::Ended(end)) => record.end = Some(end),
                // Written by a newer version: what is not understood changes nothing.
                Err(_) => {}
            }
        }
        record
    }
}

/// Where an attempt stands, from its record and lock.
#[derive(Debug)]
pub struct Examined {
    /// What the record says.
    pub record: Record,
    /// Whether a shepherd (or its child before exec) holds it.
    pub held: bool,
}

/// Looks at an attempt. The lock is asked for before the record is read: free and no end is then truly no end.
pub fn examine(path: &Path) -> io::Result<Examined> {
    let mut file = match File::options().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Ok(Examined { record: Record::default(), held: false });
        }
        Err(e) => return Err(e),
    };
    let held = sys::is_locked(&file)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Examined { record: Record::read(&bytes), held })
}

/// Opens an attempt's record and takes its lock. `None`: another has it, or it was claimed before.
pub fn claim(path: &Path) -> io::Result<Option<File>> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if !sys::try_lock(&file)? {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if Record::read(&bytes) != Record::default() {
        return Ok(None);
    }
    // A torn first entry of a shepherd that died writing it: nothing had been started.
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(Some(file))
}

/// Appends a frame in one write. On an error (disk full) what was written of it is taken back.
pub fn append(file: &mut File, entry: &impl Serialize) -> io::Result<()> {
    let bytes = frame::encode(&serde_json::to_vec(entry)?);
    let end = file.seek(SeekFrom::End(0))?;
    let result = file.write_all(&bytes);
    if result.is_err() {
        file.set_len(end)?;
    }
    result
}

/// Adds an order for a shepherd.
pub fn order(path: &Path, order: &Order) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = File::options().append(true).create(true).mode(0o600).open(path)?;
    append(&mut file, order)
}

/// The orders from `offset` on, and the offset after them.
pub fn orders(path: &Path, offset: usize) -> io::Result<(Vec<Order>, usize)> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), offset)),
        Err(e) => return Err(e),
    };
    let (frames, length) = frame::decode_all(bytes.get(offset..).unwrap_or_default());
    let orders = frames.into_iter().filter_map(|payload| serde_json::from_slice(payload).ok()).collect();
    Ok((orders, offset + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed() -> Entry {
        Entry::Claimed(Claim { pid: 1, start_ticks: 2, boot_id: "b".to_owned() })
    }

    #[test]
    fn an_attempt_is_claimed_once_and_its_lock_lasts_as_long_as_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        assert!(!examine(&path).unwrap().held, "no file is no attempt");
        let mut file = claim(&path).unwrap().expect("free");
        assert!(claim(&path).unwrap().is_none(), "held");
        append(&mut file, &claimed()).unwrap();
        assert!(examine(&path).unwrap().held);
        drop(file);
        let examined = examine(&path).unwrap();
        assert!(!examined.held && examined.record.claim.is_some() && examined.record.end.is_none());
        assert!(claim(&path).unwrap().is_none(), "free, but claimed before");
    }

    #[test]
    fn a_torn_claim_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        let whole = frame::encode(&serde_json::to_vec(&claimed()).unwrap());
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(examine(&path).unwrap().record, Record::default());
        assert!(claim(&path).unwrap().is_some());
    }

    #[test]
    fn orders_are_read_once_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7.orders");
        assert_eq!(orders(&path, 0).unwrap(), (vec![], 0));
        let (stop, signal) = (
            Order::Stop { grace_s: 3, banner: "CANCELLED by alice".to_owned() },
            Order::Signal { signal: 10, script_only: true },
        );
        order(&path, &signal).unwrap();
        let (first, offset) = orders(&path, 0).unwrap();
        assert_eq!(first, [signal]);
        order(&path, &stop).unwrap();
        assert_eq!(orders(&path, offset).unwrap().0, [stop]);
    }
}
