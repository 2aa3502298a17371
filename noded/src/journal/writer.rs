//! The thread that appends to the journal, many entries to a sync.
//!
//! Entries that arrive while one batch is being synced make the next one. An acceptance that cannot be written (disk full) is given back, and is
//! then not launched; everything else is kept in memory and tried again until it is written, so a full disk loses no end. The
//! attempt's files go here too, right after the sync that makes them superfluous.

use super::{
    Accepted, Entry, Index, Journal, Place, encode, join_batch, open_file, split_batch, sync_folder,
};
use crate::attempt::{End, Spares, StateDir};
use crate::frame;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most bytes of one batch, so that a frame stays far below what its length can say.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// A journal below this size is never compacted.
const COMPACT_BYTES_MIN: u64 = 16 << 20;
/// How long to wait before trying again what could not be written.
const RETRY: Duration = Duration::from_secs(1);

/// What has become of entries.
#[derive(Debug, Default, PartialEq)]
pub struct Written {
    /// Assignments that may be launched.
    pub accepted: Vec<i64>,
    /// Assignments that could not be written, and why.
    pub refused: Vec<(i64, String)>,
    /// Commands that may be carried out.
    pub commands: Vec<String>,
}

/// The handle to the thread.
pub struct Writer {
    entries: Option<Sender<Entry>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread. It calls `written` after each batch.
    pub fn start(
        journal: Journal,
        state_dir: StateDir,
        spares: Spares,
        written: impl Fn(Written) + Send + 'static,
    ) -> io::Result<Writer> {
        let (entries, queue) = channel();
        let mut work = Work { journal, state_dir, spares, kept: Vec::new(), compact_at: COMPACT_BYTES_MIN };
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || work.run(&queue, &written))?;
        Ok(Writer { entries: Some(entries), thread: Some(thread) })
    }

    /// Writes an acceptance; answered by [`Written`].
    pub fn accept(&self, accepted: Accepted) {
        self.send(Entry::Accepted(Box::new(accepted)));
    }

    /// Writes an end, then removes the attempt's files.
    pub fn end(&self, id: i64, boot_id: &str, end: End) {
        self.send(Entry::Ended { id, boot_id: boot_id.to_owned(), end });
    }

    /// Forgets allocations.
    pub fn forget(&self, ids: Vec<i64>) {
        self.send(Entry::Forgotten(ids));
    }

    /// Writes that a command was seen; answered by [`Written`].
    pub fn see_command(&self, key: String) {
        self.send(Entry::CommandSeen(key));
    }

    /// Writes what came of a command.
    pub fn answer_command(&self, key: String, error: Option<String>) {
        self.send(Entry::CommandDone { key, error });
    }

    fn send(&self, entry: Entry) {
        // The thread ends only after this handle's sender is dropped, or by a panic, which the next start recovers from.
        let sent = self.entries.as_ref().is_some_and(|entries| entries.send(entry).is_ok());
        assert!(sent, "the journal's thread is gone: nothing may go on without it");
    }
}

impl Drop for Writer {
    /// Waits until everything sent is written.
    fn drop(&mut self) {
        self.entries = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    journal: Journal,
    state_dir: StateDir,
    spares: Spares,
    kept: Vec<Entry>,
    compact_at: u64,
}

impl Work {
    fn run(&mut self, queue: &Receiver<Entry>, written: &impl Fn(Written)) {
        loop {
            let first = match self.kept.is_empty() {
                true => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => queue.recv_timeout(RETRY),
            };
            let last = matches!(first, Err(RecvTimeoutError::Disconnected));
            let mut batch = std::mem::take(&mut self.kept);
            batch.extend(first.into_iter().chain(queue.try_iter()));
            if !batch.is_empty() {
                self.write(batch, written);
            }
            if last {
                return;
            }
            if self.journal.length > self.compact_at {
                if let Err(error) = self.compact() {
                    tracing::warn!("the journal could not be compacted: {}", crate::sys::io_text(&error));
                }
                self.compact_at = (2 * self.journal.length).max(COMPACT_BYTES_MIN);
            }
        }
    }

