//! The node's durable memory: which assignments it has accepted, how they ended, which commands it has seen.
//!
//! One append-only file of frames, a frame per batch, one `fdatasync` per frame; the first frame holds the journal's random id. An assignment is
//! here before it is launched, an end is here before the attempt's files go, and both stay until the controller has
//! acknowledged the end. What is not here happened to nobody.
//!
//! A torn last frame (the machine died while it was written) is cut off at opening: nothing in it had been acted upon. An unsound frame
//! with sound ones after it is damage, and so is a file that does not begin with a header: noded then refuses to start and says what moving the file aside
//! means, since forgetting what runs here is a decision for people.
//!
//! `writer` is the thread that appends; this file is the format, and reading it back.

mod writer;

pub use writer::{Writer, Written};

use crate::attempt::End;
use crate::frame;
use proto::session::Assignment;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// How many ended allocations are remembered after they were acknowledged, so that a late assignment is known for what it is.
pub const RECENT_MAX: usize = 10_000;
/// How many commands are remembered.
pub const COMMANDS_MAX: usize = 1_000;

/// One entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The first one.
    Header {
        /// The journal's id.
        journal_id: String,
    },
    /// An assignment was accepted.
    Accepted(Box<Accepted>),
    /// An allocation ended.
    Ended {
        /// Which.
        id: i64,
        /// The boot that `end`'s times count from.
        boot_id: String,
        /// How.
        end: End,
    },
    /// The controller has recorded its end.
    Forgotten(Vec<i64>),
    /// A command was seen, and is about to be carried out.
    CommandSeen(String),
    /// It was carried out.
    CommandDone {
        /// Its idempotency key.
        key: String,
        /// What went wrong.
        error: Option<String>,
    },
}

/// An accepted assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// The boot in which.
    pub boot_id: String,
    /// When, microseconds since that boot.
    pub at_us: u64,
    /// What.
    pub assignment: Assignment,
}

/// What a journal remembers.
#[derive(Debug, Default)]
pub struct Memory {
    /// Its id.
    pub journal_id: String,
    /// Assignments whose end is not acknowledged.
    pub accepted: BTreeMap<i64, Accepted>,
    /// The ends among them, each with its boot id.
    pub ended: BTreeMap<i64, (String, End)>,
    /// Ended and acknowledged, the latest last.
    pub recent: VecDeque<i64>,
    /// Commands and their answers, the latest last. `None`: seen, and noded died before it could say what came of it.
    pub commands: VecDeque<(String, Option<Option<String>>)>,
}

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("journal {}: {}", path.display(), crate::sys::io_text(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is damaged.
    #[error(
        "journal {} is damaged at byte {at}: {what}; what runs on this node may be in it. To go on without it move the file aside: the node then gets a new memory, ends every job that it finds running and reports them lost",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: usize,
        /// How.
        what: String,
    },
}

/// The place of an entry's bytes in the file.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    length: u32,
}

/// Where the entries lie that a compaction must carry over.
#[derive(Debug, Default)]
struct Index {
    live: BTreeMap<i64, (Place, Option<Place>)>,
    recent: VecDeque<i64>,
    commands: VecDeque<(String, Option<Option<String>>)>,
}

impl Index {
    fn note(&mut self, entry: &Entry, place: Place) {
        match entry {
            Entry::Header { .. } => {}
            Entry::Accepted(accepted) => {
                self.live.insert(accepted.assignment.allocation_id, (place, None));
            }
            Entry::Ended { id, .. } => {
                if let Some(live) = self.live.get_mut(id) {
                    live.1 = Some(place);
                }
            }
            Entry::Forgotten(ids) => {
                for id in ids {
                    self.live.remove(id);
                    self.recent.push_back(*id);
                }
                self.recent.drain(..self.recent.len().saturating_sub(RECENT_MAX));
            }
            Entry::CommandSeen(key) => {
                self.commands.push_back((key.clone(), None));
                self.commands.drain(..self.commands.len().saturating_sub(COMMANDS_MAX));
            }
            Entry::CommandDone { key, error } => {
                if let Some(command) = self.commands.iter_mut().rev().find(|(seen, _)| seen == key) {
                    command.1 = Some(error.clone());
                }
            }
        }
    }
}

/// An open journal, for its writer.
pub struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
    journal_id: String,
    index: Index,
}

