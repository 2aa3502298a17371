//! What survives in a journal, and what is refused.

use super::writer::compact_now;
use super::*;
use crate::attempt::{Spares, StateDir};
use proto::session::EndCause;
use std::sync::mpsc;

fn accepted(id: i64) -> Accepted {
    let assignment = serde_json::from_value(serde_json::json!({
        "allocation_id": id, "job_id": id, "task": null, "array": null, "attempt": 1, "runs_script": true, "name": "n",
        "user": "u", "uid": 1, "gid": 1, "tenant": "t", "account": null, "pool": "p", "script": "#!/bin/sh\n", "args": [],
        "env": {}, "chdir": "/", "output": null, "error": null, "input": null, "open_mode": "truncate", "umask": 18,
        "rlimits": {}, "cpus": 1, "mem_mib": 1, "gpus": [], "nodes": [], "ntasks": null, "cpus_per_task": null,
        "time_limit_s": null, "grace_s": 1, "warn": null, "submit_host": "", "submit_dir": "", "start_epoch_s": 0
    }))
    .unwrap();
    Accepted { boot_id: "boot".to_owned(), at_us: 5, assignment }
}

struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Scratch {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("jobs")).unwrap();
        Scratch { dir }
    }

    fn state(&self) -> StateDir {
        StateDir::at(self.dir.path())
    }

    fn path(&self) -> PathBuf {
        self.state().journal()
    }

    fn open(&self) -> (Journal, Memory) {
        Journal::open(&self.path()).unwrap()
    }

    /// Opens, lets `write` write, and waits until all of it is on disk.
    fn write(&self, write: impl FnOnce(&Writer)) -> Vec<Written> {
        let (sender, receiver) = mpsc::channel();
        let writer = Writer::start(self.open().0, self.state(), Spares::default(), move |written| {
            sender.send(written).unwrap()
        })
        .unwrap();
        write(&writer);
        drop(writer);
        receiver.into_iter().collect()
    }
}

fn end() -> End {
    End::without_run(EndCause::Stopped, "m")
}

#[test]
fn what_was_written_is_remembered_and_what_was_forgotten_is_recent() {
    let scratch = Scratch::new();
    let id = scratch.open().1.journal_id;
    let written = scratch.write(|w| {
        for n in 1..=3 {
            w.accept(accepted(n));
        }
        w.end(2, "boot", end());
        w.end(3, "boot", end());
        w.forget(vec![3]);
        w.see_command("a".to_owned());
        w.see_command("b".to_owned());
        w.answer_command("a".to_owned(), Some("e".to_owned()));
    });
    assert_eq!(written.iter().flat_map(|w| w.accepted.clone()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(written.iter().flat_map(|w| w.commands.clone()).collect::<Vec<_>>(), ["a", "b"]);
    let memory = scratch.open().1;
    assert_eq!(memory.journal_id, id);
    assert_eq!(memory.accepted.keys().copied().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(memory.ended.keys().copied().collect::<Vec<_>>(), [2]);
    assert_eq!(memory.recent, [3]);
    assert_eq!(memory.commands, [("a".to_owned(), Some(Some("e".to_owned()))), ("b".to_owned(), None)]);
    assert_eq!(memory.accepted[&1], accepted(1));
}

#[test]
fn an_attempts_files_go_once_its_end_is_written() {
    let scratch = Scratch::new();
    let record = scratch.state().record(1);
    std::fs::write(&record, "x").unwrap();
    scratch.write(|w| w.accept(accepted(1)));
    assert!(record.exists());
    scratch.write(|w| w.end(1, "boot", end()));
    assert!(!record.exists());
}

#[test]
fn a_torn_tail_is_cut_off_at_every_length_and_the_journal_goes_on() {
    let scratch = Scratch::new();
    scratch.write(|w| w.accept(accepted(1)));
    let before = std::fs::metadata(scratch.path()).unwrap().len() as usize;
    scratch.write(|w| w.accept(accepted(2)));
    let whole = std::fs::read(scratch.path()).unwrap();
    for cut in before..whole.len() {
        std::fs::write(scratch.path(), &whole[..cut]).unwrap();
        assert_eq!(scratch.open().1.accepted.len(), 1, "cut at {cut}");
    }
    // The disk kept the length but not the data.
    let mut zeros = whole[..before].to_vec();
    zeros.resize(whole.len(), 0);
    std::fs::write(scratch.path(), zeros).unwrap();
    scratch.write(|w| w.accept(accepted(3)));
    assert_eq!(scratch.open().1.accepted.keys().copied().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn damage_in_the_middle_or_at_the_start_is_refused() {
    let scratch = Scratch::new();
    scratch.write(|w| w.accept(accepted(1)));
    let middle = std::fs::metadata(scratch.path()).unwrap().len() as usize - 5;
    scratch.write(|w| w.accept(accepted(2)));
    let mut bytes = std::fs::read(scratch.path()).unwrap();
    bytes[middle] ^= 1;
    std::fs::write(scratch.path(), &bytes).unwrap();
    let error = Journal::open(&scratch.path()).err().unwrap().to_string();
    assert!(error.contains("is damaged at byte") && error.contains("move the file aside"), "{error}");
    std::fs::write(scratch.path(), "not a journal at all").unwrap();
    assert!(matches!(Journal::open(&scratch.path()), Err(JournalError::Damaged { at: 0, .. })));
}

#[test]
fn compaction_keeps_exactly_what_is_needed() {
    let scratch = Scratch::new();
    scratch.write(|w| {
        for n in 1..=200 {
            w.accept(accepted(n));
            w.end(n, "boot", end());
            w.forget(vec![n]);
        }
        w.accept(accepted(500));
        w.end(500, "boot", end());
        w.accept(accepted(501));
        w.see_command("a".to_owned());
        w.answer_command("a".to_owned(), None);
    });
    let (journal, before) = scratch.open();
    let long = journal.length;
    let short = compact_now(journal, scratch.state()).unwrap();
    assert!(short * 10 < long, "{short} of {long}");
    let after = scratch.open().1;
    assert_eq!(after.journal_id, before.journal_id);
    assert_eq!(after.accepted, before.accepted);
    assert_eq!(after.ended, before.ended);
    assert_eq!((after.recent, after.commands), (before.recent, before.commands));
    scratch.write(|w| w.forget(vec![500]));
    assert_eq!(scratch.open().1.accepted.keys().copied().collect::<Vec<_>>(), [501]);
}
