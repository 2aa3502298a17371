//! The files of one attempt under the state directory, and who may write them.
//!
//! ```text
//! jobs/ID          the attempt's record: frames, appended by its shepherd only. Its write lock is the shepherd's life.
//! jobs/ID.orders   what noded wants of the shepherd: frames, appended by noded only, also before there is a shepherd
//! jobs/spare-ID    an empty record, for the next attempt
//! scripts/jobJOB-ID  the script, readable by its user alone, gone with the attempt; on a tmpfs where there is one: see `spool`
//! launcher.lock    locked by the launcher while it lives: there is one at a time
//! events           a FIFO: a shepherd writes its allocation's id when its record has grown
//! ```
//!
//! The lock is an open file description lock, taken by the launcher before it forks, so there is no moment at which an attempt has begun
//! and is not locked. It is inherited by the script's process until that execs, so a free lock says that every process is in the control group or
//! gone. From lock and record together every state can be told apart after any crash: see [`examine`]. Nothing here is synced: a record
//! need only outlive processes, since after a crash of the machine nothing of it runs any more; the end, which must outlive the machine, is
//! in the journal, and the shepherd syncs it where no noded is there to do so.
//!
//! Records are used again rather than removed and made: ext4 keeps off inodes that were freed in the last seconds, and to find
//! others cost more than everything else about a short job's files. Scripts never are: a user may keep one open.

use crate::{frame, sys};
use proto::api::Usage;
use proto::session::EndCause;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The most empty records that are kept.
const SPARES_MAX: usize = 1024;
/// What their names begin with.
const SPARE: &str = "spare-";

/// The paths of a state directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDir {
    /// The directory itself.
    pub root: PathBuf,
    /// Where scripts lie.
    pub scripts: PathBuf,
}

impl StateDir {
    /// The state directory at this path, with its scripts in it.
    pub fn at(root: &Path) -> StateDir {
        StateDir { root: root.to_owned(), scripts: root.join("scripts") }
    }

    /// An empty record, named for the attempt that used it before.
    pub fn spare(&self, id: i64) -> PathBuf {
        self.root.join("jobs").join(format!("{SPARE}{id}"))
    }

