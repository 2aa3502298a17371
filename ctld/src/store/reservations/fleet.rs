//! A pool's nodes with their whole book: what is free over any range of time.

use super::super::StoreError;
use super::super::books::whole_books;
use super::super::holds::standing;
use chrono::{DateTime, Utc};
use ctld_core::holds::Holds;
use ctld_core::plan::{Amount, Amounts, Booked, GpuFree, NodeFree};
use ctld_core::span::Span;
use ctld_core::timeline::{During, Held, Timeline};
use proto::HoldKind;
use sqlx::PgConnection;
use std::collections::HashMap;

/// The nodes of a pool, read at one instant. Instants are microseconds from then.
pub(super) struct Fleet {
    /// When it was read.
    pub now: DateTime<Utc>,
    nodes: Vec<Node>,
}

struct Node {
    id: i64,
    name: String,
    pool_id: i32,
    totals: [i64; 3],
    in_use: [i64; 3],
    book: Vec<Booked>,
    holds: Holds,
    gpus: Vec<Gpu>,
}

struct Gpu {
    id: i64,
    model: String,
    booked: Vec<During>,
    whole: Vec<During>,
}

fn overlaps(a: During, b: During) -> bool {
    a.end().is_none_or(|end| b.start() < end) && b.end().is_none_or(|end| a.start() < end)
}

fn contains(range: During, instant: i64) -> bool {
    range.start() <= instant && range.end().is_none_or(|end| instant < end)
}

