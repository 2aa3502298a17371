//! Random books: what the database accepts is exactly what a simple model in memory accepts.
//!
//! The model knows ten-minute cells: which entry of its mode timeline a GPU is in, and who has which part of it. It shares
//! nothing with the core or the store but the words.

use super::super::StoreError;
use super::super::modes::{cancel as cancel_change, change};
use super::super::reservations::{self, reserve};
use super::reserving::HOUR;
use super::*;
use proto::api::{Begin, GpuChangeRequest, ReserveRequest};
use proto::{ErrorCode, GpuMode};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::BTreeSet;

/// How many books, and how many acts each.
const BOOKS: usize = 10;
const ACTS: usize = 60;
/// A cell, seconds.
const CELL_S: u64 = 600;
/// Beginnings and lengths that are drawn, cells.
const BEGINS: usize = 24;
const LENGTHS: usize = 8;
/// The last cell stands for all time after.
const CELLS: usize = BEGINS + LENGTHS + 2;
const CPUS: usize = 8;

/// The settings that are drawn: mode, slots, layout.
const SETTINGS: [(GpuMode, Option<u16>, &str); 6] = [
    (GpuMode::Whole, None, ""),
    (GpuMode::Mig, None, ""),
    (GpuMode::Mig, None, "2g.20gb@0,3g.40gb@4"),
    (GpuMode::Mig, None, "1g.10gb@0,1g.10gb@1,3g.40gb@4"),
    (GpuMode::Timeslice, Some(2), ""),
    (GpuMode::Mps, Some(4), ""),
];
/// The atoms that are drawn: which settings have them, and which parts of the GPU they are.
const ATOMS: [(&str, &[usize], &[usize]); 9] = [
    ("", &[0], &[0, 1, 2, 3, 4, 5, 6, 7]),
    ("mig:3g.40gb@0", &[1], &[0, 1, 2, 3]),
    ("mig:3g.40gb@4", &[1, 2, 3], &[4, 5, 6, 7]),
    ("mig:2g.20gb@0", &[1, 2], &[0, 1]),
    ("mig:1g.10gb@1", &[1, 3], &[1]),
    ("mig:1g.10gb@6", &[1], &[6]),
    ("slot:0/2", &[4], &[0]),
    ("slot:1/2", &[4], &[1]),
    ("mps:3/4", &[5], &[3]),
];

#[derive(Clone, Debug)]
struct Taken {
    name: String,
    gpu: usize,
    atom: usize,
    from: usize,
    to: usize,
    cpus: usize,
}

#[derive(Clone, Debug)]
struct Change {
    id: i64,
    gpu: usize,
    from: usize,
    to: usize,
    parts: BTreeSet<usize>,
}

/// A book of two GPUs.
#[derive(Default, Debug)]
struct Model {
    /// Of each GPU, by cell: the entry's number and the setting.
    entries: [Vec<(usize, usize)>; 2],
    numbers: usize,
    taken: Vec<Taken>,
    changes: Vec<Change>,
}

impl Model {
    fn new() -> Model {
        Model { entries: [vec![(0, 0); CELLS], vec![(0, 0); CELLS]], ..Model::default() }
    }

    fn parts_free(&self, gpu: usize, parts: &BTreeSet<usize>, from: usize, to: usize) -> bool {
        let meets = |a: usize, b: usize| from < b && a < to;
        let taken = self.taken.iter().any(|t| {
            t.gpu == gpu && meets(t.from, t.to) && ATOMS[t.atom].2.iter().any(|part| parts.contains(part))
        });
        let changing =
            self.changes.iter().any(|c| c.gpu == gpu && meets(c.from, c.to) && !c.parts.is_disjoint(parts));
        !taken && !changing
    }

    fn accepts_reservation(&self, new: &Taken) -> bool {
        let cells = &self.entries[new.gpu][new.from..new.to];
        let fits = cells.iter().all(|cell| *cell == cells[0] && ATOMS[new.atom].1.contains(&cell.1));
        let cpus = |cell: usize| {
            self.taken.iter().filter(|t| t.from <= cell && cell < t.to).map(|t| t.cpus).sum::<usize>()
        };
        let parts = ATOMS[new.atom].2.iter().copied().collect();
        fits && self.parts_free(new.gpu, &parts, new.from, new.to)
            && (new.from..new.to).all(|cell| cpus(cell) + new.cpus <= CPUS)
    }

    /// Until when the entry of a cell lasts.
    fn entry_end(&self, gpu: usize, cell: usize) -> usize {
        let entries = &self.entries[gpu];
        (cell..CELLS).find(|other| entries[*other] != entries[cell]).unwrap_or(CELLS)
    }

    fn relies(&self, gpu: usize, from: usize, until: usize, setting: usize) -> bool {
        self.taken
            .iter()
            .any(|t| t.gpu == gpu && t.to > from && t.from < until && !ATOMS[t.atom].1.contains(&setting))
    }

    fn changed_parts(before: usize, after: usize) -> BTreeSet<usize> {
        if matches!((before, after), (2, 3) | (3, 2)) { BTreeSet::from([0, 1]) } else { (0..8).collect() }
    }

    fn accepts_change(&self, gpu: usize, setting: usize, from: usize, to: usize) -> bool {
        let before = self.entries[gpu][from].1;
        let until = self.entry_end(gpu, from);
        let under_way = self.changes.iter().any(|c| c.gpu == gpu && c.to > from && c.from < until);
        before != setting
            && !under_way
            && self.parts_free(gpu, &Self::changed_parts(before, setting), from, to)
            && !self.relies(gpu, from, until, setting)
    }

