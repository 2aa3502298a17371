//! A line's worth of each job.
//!
//! The bulk of a long queue is jobs that are no arrays and wait. They are read by a narrow statement of their own, without the
//! columns that no line shows; everything else goes the way of the full list and is cut down.

use super::entry::{Names, not_before};
use super::filter::{Filter, LIMIT_MAX};
use super::jobs::{Place, Waiting, entries, look_up, order, row_limit};
use super::snapshot;
use crate::store::{StoreError, row_error};
use chrono::{DateTime, Utc};
use proto::api::{BriefJob, BriefList, JobQuery};
use proto::{Reason, State};

use sqlx::{PgConnection, PgPool};
use std::cmp::Reverse;

/// The jobs a query asks for, in brief.
pub async fn brief(db: &PgPool, query: &JobQuery) -> Result<BriefList, StoreError> {
    let filter = Filter::read(query)?;
    // By id there are few; single tasks and nodes are what the full list knows about.
    let apart =
        filter.ids.is_none() && filter.nodes.is_none() && !filter.tasks && filter.wants(State::Pending);
    let mut look = snapshot(db).await?;
    let (names, pools) = look_up(&mut look, &filter).await?;
    let pools = pools.as_deref();
    let mut placed = Vec::new();
    if apart {
        placed = waiting(&mut look, &filter, &names, pools).await?;
    }
    let rest = if apart { Waiting::Apart } else { Waiting::Listed };
    let rest = entries(&mut look, &filter, &names, pools, rest).await?;
    look.commit().await?;
    placed.extend(rest.jobs.into_iter().map(|job| (order(&job), BriefJob::from(job))));
    placed.sort_by_key(|(place, _)| *place);
    let truncated = rest.truncated || placed.len() > filter.limit;
    placed.truncate(filter.limit);
    Ok(BriefList { jobs: placed.into_iter().map(|(_, job)| job).collect(), truncated })
}

struct WaitingRow {
    id: i64,
    name: String,
    user_name: String,
    pool_id: i32,
    node_count: i32,
    time_limit_s: Option<i64>,
    priority: i64,
    hold: Option<String>,
    begin_at: Option<DateTime<Utc>>,
    reason: Option<String>,
}

impl WaitingRow {
    fn place(&self) -> Place {
        (1, Reverse(self.priority), self.id, None)
    }

    fn into_brief(self, names: &Names) -> Result<BriefJob, StoreError> {
        let stored = || {
            let name = self.reason.as_deref().unwrap_or_default();
            Reason::from_name(name)
                .ok_or_else(|| row_error("jobs", "condition", format!("reason {name:?} of job {}", self.id)))
        };
        let reason = match not_before(self.hold.as_deref(), self.begin_at, names.now) {
            Some(reason) => reason,
            None => stored()?,
        };
        Ok(BriefJob {
            id: self.id,
            task: None,
            display_id: self.id.to_string(),
            name: self.name,
            user: self.user_name,
            pool: names.pool(self.pool_id)?,
            state: State::Pending,
            reason: Some(reason),
            nodes: Vec::new(),
            node_count: self.node_count.unsigned_abs(),
            run_s: None,
            time_limit_s: self.time_limit_s.map(i64::unsigned_abs),
        })
    }
}

/// The jobs that are no arrays and wait, each with its place. Sorted by PostgreSQL only where the limit cuts.
async fn waiting(
    db: &mut PgConnection,
    filter: &Filter,
    names: &Names,
    pools: Option<&[i32]>,
) -> Result<Vec<(Place, BriefJob)>, StoreError> {
    macro_rules! select_waiting {
        ($order:literal) => {
            sqlx::query_as!(
                WaitingRow,
                r#"SELECT j.id, j.name, j.user_name, j.pool_id, j.node_count, j.time_limit_s, j.priority, j.hold, j.begin_at,
                       j.condition ->> 'reason' AS reason
                   FROM jobs j
                   WHERE j.ended_at IS NULL AND j.state = 'pending' AND NOT j.is_array
                       AND ($1::text[] IS NULL OR j.user_name = ANY ($1)) AND ($2::text[] IS NULL OR j.name = ANY ($2))
                       AND ($3::int[] IS NULL OR j.pool_id = ANY ($3)) AND ($4::text[] IS NULL OR j.account = ANY ($4))
                   "# + $order + " LIMIT $5",
                filter.users.as_deref(),
                filter.names.as_deref(),
                pools,
                filter.accounts.as_deref(),
                row_limit(filter),
            )
        };
    }
    let mut rows = Vec::new();
    let unlimited = filter.limit == LIMIT_MAX as usize;
    if unlimited {
        rows = select_waiting!("").fetch_all(&mut *db).await?;
    }
    if !unlimited || rows.len() > filter.limit {
        rows = select_waiting!("ORDER BY j.priority DESC, j.id").fetch_all(db).await?;
    }
    rows.into_iter().map(|row| Ok((row.place(), row.into_brief(names)?))).collect()
}
