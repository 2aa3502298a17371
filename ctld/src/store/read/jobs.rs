//! Jobs by filter or by id.
//!
//! Three ways in, each with the index it needs: by id, the live jobs, and the ended ones, newest first. Every other filter is a
//! nullable parameter on top. The order of a list: what runs, by id; what waits, in the order the planner tries it; what ended,
//! the latest job first.

use super::attempts::{earlier_numbers, of_jobs};
use super::detail::add_detail;
use super::entry::{JobRow, Known, Names, Wanted, add_entries};
use super::filter::{Filter, LIMIT_MAX};
use super::snapshot;
use super::stored::Stored;
use crate::app::Caller;
use crate::store::{StoreError, index_set, row_error};
use proto::api::{Job, JobList, JobQuery};
use proto::{ApiError, ErrorCode, IndexSet, JobRef, State};

use sqlx::{PgConnection, PgPool};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The jobs a query asks for.
pub async fn jobs(db: &PgPool, query: &JobQuery) -> Result<JobList, StoreError> {
    let filter = Filter::read(query)?;
    let mut look = snapshot(db).await?;
    let list = list(&mut look, &filter).await?;
    look.commit().await?;
    Ok(list)
}

/// One job that is no array, every task of an array, or the tasks named, in whatever state.
pub async fn jobs_of(db: &PgPool, job: &JobRef) -> Result<JobList, StoreError> {
    let mut look = snapshot(db).await?;
    let list = list(&mut look, &Filter::job(job)).await?;
    look.commit().await?;
    Ok(list)
}

/// The same with what only the view of one job shows, as far as this viewer may see it.
pub async fn job(db: &PgPool, job: &JobRef, viewer: &Caller) -> Result<JobList, StoreError> {
    let mut look = snapshot(db).await?;
    let mut list = list(&mut look, &Filter::job(job)).await?;
    add_detail(&mut look, job.job, &mut list.jobs, viewer).await?;
    look.commit().await?;
    Ok(list)
}

pub(super) async fn list(db: &mut PgConnection, filter: &Filter) -> Result<JobList, StoreError> {
    let (names, pools) = look_up(db, filter).await?;
    let pools = pools.as_deref();
    let rows = match &filter.ids {
        Some(_) => by_id(db, filter, pools).await?,
        None => {
            let mut rows = live(db, filter, pools).await?;
            if filter.wants_any(State::terminal) {
                rows.extend(ended(db, filter, pools).await?);
            }
            rows
        }
    };
    entries(db, filter, &names, rows).await
}

/// The names that rows and filter need, and the pools wanted. A pool or node that does not exist is refused.
pub(super) async fn look_up(
    db: &mut PgConnection,
    filter: &Filter,
) -> Result<(Names, Option<Vec<i32>>), StoreError> {
    let names = names(db).await?;
    let pools = pool_ids(&names, filter)?;
    refuse_unknown_nodes(db, filter).await?;
    Ok((names, pools))
}

/// The entries of these jobs, in the order of a list.
pub(super) async fn entries(
    db: &mut PgConnection,
    filter: &Filter,
    names: &Names,
    mut rows: Vec<JobRow>,
) -> Result<JobList, StoreError> {
    let wanted = Wanted { states: &filter.states, nodes: filter.nodes.as_deref(), tasks: filter.tasks };
    let only = |id: i64| filter.ids.as_ref().and_then(|ids| ids.get(&id)).and_then(Option::as_ref);
    let limit = row_limit(filter);

    let terminal = filter.wants_any(State::terminal);
    let attempted: Vec<&JobRow> =
        rows.iter().filter(|row| row.active > 0 || terminal && row.version > 1).collect();
    let ids: Vec<i64> = attempted.iter().map(|row| row.id).collect();
    let tasks: Vec<Option<IndexSet>> = attempted.iter().map(|row| only(row.id).cloned()).collect();
    let mut attempts = of_jobs(db, &ids, &tasks, wanted, limit).await?;
    let again: Vec<i64> = rows
        .iter()
        .filter(|row| row.version > 1 && row.active == 0 && (!row.is_array || filter.tasks))
        .map(|row| row.id)
        .collect();
    let earlier = earlier_numbers(db, &again, limit).await?;

    if filter.tasks {
        // Where the limit cuts, it cuts the tasks that would be tried last.
        rows.sort_by_key(|row| (Reverse(row.priority), row.id));
    }
    let mut room = filter.limit + 1;
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        let only = only(row.id);
        let attempts = attempts.remove(&row.id).unwrap_or_default();
        let listed = jobs.len();
        add_entries(&mut jobs, row, Known { names, attempts, earlier: &earlier, only, room }, wanted)?;
        if filter.tasks {
            let waiting = jobs[listed..].iter().filter(|job: &&Job| job.state == State::Pending);
            room = room.saturating_sub(waiting.count());
        }
    }
    jobs.sort_by_key(order);
    let truncated = jobs.len() > filter.limit;
    jobs.truncate(filter.limit);
    Ok(JobList { jobs, truncated })
}