    fn change(&mut self, id: i64, gpu: usize, setting: usize, from: usize, to: usize) {
        let parts = Self::changed_parts(self.entries[gpu][from].1, setting);
        let until = self.entry_end(gpu, from);
        self.numbers += 1;
        self.entries[gpu][from..until].fill((self.numbers, setting));
        self.changes.push(Change { id, gpu, from, to, parts });
    }

    fn accepts_cancel(&self, change: &Change) -> bool {
        let before = self.entries[change.gpu][change.from - 1].1;
        !self.relies(change.gpu, change.from, self.entry_end(change.gpu, change.from), before)
    }

    fn cancel(&mut self, change: &Change) {
        let before = self.entries[change.gpu][change.from - 1];
        let until = self.entry_end(change.gpu, change.from);
        self.entries[change.gpu][change.from..until].fill(before);
        self.changes.retain(|other| other.id != change.id);
    }
}

/// Whether it was accepted; anything but a refusal for what is booked is a fault.
fn accepted<T>(answer: Result<T, StoreError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(StoreError::Api(error)) if error.code == ErrorCode::Conflict => None,
        Err(error) => panic!("{error:?}"),
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn the_book_accepts_exactly_what_a_simple_model_accepts(db: PgPool) {
    with_pool(&db).await;
    stop_clock(&db).await;
    let seed =
        std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    println!("random books: SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut yes, mut no) = (0, 0);
    for book in 0..BOOKS {
        let node_name = format!("n{book}");
        node(&db, &node_name, CPUS as u32, 2).await;
        let mut model = Model::new();
        for act in 0..ACTS {
            let says = format!("SEED={seed} book {book} act {act}");
            let agreed = play(&db, &mut random, &mut model, &node_name, act, &says).await;
            *(if agreed { &mut yes } else { &mut no }) += 1;
        }
    }
    audit(&db).await;
    assert!(
        yes > BOOKS * ACTS / 10 && no > BOOKS * ACTS / 10,
        "{yes} accepted and {no} refused: both must be tried"
    );
}

/// One random act, on the database and the model. Says whether both accepted it.
async fn play(
    db: &PgPool,
    random: &mut impl Rng,
    model: &mut Model,
    node_name: &str,
    act: usize,
    says: &str,
) -> bool {
    let gpu = random.random_range(0..2);
    let uuid = format!("GPU-{node_name}-{gpu}");
    let from = random.random_range(1..BEGINS);
    let begin = Some(Begin::AfterS(from as u64 * CELL_S));
    match random.random_range(0..10) {
        0 if !model.taken.is_empty() => {
            let gone = model.taken.swap_remove(random.random_range(0..model.taken.len()));
            reservations::cancel(db, &caller("alice"), &gone.name).await.unwrap();
            true
        }
        1 if !model.changes.is_empty() => {
            let gone = model.changes[random.random_range(0..model.changes.len())].clone();
            let accepts = model.accepts_cancel(&gone);
            let done = accepted(cancel_change(db, gone.id).await).is_some();
            assert_eq!(done, accepts, "{says}: cancel {gone:?} of {model:?}");
            if accepts {
                model.cancel(&gone);
            }
            accepts
        }
        0..=3 => {
            let setting = random.random_range(0..SETTINGS.len());
            let (mode, slots, layout) = SETTINGS[setting];
            let to = from + random.random_range(1..3);
            let request = GpuChangeRequest {
                idempotency_key: format!("{node_name}.{act}"),
                gpu: uuid,
                mode,
                slots,
                layout: (!layout.is_empty()).then(|| layout.split(',').map(str::to_owned).collect()),
                begin,
                window_s: Some((to - from) as u64 * CELL_S),
                preview: false,
            };
            let accepts = model.accepts_change(gpu, setting, from, to);
            let done = accepted(change(db, &caller("op"), &request).await);
            assert_eq!(done.is_some(), accepts, "{says}: {request:?} on {model:?}");
            if let Some(change) = done.and_then(|answer| answer.change) {
                model.change(change.id, gpu, setting, from, to);
            }
            accepts
        }
        _ => {
            // Mostly an atom that the GPU has then: the others are refused too easily.
            let setting = model.entries[gpu][from].1;
            let fitting: Vec<usize> = (0..ATOMS.len()).filter(|i| ATOMS[*i].1.contains(&setting)).collect();
            let atom = match random.random_range(0..5) {
                0 => random.random_range(0..ATOMS.len()),
                _ => fitting[random.random_range(0..fitting.len())],
            };
            let to = from + random.random_range(1..LENGTHS);
            let name = format!("{node_name}.{act}");
            let new = Taken { name: name.clone(), gpu, atom, from, to, cpus: random.random_range(1..4) };
            let separator = if ATOMS[atom].0.is_empty() { "" } else { "/" };
            let request = ReserveRequest {
                idempotency_key: name.clone(),
                name,
                begin,
                duration_s: Some((to - from) as u64 * CELL_S),
                cpus: new.cpus as u32,
                atoms: vec![format!("{uuid}{separator}{}", ATOMS[atom].0).parse().unwrap()],
                ..ReserveRequest::default()
            };
            let accepts = model.accepts_reservation(&new);
            let done = accepted(reserve(db, &caller("alice"), &request).await).is_some();
            assert_eq!(done, accepts, "{says}: {new:?} on {model:?}");
            if accepts {
                model.taken.push(new);
            }
            accepts
        }
    }
}

/// The longest that is drawn stays within what the store looks ahead.
const _: () = assert!((CELLS as u64) * CELL_S < 24 * HOUR);