impl Fleet {
    /// Reads a pool's nodes and their book.
    pub async fn read(db: &mut PgConnection, pool_id: i32) -> Result<Fleet, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT n.id, n.name, compute_now() AS "now!", r.resource,
                   floor(r.allocatable * r.ratio)::bigint AS "total!", r.allocated
               FROM nodes n JOIN node_resources r ON r.node_id = n.id
               WHERE n.pool_id = $1 ORDER BY n.id, r.resource"#,
            pool_id
        )
        .fetch_all(&mut *db)
        .await?;
        let now = match rows.first() {
            Some(row) => row.now,
            None => sqlx::query_scalar!(r#"SELECT compute_now() AS "now!""#).fetch_one(&mut *db).await?,
        };
        let mut nodes: Vec<Node> = Vec::new();
        for row in rows {
            if nodes.last().is_none_or(|node| node.id != row.id) {
                nodes.push(Node {
                    id: row.id,
                    name: row.name,
                    pool_id,
                    totals: [0; 3],
                    in_use: [0; 3],
                    book: vec![],
                    holds: Holds::default(),
                    gpus: vec![],
                });
            }
            let at = match row.resource.as_str() {
                "cpus" => 0,
                "mem_mib" => 1,
                _ => 2,
            };
            if let Some(node) = nodes.last_mut() {
                node.totals[at] = row.total;
                node.in_use[at] = row.allocated;
            }
        }
        let mut fleet = Fleet { now, nodes };
        fleet.read_books(db).await?;
        fleet.read_gpus(db).await?;
        fleet.read_holds(db).await?;
        Ok(fleet)
    }

    /// An instant on this scale.
    pub fn micros(&self, at: DateTime<Utc>) -> i64 {
        (at - self.now).num_microseconds().unwrap_or(i64::MAX)
    }

    fn ids(&self) -> Vec<i64> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    async fn read_books(&mut self, db: &mut PgConnection) -> Result<(), StoreError> {
        let mut books = whole_books(db, &self.ids()).await?;
        for node in &mut self.nodes {
            node.book = books.remove(&node.id).unwrap_or_default();
        }
        Ok(())
    }

    async fn read_gpus(&mut self, db: &mut PgConnection) -> Result<(), StoreError> {
        let ids = self.ids();
        let gpus = sqlx::query!(
            "SELECT id, node_id, model FROM gpus WHERE node_id = ANY($1) AND present ORDER BY id",
            &ids
        )
        .fetch_all(&mut *db)
        .await?;
        let booked = sqlx::query!(
            r#"SELECT b.gpu_id, (extract(epoch FROM lower(b.during) - $2) * 1000000)::bigint AS "start_us!",
                   (extract(epoch FROM upper(b.during) - $2) * 1000000)::bigint AS end_us
               FROM device_bookings b JOIN gpus g ON g.id = b.gpu_id WHERE g.node_id = ANY($1)"#,
            &ids,
            self.now
        )
        .fetch_all(&mut *db)
        .await?;
        let whole = sqlx::query!(
            r#"SELECT m.gpu_id, (extract(epoch FROM lower(m.during) - $2) * 1000000)::bigint AS "start_us!",
                   (extract(epoch FROM upper(m.during) - $2) * 1000000)::bigint AS end_us
               FROM gpu_modes m JOIN gpus g ON g.id = m.gpu_id WHERE g.node_id = ANY($1) AND m.mode = 'whole'"#,
            &ids,
            self.now
        )
        .fetch_all(&mut *db)
        .await?;
        let mut booked_of: HashMap<i64, Vec<During>> = HashMap::new();
        for row in booked {
            booked_of.entry(row.gpu_id).or_default().extend(During::new(row.start_us, row.end_us));
        }
        let mut whole_of: HashMap<i64, Vec<During>> = HashMap::new();
        for row in whole {
            whole_of.entry(row.gpu_id).or_default().extend(During::new(row.start_us, row.end_us));
        }
        for row in gpus {
            let Some(node) = self.nodes.iter_mut().find(|node| node.id == row.node_id) else { continue };
            node.gpus.push(Gpu {
                id: row.id,
                model: row.model,
                booked: booked_of.remove(&row.id).unwrap_or_default(),
                whole: whole_of.remove(&row.id).unwrap_or_default(),
            });
        }
        Ok(())
    }

    async fn read_holds(&mut self, db: &mut PgConnection) -> Result<(), StoreError> {
        let mut holds = standing(db, &self.ids()).await?;
        for node in &mut self.nodes {
            node.holds = holds.remove(&node.id).unwrap_or_default();
        }
        Ok(())
    }

    /// The kind of hold that keeps work over this range from these parts of a GPU, or from its node.
    pub fn held(&self, node_id: i64, gpu_id: i64, spans: &[Span], range: During) -> Option<HoldKind> {
        let node = self.nodes.iter().find(|node| node.id == node_id)?;
        let part = || spans.iter().find_map(|span| node.holds.on_part(gpu_id, *span, range));
        node.holds.on_node(range).or_else(part).map(|hold| hold.kind)
    }

    /// What is free over the whole of a range, on these nodes, or on all if none is named.
    pub fn free_over(&self, range: During, names: &[String]) -> Vec<NodeFree> {
        let wanted = |node: &&Node| {
            (names.is_empty() || names.contains(&node.name)) && node.holds.on_node(range).is_none()
        };
        self.nodes.iter().filter(wanted).map(|node| node.free_over(range)).collect()
    }

    /// Whether the pool has a node of this name.
    pub fn has(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.name == name)
    }

    /// The instants after this one at which something ends: where more may be free than before.
    pub fn ends_after(&self, instant: i64) -> Vec<i64> {
        let books = self.nodes.iter().flat_map(|node| node.book.iter().map(|booked| booked.during));
        let gpus =
            self.nodes.iter().flat_map(|node| node.gpus.iter().flat_map(|gpu| gpu.booked.iter().copied()));
        let holds = self.nodes.iter().flat_map(|node| node.holds.ends());
        let ends = books.chain(gpus).filter_map(During::end).chain(holds).filter(|end| *end > instant);
        let mut ends: Vec<i64> = ends.collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

impl Node {
    fn free_over(&self, range: During) -> NodeFree {
        let peak = |of: fn(&Booked) -> i64| {
            let held =
                self.book.iter().map(|b| Held { amount: of(b).max(0).unsigned_abs(), during: b.during });
            i64::try_from(Timeline::new(held).peak(range)).unwrap_or(i64::MAX)
        };
        let peaks = [peak(|b| b.cpus), peak(|b| b.mem_mib), peak(|b| b.disk_mib)];
        let amount = |at: usize| {
            let (total, in_use) = (self.totals[at], if range.start() <= 0 { self.in_use[at] } else { 0 });
            Amount { free: (total - peaks[at]).min(total - in_use), total }
        };
        let gpu_free = |gpu: &&Gpu| {
            !gpu.booked.iter().any(|booked| overlaps(*booked, range))
                && self.holds.on_part(gpu.id, Span::ALL, range).is_none()
                && gpu.whole.iter().any(|whole| {
                    contains(*whole, range.start())
                        && whole.end().is_none_or(|end| range.end().is_some_and(|until| until <= end))
                })
        };
        NodeFree {
            id: self.id,
            name: self.name.clone(),
            pool_id: self.pool_id,
            amounts: Amounts::new(amount(0), amount(1), amount(2)),
            until_us: None,
            maintenance_us: None,
            gpus_free: self
                .gpus
                .iter()
                .filter(gpu_free)
                .map(|gpu| GpuFree { id: gpu.id, model: gpu.model.clone(), until_us: None })
                .collect(),
            gpu_models: self.gpus.iter().map(|gpu| gpu.model.clone()).collect(),
        }
    }
}