impl Journal {
    /// Opens the journal, making it if there is none, and reads what it remembers.
    pub fn open(path: &Path) -> Result<(Journal, Memory), JournalError> {
        let io = |source| JournalError::Io { path: path.to_owned(), source };
        let mut file = open_file(path).map_err(io)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let (frames, sound) = frame::decode_all(&bytes);
        let damaged =
            |at, what: &str| JournalError::Damaged { path: path.to_owned(), at, what: what.to_owned() };
        if sound < bytes.len() {
            if frame::any_within(&bytes[sound + 1..]) {
                return Err(damaged(sound, "an unsound entry is followed by sound ones"));
            }
            if frames.is_empty() && !frame::MAGIC.starts_with(&bytes[..bytes.len().min(4)]) {
                return Err(damaged(0, "it does not begin as a journal"));
            }
            file.set_len(sound as u64).map_err(io)?;
        }
        let mut journal = Journal {
            path: path.to_owned(),
            file,
            length: sound as u64,
            journal_id: String::new(),
            index: Index::default(),
        };
        let memory = journal.remember(&frames)?;
        if frames.is_empty() {
            journal.journal_id = uuid::Uuid::new_v4().to_string();
            let header = encode(&Entry::Header { journal_id: journal.journal_id.clone() }).map_err(io)?;
            journal.append(&[header]).map_err(io)?;
            sync_folder(path).map_err(io)?;
        }
        let journal_id = journal.journal_id.clone();
        Ok((journal, Memory { journal_id, ..memory }))
    }

    fn remember(&mut self, frames: &[&[u8]]) -> Result<Memory, JournalError> {
        let mut memory = Memory::default();
        let mut at = 0;
        for payload in frames {
            let damaged = |what: String| JournalError::Damaged { path: self.path.clone(), at, what };
            let entries =
                split_batch(payload).ok_or_else(|| damaged("a batch ends within an entry".to_owned()))?;
            for (within, bytes) in entries {
                let entry: Entry = serde_json::from_slice(bytes)
                    .map_err(|e| damaged(format!("an entry that this version does not know: {e}")))?;
                let offset = (at + frame::HEADER_BYTES + within) as u64;
                self.index.note(&entry, Place { offset, length: bytes.len() as u32 });
                match entry {
                    Entry::Header { journal_id } => self.journal_id = journal_id,
                    Entry::Accepted(accepted) => {
                        memory.accepted.insert(accepted.assignment.allocation_id, *accepted);
                    }
                    Entry::Ended { id, boot_id, end } => {
                        memory.ended.insert(id, (boot_id, end));
                    }
                    Entry::Forgotten(ids) => {
                        for id in ids {
                            memory.accepted.remove(&id);
                            memory.ended.remove(&id);
                        }
                    }
                    Entry::CommandSeen(_) | Entry::CommandDone { .. } => {}
                }
            }
            if self.journal_id.is_empty() {
                return Err(damaged("its first entry is no header".to_owned()));
            }
            at += frame::HEADER_BYTES + payload.len();
        }
        memory.recent = self.index.recent.clone();
        memory.commands = self.index.commands.clone();
        Ok(memory)
    }

    /// Appends entries as one batch and syncs it. On an error nothing of it is there.
    fn append(&mut self, entries: &[Vec<u8>]) -> io::Result<()> {
        let bytes = frame::encode(&join_batch(entries.iter().map(Vec::as_slice)));
        let written = self.file.seek(SeekFrom::Start(self.length)).and_then(|_| self.file.write_all(&bytes));
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn encode(entry: &Entry) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(entry)?)
}

fn join_batch<'a>(entries: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut batch = Vec::new();
    for entry in entries {
        batch.extend_from_slice(&(entry.len() as u32).to_le_bytes());
        batch.extend_from_slice(entry);
    }
    batch
}

/// The entries of a batch, each with its offset in it.
fn split_batch(batch: &[u8]) -> Option<Vec<(usize, &[u8])>> {
    let (mut entries, mut at) = (Vec::new(), 0);
    while at < batch.len() {
        let length = u32::from_le_bytes(batch.get(at..at + 4)?.try_into().ok()?) as usize;
        entries.push((at + 4, batch.get(at + 4..at.checked_add(4)?.checked_add(length)?)?));
        at += 4 + length;
    }
    Some(entries)
}

#[cfg(test)]
mod tests;
