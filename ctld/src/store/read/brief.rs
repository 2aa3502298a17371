//! A line's worth of each job.
//!
//! The bulk of a long queue is jobs that are no arrays and wait. One narrow statement reads those, without the columns that no line
//! shows, and finds the others, which go the way of the full list and are cut down.

use super::entry::{Names, not_before};
use super::filter::{Filter, LIMIT_MAX};
use super::jobs::{Place, ended, entries, list, look_up, order, row_limit, whole};
use super::snapshot;
use crate::store::{StoreError, row_error};
use chrono::{DateTime, Utc};
use proto::api::{BriefJob, BriefList, JobList, JobQuery};
use proto::{Reason, State};

use sqlx::{PgConnection, PgPool};
use std::cmp::Reverse;

/// The jobs a query asks for, in brief.
pub async fn brief(db: &PgPool, query: &JobQuery) -> Result<BriefList, StoreError> {
    let filter = Filter::read(query)?;
    let mut look = snapshot(db).await?;
    // By id there are few jobs; nodes and single tasks are what the full list knows about.
    let list =
        match filter.ids.is_some() || filter.nodes.is_some() || filter.tasks || !filter.wants(State::Pending)
        {
            true => cut(list(&mut look, &filter).await?),
            false => queue(&mut look, &filter).await?,
        };
    look.commit().await?;
    Ok(list)
}

fn cut(list: JobList) -> BriefList {
    BriefList { jobs: list.jobs.into_iter().map(BriefJob::from).collect(), truncated: list.truncated }
}

/// A list with what waits in it: one look at every job that is not over, and the whole of those that are more than a line.
async fn queue(db: &mut PgConnection, filter: &Filter) -> Result<BriefList, StoreError> {
    let (names, pools) = look_up(db, filter).await?;
    let pools = pools.as_deref();
    let (plain, others): (Vec<LiveRow>, Vec<LiveRow>) =
        live(db, filter, pools).await?.into_iter().partition(|row| row.plain);
    let others: Vec<i64> = others.iter().map(|row| row.id).collect();
    let mut rows = if others.is_empty() { Vec::new() } else { whole(db, &others).await? };
    if filter.wants_any(State::terminal) {
        rows.extend(ended(db, filter, pools).await?);
    }
    let rest = entries(db, filter, &names, rows).await?;

    let mut placed: Vec<(Place, BriefJob)> = Vec::with_capacity(plain.len() + rest.jobs.len());
    for row in plain {
        placed.push((row.place(), row.into_brief(&names)?));
    }
    placed.extend(rest.jobs.into_iter().map(|job| (order(&job), BriefJob::from(job))));
    placed.sort_by_key(|(place, _)| *place);
    let truncated = rest.truncated || placed.len() > filter.limit;
    placed.truncate(filter.limit);
    Ok(BriefList { jobs: placed.into_iter().map(|(_, job)| job).collect(), truncated })
}

struct LiveRow {
    id: i64,
    /// It is no array and waits: a line of it needs no more than this row.
    plain: bool,
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

impl LiveRow {
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

/// Jobs that are not over, as the full list chooses them. Sorted by PostgreSQL only where the limit cuts.
async fn live(
    db: &mut PgConnection,
    filter: &Filter,
    pools: Option<&[i32]>,
) -> Result<Vec<LiveRow>, StoreError> {
    let active: Vec<String> =
        filter.states.iter().filter(|state| state.active()).map(|state| state.name().to_owned()).collect();
    let every_active = State::all().filter(|state| state.active()).all(|state| filter.wants(state));
    let terminal = filter.wants_any(State::terminal);
    macro_rules! select_live {
        ($order:literal) => {
            sqlx::query_as!(
                LiveRow,
                r#"SELECT j.id, j.state = 'pending' AND NOT j.is_array AS "plain!", j.name, j.user_name, j.pool_id, j.node_count,
                       j.time_limit_s, j.priority, j.hold, j.begin_at, j.condition ->> 'reason' AS reason
                   FROM jobs j
                   WHERE j.ended_at IS NULL
                       AND (NOT isempty(j.pending)
                           OR j.active > 0 AND ($1 OR EXISTS (SELECT FROM attempts a
                               WHERE a.job_id = j.id AND a.ended_at IS NULL AND a.state = ANY ($2::text[])))
                           OR $3 AND j.is_array)
                       AND ($4::text[] IS NULL OR j.user_name = ANY ($4)) AND ($5::text[] IS NULL OR j.name = ANY ($5))
                       AND ($6::int[] IS NULL OR j.pool_id = ANY ($6)) AND ($7::text[] IS NULL OR j.account = ANY ($7))
                   "# + $order + " LIMIT $8",
                every_active,
                &active,
                terminal,
                filter.users.as_deref(),
                filter.names.as_deref(),
                pools,
                filter.accounts.as_deref(),
                row_limit(filter),
            )
        };
    }
    if filter.limit == LIMIT_MAX as usize {
        let rows = select_live!("").fetch_all(&mut *db).await?;
        if rows.len() <= filter.limit {
            return Ok(rows);
        }
    }
    Ok(select_live!("ORDER BY (j.state = 'pending'), j.priority DESC, j.id").fetch_all(db).await?)
}