    /// The empty records that an earlier noded left; those over the most that are kept are removed.
    pub fn spares(&self) -> io::Result<Spares> {
        let spares = Spares::default();
        for entry in fs::read_dir(self.root.join("jobs"))? {
            let entry = entry?;
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_prefix(SPARE)?.parse::<i64>().ok());
            if let Some(id) = id
                && !spares.put(id)
            {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(spares)
    }

    /// The record of an attempt.
    pub fn record(&self, id: i64) -> PathBuf {
        self.root.join("jobs").join(id.to_string())
    }

    /// The orders to its shepherd.
    pub fn orders(&self, id: i64) -> PathBuf {
        self.root.join("jobs").join(format!("{id}.orders"))
    }

    /// Its script. The job's name for people comes first, since this is the script's `$0`.
    pub fn script(&self, id: i64, job: &str) -> PathBuf {
        self.scripts.join(format!("job{job}-{id}"))
    }

    /// The file whose lock is the launcher's life.
    pub fn launcher_lock(&self) -> PathBuf {
        self.root.join("launcher.lock")
    }

    /// The shepherds' FIFO.
    pub fn events(&self) -> PathBuf {
        self.root.join("events")
    }

    /// The journal.
    pub fn journal(&self) -> PathBuf {
        self.root.join("journal")
    }

    /// The attempts that have files, in no order.
    pub fn attempts(&self) -> io::Result<Vec<i64>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(self.root.join("jobs"))? {
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
        remove(&self.record(id))?;
        remove(&self.orders(id))
    }

    /// Removes an attempt's files, keeping its record, emptied, for another attempt.
    pub fn recycle(&self, id: i64, spares: &Spares) -> io::Result<()> {
        remove(&self.orders(id))?;
        let (record, spare) = (self.record(id), self.spare(id));
        match File::options().write(true).truncate(true).open(&record) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => drop(other?),
        }
        fs::rename(&record, &spare)?;
        if spares.put(id) { Ok(()) } else { fs::remove_file(spare) }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The empty records, by the attempts that used them. Shared by who empties and who uses them.
#[derive(Clone, Debug, Default)]
pub struct Spares(Arc<Mutex<VecDeque<i64>>>);

impl Spares {
    /// One of them, which is then no longer among them: the one that is longest out of use, since the shepherd of the latest may not
    /// have ended yet.
    pub fn take(&self) -> Option<i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// False: there are enough.
    fn put(&self, id: i64) -> bool {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = spares.len() < SPARES_MAX;
        if room {
            spares.push_back(id);
        }
        room
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
    /// Let it run for so long.
    Limit {
        /// Seconds from the script's start; `None` is unlimited.
        time_limit_s: Option<u64>,
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
///
/// `spare` is an empty record to use if there is none. It is locked before it gets its name, and left alone if its last shepherd, which may
/// take a moment to end, has it still.
pub fn claim(path: &Path, spare: Option<&Path>) -> io::Result<Option<File>> {
    if let Some(spare) = spare
        && !path.exists()
        && let Ok(file) = File::options().read(true).write(true).open(spare)
        && sys::try_lock(&file)?
    {
        file.set_len(0)?;
        if sys::rename_new(spare, path).is_ok() {
            return Ok(Some(file));
        }
    }
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
        let mut file = claim(&path, None).unwrap().expect("free");
        assert!(claim(&path, None).unwrap().is_none(), "held");
        append(&mut file, &claimed()).unwrap();
        assert!(examine(&path).unwrap().held);
        drop(file);
        let examined = examine(&path).unwrap();
        assert!(!examined.held && examined.record.claim.is_some() && examined.record.end.is_none());
        assert!(claim(&path, None).unwrap().is_none(), "free, but claimed before");
    }

    #[test]
    fn a_record_is_used_again_once_its_shepherd_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("jobs")).unwrap();
        let (state, spares) = (StateDir::at(dir.path()), Spares::default());
        let mut old = claim(&state.record(7), None).unwrap().unwrap();
        append(&mut old, &claimed()).unwrap();
        state.recycle(7, &spares).unwrap();
        let spare = state.spare(spares.take().unwrap());
        assert!(spares.take().is_none() && spare.exists());
        // Its shepherd has it still: another file is made.
        let mut new = claim(&state.record(8), Some(&spare)).unwrap().unwrap();
        append(&mut new, &claimed()).unwrap();
        assert!(spare.exists() && examine(&state.record(8)).unwrap().record.claim.is_some());
        drop(old);
        let _new = claim(&state.record(9), Some(&spare)).unwrap().unwrap();
        let examined = examine(&state.record(9)).unwrap();
        assert!(!spare.exists() && examined.held && examined.record == Record::default());
        // One that was claimed before is not replaced by a spare.
        drop(new);
        fs::write(&spare, "").unwrap();
        assert!(claim(&state.record(8), Some(&spare)).unwrap().is_none());
    }

    #[test]
    fn spares_of_an_earlier_noded_are_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("jobs")).unwrap();
        let state = StateDir::at(dir.path());
        for name in ["spare-3", "spare-x", "5", "6.orders"] {
            fs::write(dir.path().join("jobs").join(name), "").unwrap();
        }
        let spares = state.spares().unwrap();
        assert_eq!((spares.take(), spares.take()), (Some(3), None));
        assert_eq!(state.attempts().unwrap(), [5, 6]);
    }

    #[test]
    fn a_torn_claim_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        let whole = frame::encode(&serde_json::to_vec(&claimed()).unwrap());
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(examine(&path).unwrap().record, Record::default());
        assert!(claim(&path, None).unwrap().is_some());
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
        let limit = Order::Limit { time_limit_s: None };
        order(&path, &limit).unwrap();
        assert_eq!(orders(&path, offset).unwrap().0, [stop, limit]);
    }
}
