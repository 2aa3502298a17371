//! The planner's loop: a snapshot of each pool whose lease the controller has, a plan, and its application; woken by submissions and released capacity, by the
//! next begin time, and at the latest every 10 s.

use crate::app::App;
use crate::gather::Pace;
use crate::leases::pool;
use crate::store::StoreError;
use crate::store::leases::{Lease, Under};
use crate::store::overrun::extend_overdue;
use crate::store::place::{Applied, apply, record_waits};
use crate::store::pools;
use crate::store::quotas::allowances;
use crate::store::snapshot::{Queue, free, next_begin_s, queue_page, queues_with_work};
use ctld_core::plan::{Plan, Planner};
use proto::Condition;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Jobs read from the queue at a time: few at first, since often few fit, then more and more.
const PAGE_FIRST: i64 = 64;
const PAGE_MAX: i64 = 2048;
/// The most a busy controller waits between two passes, so that one transaction places what many ends set free.
const GAP_MAX: Duration = Duration::from_millis(50);
/// How often the reasons of waiting jobs are written: one that waits shorter never costs a write for it.
const REASONS_EVERY: Duration = Duration::from_secs(1);
/// The most tasks placed in one transaction.
const PLACEMENTS_MAX: usize = 200;
/// How many jobs at the head of the queue have their numbers kept current; the others' change only with their reason.
const FRESH_REASONS: usize = 16;
/// How long to wait before a pass that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// How often a pool is planned anew in one pass after a conflict.
const REPLANS: usize = 3;

/// The longest between two passes, which is what a lost wake costs at most (30 s are allowed); and how often bookings near their
/// end are looked after, well within the minute by which [`extend_overdue`] looks ahead.
const PASS_EVERY: Duration = Duration::from_secs(10);

/// Runs until the controller stops.
pub async fn run(app: App) {
    let stopping = app.stopping.clone();
    let mut planner = PoolPlanner::new(app);
    let mut pace = Pace::new(GAP_MAX);
    loop {
        let begun = Instant::now();
        let turn = planner.turn().await;
        pace.ended(begun);
        if let Err(error) = turn {
            tracing::warn!(error = &error as &dyn std::error::Error, "planning failed; trying again");
            tokio::time::sleep(RETRY_AFTER).await;
        }
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = planner.app.wakes.planner_woken() => pace.wait().await,
            () = planner.rest() => {}
        }
    }
}

/// The planner of every pool whose lease the controller has, and what it remembers between passes: when it last did what need not be done in each.
pub struct PoolPlanner {
    app: App,
    extended: Option<Instant>,
    reasons_written: Option<Instant>,
    reasons_due: bool,
}

impl PoolPlanner {
    /// A planner that has not looked at anything.
    pub fn new(app: App) -> PoolPlanner {
        PoolPlanner { app, extended: None, reasons_written: None, reasons_due: false }
    }

    /// Looks after bookings where that is due, then makes a pass. Nothing is placed while the live bookings have not been looked
    /// after for a while: one that lapsed under a running job would be booked again.
    pub async fn turn(&mut self) -> Result<(), StoreError> {
        let Some(lease) = self.any_lease().await? else {
            self.extended = None;
            return Ok(());
        };
        if self.extended.is_none_or(|at| at.elapsed() >= PASS_EVERY) {
            let looked = Instant::now();
            let extended = extend_overdue(&Under { db: &self.app.db, lease: &lease }).await;
            self.app.leases.heed(&lease, extended)?;
            self.extended = Some(looked);
        }
        self.pass().await
    }

    /// The lease of some pool, if this controller has one: bookings that reach their end are looked after by whoever plans.
    async fn any_lease(&self) -> Result<Option<Lease>, StoreError> {
        let pools = pools::ids(&self.app.db).await?;
        Ok(pools.into_iter().find_map(|id| self.app.leases.held(&pool(id))))
    }