/// One more than wanted tells that there is more.
pub(super) fn row_limit(filter: &Filter) -> i64 {
    i64::try_from(filter.limit).unwrap_or(i64::MAX).saturating_add(1)
}

/// A place in a list.
pub(super) type Place = (u8, Reverse<i64>, i64, Option<u32>);

/// Running by id, waiting by priority, ended by age.
pub(super) fn order(job: &Job) -> Place {
    let (group, major) = match job.state {
        State::Pending => (1, job.priority),
        state if state.terminal() => (2, job.id),
        _ => (0, -job.id),
    };
    (group, Reverse(major), job.id, job.task)
}

/// The columns of [`JobRow`]; the caller says which rows, in pieces that are joined.
macro_rules! select_jobs {
    ([$($which:literal),+], $($bind:expr),* $(,)?) => {
        sqlx::query_as!(
            JobRow,
            r#"SELECT j.id, j.name, j.user_name, j.tenant_id, j.account, j.pool_id, j.cpus, j.mem_mib, j.disk_mib, j.gpus,
                   j.gpu_type, j.node_count, j.time_limit_s, j.priority, j.hold, j.begin_at, j.is_array,
                   CASE WHEN j.is_array THEN j.indices::text END AS indices,
                   CASE WHEN j.is_array THEN j.pending::text END AS pending,
                   CASE WHEN j.is_array THEN j.cancelled::text END AS cancelled,
                   j.throttle, j.active, j.state, j.condition AS "condition: Stored", j.comment, j.submitted_at,
                   j.ended_at, j.version
               FROM jobs j WHERE "# $(+ $which)+,
            $($bind),*
        )
    };
}

