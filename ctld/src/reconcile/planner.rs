//! The planner's loop: a snapshot of each pool, a plan, and its application; woken by submissions and released capacity, by the
//! next begin time, and at the latest every 10 s.

use crate::app::App;
use crate::store::StoreError;
use crate::store::place::{Applied, apply, extend_overdue, record_waits};
use crate::store::snapshot::{next_begin_s, nodes_free, pools_with_work, queue_page};
use ctld_core::plan::{Plan, Planner};
use proto::Condition;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Jobs read from the queue at a time.
const PAGE: i64 = 256;
/// The most tasks placed in one transaction.
const PLACEMENTS_MAX: usize = 200;
/// How many jobs at the head of the queue have their numbers kept current; the others' change only with their reason.
const FRESH_REASONS: usize = 16;
/// How often a pool is planned anew in one pass after a conflict.
const REPLANS: usize = 3;

/// The longest between two passes, which is what a lost wake costs at most (30 s are allowed); and how often bookings near their
/// end are looked after, well within the minute by which [`extend_overdue`] looks ahead.
const PASS_EVERY: Duration = Duration::from_secs(10);

/// Runs until the controller stops.
pub async fn run(app: App) {
    let mut extended: Option<Instant> = None;
    loop {
        let pause = match turn(&app, &mut extended).await {
            Ok(()) => until_next_begin(&app).await,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "planning failed; trying again");
                Duration::from_millis(500)
            }
        };
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = app.wakes.planner_woken() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Nothing is placed while the live bookings have not been looked after for a while: one that lapsed under a running job would
/// be booked again.
async fn turn(app: &App, extended: &mut Option<Instant>) -> Result<(), StoreError> {
    if extended.is_none_or(|at| at.elapsed() >= PASS_EVERY) {
        let looked = Instant::now();
        extend_overdue(&app.db).await?;
        *extended = Some(looked);
    }
    pass(app).await
}

async fn until_next_begin(app: &App) -> Duration {
    match next_begin_s(&app.db).await {
        Ok(Some(s)) => Duration::try_from_secs_f64(s + 0.001).unwrap_or(Duration::ZERO).min(PASS_EVERY),
        _ => PASS_EVERY,
    }
}

/// One pass over every pool that has work waiting.
pub async fn pass(app: &App) -> Result<(), StoreError> {
    let begun = Instant::now();
    let pools = pools_with_work(&app.db).await?;
    if pools.is_empty() {
        return Ok(());
    }
    for pool_id in pools {
        let mut replans = 0;
        loop {
            let (applied, more) = plan_pool(app, pool_id).await?;
            app.metrics.placed(applied.placed, applied.conflicts);
            app.wakes.nodes(applied.nodes);
            replans += usize::from(applied.conflicts > 0);
            let again = more && applied.placed > 0 || applied.conflicts > 0 && replans <= REPLANS;
            if !again {
                break;
            }
        }
    }
    app.metrics.planner_pass(begun.elapsed());
    Ok(())
}

/// Plans one pool and applies the plan. Also says whether the plan stopped at its limit.
async fn plan_pool(app: &App, pool_id: i32) -> Result<(Applied, bool), StoreError> {
    let mut planner = Planner::new(nodes_free(&app.db, pool_id).await?, PLACEMENTS_MAX);
    let mut stored: HashMap<i64, (String, String)> = HashMap::new();
    let mut cursor = None;
    loop {
        let page = queue_page(&app.db, pool_id, cursor, PAGE).await?;
        planner.consider(&page.requests);
        stored.extend(page.reasons.into_iter().map(|(id, reason, message)| (id, (reason, message))));
        cursor = page.next;
        if cursor.is_none() || planner.exhausted() {
            break;
        }
    }
    let Plan { placements, waits, more } = planner.finish();
    let applied = if placements.is_empty() {
        Applied::default()
    } else {
        apply(&app.db, &placements, u32::try_from(app.config.kill_grace_s).unwrap_or(u32::MAX)).await?
    };
    record_waits(&app.db, &changed(waits, &stored)).await?;
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