    /// Rests until the next pass is due by itself.
    async fn rest(&self) {
        let longest = if self.reasons_due { REASONS_EVERY } else { PASS_EVERY };
        let begins = next_begin_s(&self.app.db).await.ok().flatten();
        let pause = begins.and_then(|s| Duration::try_from_secs_f64(s + 0.001).ok()).unwrap_or(longest);
        tokio::time::sleep(pause.min(longest)).await;
    }

    /// One pass over every pool that has work waiting.
    async fn pass(&mut self) -> Result<(), StoreError> {
        let begun = Instant::now();
        let with_reasons = self.reasons_written.is_none_or(|at| at.elapsed() >= REASONS_EVERY);
        let queues = queues_with_work(&self.app.db).await?;
        // A pass that leaves the reasons out is followed by one that does not, however quiet it becomes.
        self.reasons_due = !with_reasons && !queues.is_empty();
        if queues.is_empty() {
            return Ok(());
        }
        if with_reasons {
            self.reasons_written = Some(begun);
        }
        // Round by round, so that a queue whose tasks are ever followed by more does not keep the others waiting; and no longer
        // than bookings may go without being looked after.
        let mut open: Vec<(Queue, usize)> = queues.into_iter().map(|queue| (queue, 0)).collect();
        while !open.is_empty() {
            if begun.elapsed() >= PASS_EVERY / 2 {
                self.app.wakes.planner();
                break;
            }
            let mut next = Vec::new();
            for (queue, replans) in open {
                // Another controller's pool, or one whose planner has only just gone.
                let Some(lease) = self.app.leases.held(&pool(queue.pool_id)) else { continue };
                let planned = plan_queue(&self.app, &lease, queue, with_reasons).await;
                let (applied, more) = self.app.leases.heed(&lease, planned)?;
                self.app.metrics.placed(applied.placed, applied.conflicts);
                let replans = replans + usize::from(applied.conflicts > 0);
                if more && applied.placed > 0 || applied.conflicts > 0 && replans <= REPLANS {
                    next.push((queue, replans));
                }
                self.app.wakes.nodes(applied.nodes);
            }
            open = next;
        }
        self.app.metrics.planner_pass(begun.elapsed());
        Ok(())
    }
}

/// Plans one queue and applies the plan. Also says whether the plan stopped at its limit.
async fn plan_queue(
    app: &App,
    lease: &Lease,
    queue: Queue,
    with_reasons: bool,
) -> Result<(Applied, bool), StoreError> {
    let right = Under { db: &app.db, lease };
    let grace_s = app.config.grace_s();
    let mut planner = Planner::new(free(&app.db, queue).await?, PLACEMENTS_MAX)
        .within(allowances(&app.db, queue.scope).await?);
    if planner.exhausted() && !with_reasons {
        return Ok((Applied::default(), false));
    }
    let mut stored: HashMap<i64, (String, String)> = HashMap::new();
    let mut cursor = None;
    let mut size = PAGE_FIRST;
    loop {
        let page = queue_page(&app.db, queue, cursor, size, grace_s).await?;
        planner.consider(&page.requests);
        if with_reasons {
            stored.extend(page.reasons.into_iter().map(|(id, reason, message)| (id, (reason, message))));
        }
        cursor = page.next;
        size = (size * 4).min(PAGE_MAX);
        if cursor.is_none() || planner.exhausted() {
            break;
        }
    }
    let Plan { placements, waits, more } = planner.finish();
    let applied = if placements.is_empty() {
        Applied::default()
    } else {
        apply(&right, queue.scope, &placements, grace_s).await?
    };
    if with_reasons {
        record_waits(&right, &changed(waits, &stored)).await?;
    }
    Ok((applied, more))
}

/// The waits worth writing: those whose reason is another than the stored one, and at the head also those whose numbers are.
fn changed(waits: Vec<(i64, Condition)>, stored: &HashMap<i64, (String, String)>) -> Vec<(i64, Condition)> {
    waits
        .into_iter()
        .enumerate()
        .filter(|(place, (job_id, why))| match stored.get(job_id) {
            Some((reason, message)) => {
                reason != why.reason.name() || (*place < FRESH_REASONS && *message != why.message)
            }
            None => true,
        })
        .map(|(_, wait)| wait)
        .collect()
}