    fn write(&mut self, batch: Vec<Entry>, written: &impl Fn(Written)) {
        let mut batch = batch.into_iter().peekable();
        while batch.peek().is_some() {
            let (mut entries, mut encoded, mut size) = (Vec::new(), Vec::new(), 0);
            while size < BATCH_BYTES_MAX
                && let Some(entry) = batch.next()
            {
                let bytes = encode(&entry).expect("entries are plain data");
                size += bytes.len();
                entries.push(entry);
                encoded.push(bytes);
            }
            let mut offset = self.journal.length + frame::HEADER_BYTES as u64;
            match self.journal.append(&encoded) {
                Ok(()) => {
                    for (entry, bytes) in entries.iter().zip(&encoded) {
                        offset += 4;
                        self.journal.index.note(entry, Place { offset, length: bytes.len() as u32 });
                        offset += bytes.len() as u64;
                    }
                    written(self.settle(entries));
                }
                Err(error) => written(self.give_back(entries, &error)),
            }
        }
    }

    fn settle(&self, entries: Vec<Entry>) -> Written {
        let mut done = Written::default();
        for entry in entries {
            match entry {
                Entry::Accepted(accepted) => done.accepted.push(accepted.assignment.allocation_id),
                Entry::CommandSeen(key) => done.commands.push(key),
                Entry::Ended { id, .. } => {
                    if let Err(error) = self.state_dir.recycle(id, &self.spares) {
                        tracing::warn!(allocation.id = id, "its files could not be removed: {error}");
                    }
                }
                Entry::Header { .. } | Entry::Forgotten(_) | Entry::CommandDone { .. } => {}
            }
        }
        done
    }

    fn give_back(&mut self, entries: Vec<Entry>, error: &io::Error) -> Written {
        let mut done = Written::default();
        let text = format!("the node's journal cannot be written: {}", crate::sys::io_text(error));
        tracing::error!("{text}");
        for entry in entries {
            match entry {
                Entry::Accepted(accepted) => {
                    done.refused.push((accepted.assignment.allocation_id, text.clone()))
                }
                other => self.kept.push(other),
            }
        }
        done
    }

    /// Writes what is still needed to a new file, which then takes the old one's place.
    fn compact(&mut self) -> io::Result<()> {
        let old = &self.journal;
        let path = old.path.with_extension("new");
        let mut file = open_file(&path)?;
        file.set_len(0)?;
        let mut index = Index::default();
        let mut length = 0;
        let mut write = |entries: Vec<Vec<u8>>| -> io::Result<()> {
            let batch = join_batch(entries.iter().map(Vec::as_slice));
            for (within, bytes) in split_batch(&batch).unwrap_or_default() {
                let offset = length + (frame::HEADER_BYTES + within) as u64;
                index.note(&serde_json::from_slice(bytes)?, Place { offset, length: bytes.len() as u32 });
            }
            let frame = frame::encode(&batch);
            length += frame.len() as u64;
            file.write_all(&frame)
        };
        let mut head = vec![encode(&Entry::Header { journal_id: old.journal_id.clone() })?];
        head.push(encode(&Entry::Forgotten(old.index.recent.iter().copied().collect()))?);
        for (key, answer) in &old.index.commands {
            head.push(encode(&Entry::CommandSeen(key.clone()))?);
            if let Some(error) = answer {
                head.push(encode(&Entry::CommandDone { key: key.clone(), error: error.clone() })?);
            }
        }
        write(head)?;
        for (accepted, ended) in old.index.live.values() {
            let read = |place: &Place| -> io::Result<Vec<u8>> {
                let mut bytes = vec![0; place.length as usize];
                old.file.read_exact_at(&mut bytes, place.offset)?;
                Ok(bytes)
            };
            write(
                [Some(accepted), ended.as_ref()]
                    .into_iter()
                    .flatten()
                    .map(read)
                    .collect::<io::Result<_>>()?,
            )?;
        }
        file.sync_all()?;
        std::fs::rename(&path, &old.path)?;
        sync_folder(&old.path)?;
        tracing::info!(from_bytes = old.length, to_bytes = length, "journal compacted");
        self.journal.file = file;
        self.journal.length = length;
        self.journal.index = index;
        Ok(())
    }
}

#[cfg(test)]
impl Work {
    pub(super) fn compacted(journal: Journal, state_dir: StateDir) -> io::Result<u64> {
        let mut work =
            Work { journal, state_dir, spares: Spares::default(), kept: Vec::new(), compact_at: 0 };
        work.compact()?;
        Ok(work.journal.length)
    }
}

#[cfg(test)]
pub(super) fn compact_now(journal: Journal, state_dir: StateDir) -> io::Result<u64> {
    Work::compacted(journal, state_dir)
}