/// The jobs named. One that never existed is NOT_FOUND, and so is a task that its job does not have.
async fn by_id(
    db: &mut PgConnection,
    filter: &Filter,
    pools: Option<&[i32]>,
) -> Result<Vec<JobRow>, StoreError> {
    let ids = filter.ids.iter().flatten();
    let numbers: Vec<i64> = ids.clone().map(|(&id, _)| id).collect();
    let tasks: Vec<Option<String>> = ids.map(|(_, set)| set.as_ref().map(IndexSet::to_multirange)).collect();
    let missing = sqlx::query!(
        r#"SELECT w.id AS "id!", j.is_array AS "is_array?", (w.tasks::int4multirange - j.indices)::text AS missing
           FROM unnest($1::bigint[], $2::text[]) AS w (id, tasks) LEFT JOIN jobs j ON j.id = w.id
           WHERE j.id IS NULL OR (w.tasks IS NOT NULL AND NOT (j.is_array AND w.tasks::int4multirange <@ j.indices))
           ORDER BY w.id LIMIT 1"#,
        &numbers,
        &tasks as &[Option<String>]
    )
    .fetch_optional(&mut *db)
    .await?;
    if let Some(missing) = missing {
        let message = match missing.is_array {
            None => format!("job {} is not known", missing.id),
            Some(false) => format!("job {} is not an array: it has no tasks", missing.id),
            Some(true) => {
                let tasks = index_set("jobs", "indices", missing.missing.as_deref().unwrap_or("{}"))?;
                format!("job {} has no task {tasks}", missing.id)
            }
        };
        return Err(ApiError::new(ErrorCode::NotFound, message).into());
    }
    let rows = select_jobs!(
        [r#"j.id = ANY ($1)
               AND ($2::text[] IS NULL OR j.user_name = ANY ($2)) AND ($3::text[] IS NULL OR j.name = ANY ($3))
               AND ($4::int[] IS NULL OR j.pool_id = ANY ($4)) AND ($5::text[] IS NULL OR j.account = ANY ($5))
               ORDER BY j.id"#],
        &numbers,
        filter.users.as_deref(),
        filter.names.as_deref(),
        pools,
        filter.accounts.as_deref()
    );
    Ok(rows.fetch_all(db).await?)
}

/// Jobs that are not over: with something pending, with something active, and, where ended tasks are wanted, arrays.
///
/// PostgreSQL sorts rows this wide several times slower than it reads them, so it does only where the limit cuts.
async fn live(
    db: &mut PgConnection,
    filter: &Filter,
    pools: Option<&[i32]>,
) -> Result<Vec<JobRow>, StoreError> {
    let pending = filter.nodes.is_none() && filter.wants(State::Pending);
    let active: Vec<String> =
        filter.states.iter().filter(|state| state.active()).map(|state| state.name().to_owned()).collect();
    let every_active = State::all().filter(|state| state.active()).all(|state| filter.wants(state));
    let terminal = filter.wants_any(State::terminal);
    macro_rules! select_live {
        ($order:literal) => {
            select_jobs!(
                [r#"j.ended_at IS NULL
                       AND ($1 AND NOT isempty(j.pending)
                           OR j.active > 0 AND ($2 OR EXISTS (SELECT FROM attempts a
                               WHERE a.job_id = j.id AND a.ended_at IS NULL AND a.state = ANY ($3::text[])))
                           OR $4 AND j.is_array)
                       AND ($5::text[] IS NULL OR j.user_name = ANY ($5)) AND ($6::text[] IS NULL OR j.name = ANY ($6))
                       AND ($7::int[] IS NULL OR j.pool_id = ANY ($7)) AND ($8::text[] IS NULL OR j.account = ANY ($8))
                       AND ($9::text[] IS NULL OR EXISTS (
                           SELECT FROM attempts a JOIN allocations l ON l.attempt_id = a.id JOIN nodes n ON n.id = l.node_id
                           WHERE a.job_id = j.id AND n.name = ANY ($9)))
                       "#, $order, " LIMIT $10"],
                pending,
                every_active,
                &active,
                terminal,
                filter.users.as_deref(),
                filter.names.as_deref(),
                pools,
                filter.accounts.as_deref(),
                filter.nodes.as_deref(),
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

/// These jobs, whatever the filter.
pub(super) async fn whole(db: &mut PgConnection, ids: &[i64]) -> Result<Vec<JobRow>, StoreError> {
    Ok(select_jobs!(["j.id = ANY ($1)"], ids).fetch_all(db).await?)
}

/// Jobs that are over, the latest first; of arrays all that may have tasks in the states wanted.
pub(super) async fn ended(
    db: &mut PgConnection,
    filter: &Filter,
    pools: Option<&[i32]>,
) -> Result<Vec<JobRow>, StoreError> {
    let states: Vec<String> =
        filter.states.iter().filter(|state| state.terminal()).map(|state| state.name().to_owned()).collect();
    let rows = select_jobs!(
        [r#"j.ended_at IS NOT NULL AND (j.is_array OR j.state = ANY ($1::text[]))
               AND ($2::text[] IS NULL OR j.user_name = ANY ($2)) AND ($3::text[] IS NULL OR j.name = ANY ($3))
               AND ($4::int[] IS NULL OR j.pool_id = ANY ($4)) AND ($5::text[] IS NULL OR j.account = ANY ($5))
               AND ($6::text[] IS NULL OR EXISTS (
                   SELECT FROM attempts a JOIN allocations l ON l.attempt_id = a.id JOIN nodes n ON n.id = l.node_id
                   WHERE a.job_id = j.id AND n.name = ANY ($6)))
               ORDER BY j.id DESC
               LIMIT $7"#],
        &states,
        filter.users.as_deref(),
        filter.names.as_deref(),
        pools,
        filter.accounts.as_deref(),
        filter.nodes.as_deref(),
        row_limit(filter)
    );
    Ok(rows.fetch_all(db).await?)
}

/// The names of pools and tenants, and the time.
async fn names(db: &mut PgConnection) -> Result<Names, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT id AS "id!", name AS "name!", true AS "is_pool!", compute_now() AS "now!" FROM pools
           UNION ALL SELECT id, name, false, compute_now() FROM tenants"#
    )
    .fetch_all(db)
    .await?;
    // There is always the tenant "default".
    let now = rows.first().map(|row| row.now).ok_or_else(|| row_error("tenants", "name", "no row"))?;
    let mut names = Names { pools: HashMap::new(), tenants: HashMap::new(), now };
    for row in rows {
        if row.is_pool { &mut names.pools } else { &mut names.tenants }.insert(row.id, row.name);
    }
    Ok(names)
}

/// The pools wanted. Pools and nodes are few and known: one that does not exist is a slip of the pen, not an empty answer.
fn pool_ids(names: &Names, filter: &Filter) -> Result<Option<Vec<i32>>, StoreError> {
    let Some(wanted) = &filter.pools else { return Ok(None) };
    let id_of = |name: &String| {
        let found = names.pools.iter().find(|(_, known)| *known == name);
        found.map(|(&id, _)| id).ok_or_else(|| unknown("pool", name))
    };
    Ok(Some(wanted.iter().map(id_of).collect::<Result<_, _>>()?))
}

async fn refuse_unknown_nodes(db: &mut PgConnection, filter: &Filter) -> Result<(), StoreError> {
    let Some(nodes) = &filter.nodes else { return Ok(()) };
    let missing = sqlx::query_scalar!(
        r#"SELECT w AS "name!" FROM unnest($1::text[]) w
           WHERE NOT EXISTS (SELECT FROM nodes WHERE name = w) LIMIT 1"#,
        nodes
    );
    match missing.fetch_optional(db).await? {
        Some(name) => Err(unknown("node", &name)),
        None => Ok(()),
    }
}

fn unknown(kind: &str, name: &str) -> StoreError {
    ApiError::new(ErrorCode::NotFound, format!("{kind} \"{name}\" is not known"))
        .hint("`binfo` lists pools and nodes")
        .into()
}
