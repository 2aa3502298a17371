//! Nodes and their sessions: opening raises the epoch and fences out an older one; targets are read here.

use super::StoreError;
use super::books::whole_books;
use super::commands;
use super::holds::reachable;
use super::leases::Authority;
use super::place::lock_nodes_amounts;
use chrono::{DateTime, Utc};
use ctld_core::liveness::Absence;
use ctld_core::plan::Booked;
use ctld_core::timeline::{During, Held, Timeline};
use proto::api::Submission;
use proto::session::{ArrayFacts, Assignment, Hello, Limit, Stop, Target};
use proto::{ApiError, ErrorCode, IndexSet};
use sqlx::{PgConnection, PgPool};
use std::collections::{HashMap, HashSet};

/// A session that is open.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// The node's row.
    pub node_id: i64,
    /// The session's epoch.
    pub epoch: i64,
}

/// No node has a session with a controller that has only just started: marks those disconnected that had one with its
/// predecessor.
pub async fn disconnect_all(db: &PgPool, controller: &str) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE nodes SET connection = 'disconnected', disconnected_at = compute_now(), version = version + 1,
             unreachable_at = compute_now() + make_interval(secs => $2)
         WHERE connection = 'connected' AND (gateway = $1 OR gateway IS NULL)",
        controller,
        f64::from(Absence::GatewayLost.unreachable_after_s())
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Opens a session for the node with the controller whose gateway lease this is: creates the node if it is new, takes over its inventory, raises its epoch.
pub async fn open_session(right: &impl Authority, hello: &Hello) -> Result<Session, StoreError> {
    let mut tx = right.begin().await?;
    let pool_id = sqlx::query_scalar!("SELECT id FROM pools WHERE name = $1", hello.pool)
        .fetch_optional(&mut *tx)
        .await?
        .ok_or_else(|| {
            ApiError::new(ErrorCode::NotFound, format!("no pool is called \"{}\"", hello.pool))
                .hint("declare it in ctld.toml, or name another in noded.toml")
        })?;
    // Taken before the upsert, under its own lock: another session of the node waits.
    let journal_before =
        sqlx::query_scalar!("SELECT journal_id FROM nodes WHERE name = $1 FOR UPDATE", hello.node)
            .fetch_optional(&mut *tx)
            .await?
            .flatten();
    let row = sqlx::query!(
        "INSERT INTO nodes (name, pool_id, session_epoch, connection, last_seen_at, agent_version, boot_id, journal_id, cgroup_mode, gateway,
             disconnected_at, unreachable_at)
         VALUES ($1, $2, 1, 'connected', compute_now(), $3, $4, $5, $6, $7, NULL, NULL)
         ON CONFLICT (name) DO UPDATE SET pool_id = $2, session_epoch = nodes.session_epoch + 1, connection = 'connected',
             last_seen_at = compute_now(), agent_version = $3, boot_id = $4, journal_id = $5, cgroup_mode = $6,
             gateway = $7, disconnected_at = NULL, unreachable_at = NULL, lost_at = NULL, lost_reason = NULL, version = nodes.version + 1
         RETURNING id, session_epoch",
        hello.node,
        pool_id,
        hello.version,
        hello.boot_id,
        hello.journal_id,
        hello.cgroup_mode,
        right.controller(),
    )
    .fetch_one(&mut *tx)
    .await?;
    reachable(&mut tx, &[row.id]).await?;
    if journal_before.is_some_and(|before| before != hello.journal_id) {
        commands::memory_lost(&mut tx, row.id).await?;
    }
    take_gpus(&mut tx, row.id, hello).await?;
    take_amounts(&mut tx, row.id, hello).await?;
    tx.commit().await?;
    Ok(Session { node_id: row.id, epoch: row.session_epoch })
}

/// What a node has, and its pool's ratios. What is booked on a node that shrank, or whose ratio did, stays booked until it ends, and what is booked for later is kept for it: the
/// allocatable amount never falls below the most that is booked at any time from now on. The next session lowers it further.
async fn take_amounts(tx: &mut PgConnection, node_id: i64, hello: &Hello) -> Result<(), StoreError> {
    // Whoever books holds these locks: the book is read once nobody else can add to it.
    lock_nodes_amounts(tx, &[node_id], Some(0)).await?;
    let book = whole_books(tx, &[node_id]).await?.remove(&node_id).unwrap_or_default();
    let amounts = [
        ("cpus", i64::from(hello.inventory.cpus), peak(&book, |b| b.cpus)),
        ("disk_mib", hello.inventory.disk_mib.min(1 << 50) as i64, peak(&book, |b| b.disk_mib)),
        ("mem_mib", hello.inventory.mem_mib.min(1 << 50) as i64, peak(&book, |b| b.mem_mib)),
    ];
    for (resource, amount, booked) in amounts {
        sqlx::query!(
            "INSERT INTO node_resources (node_id, resource, allocatable, ratio)
             SELECT $1, $2, $3, CASE $2 WHEN 'cpus' THEN p.cpu_ratio WHEN 'mem_mib' THEN p.mem_ratio ELSE p.disk_ratio END
             FROM nodes n JOIN pools p ON p.id = n.pool_id WHERE n.id = $1
             ON CONFLICT (node_id, resource) DO UPDATE
             SET allocatable = GREATEST($3, ceil(GREATEST(node_resources.allocated, $4::bigint) / EXCLUDED.ratio)::bigint),
                 ratio = EXCLUDED.ratio",
            node_id,
            resource,
            amount,
            booked
        )
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

/// The most that is booked at any instant from now on.
fn peak(book: &[Booked], of: fn(&Booked) -> i64) -> i64 {
    let held = book.iter().map(|b| Held { amount: of(b).max(0).unsigned_abs(), during: b.during });
    let from_now_on = During::new(0, None).map_or(0, |always| Timeline::new(held).peak(always));
    i64::try_from(from_now_on).unwrap_or(i64::MAX)
}

async fn take_gpus(tx: &mut PgConnection, node_id: i64, hello: &Hello) -> Result<(), StoreError> {
    let mut gpus = hello.inventory.gpus.clone();
    gpus.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    let uuids: Vec<String> = gpus.iter().map(|g| g.uuid.clone()).collect();
    // In the order in which others lock several GPUs.
    sqlx::query!(
        "SELECT id FROM gpus WHERE node_id = $1 OR uuid = ANY($2) ORDER BY id FOR UPDATE",
        node_id,
        &uuids
    )
    .fetch_all(&mut *tx)
    .await?;
    let elsewhere = sqlx::query_scalar!(
        "SELECT n.name FROM gpus g JOIN nodes n ON n.id = g.node_id
         WHERE g.uuid = ANY($1) AND g.node_id <> $2
             AND (n.connection = 'connected' OR EXISTS (SELECT FROM device_bookings b WHERE b.gpu_id = g.id))
         LIMIT 1",
        &uuids,
        node_id
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(other) = elsewhere {
        let message = format!("node \"{}\" reports a GPU that node \"{other}\" has", hello.node);
        return Err(ApiError::new(ErrorCode::Conflict, message)
            .hint("two nodes with the same name for their GPUs? check node and gpus in noded.toml")
            .into());
    }
    let indexes: Vec<i32> = gpus.iter().map(|g| i32::try_from(g.index).unwrap_or(i32::MAX)).collect();
    let models: Vec<String> = gpus.iter().map(|g| g.model.clone()).collect();
    let mem: Vec<i64> = gpus.iter().map(|g| g.mem_mib.min(1 << 50) as i64).collect();
    let declared: Vec<bool> = gpus.iter().map(|g| g.declared).collect();
    sqlx::query!("UPDATE gpus SET present = false WHERE node_id = $1 AND uuid <> ALL($2)", node_id, &uuids)
        .execute(&mut *tx)
        .await?;
    sqlx::query!(
        "WITH taken AS (
             INSERT INTO gpus (uuid, node_id, index, model, mem_mib, declared)
             SELECT i.uuid, $1, i.index, i.model, i.mem_mib, i.declared
             FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[], $6::boolean[]) AS i(uuid, index, model, mem_mib, declared)
             ORDER BY i.uuid
             ON CONFLICT (uuid) DO UPDATE SET node_id = $1, index = EXCLUDED.index, model = EXCLUDED.model,
                 mem_mib = EXCLUDED.mem_mib, declared = EXCLUDED.declared, present = true, version = gpus.version + 1
             RETURNING id, mode, slots)
         INSERT INTO gpu_modes (gpu_id, mode, slots, during)
         SELECT id, mode, slots, tstzrange(compute_now(), NULL) FROM taken ORDER BY id
         ON CONFLICT DO NOTHING",
        node_id,
        &uuids,
        &indexes,
        &models,
        &mem,
        &declared
    )
    .execute(&mut *tx)
    .await?;
    // A GPU that came with another node's name takes its holds along.
    sqlx::query!(
        "UPDATE holds h SET node_id = $1 FROM gpus g
         WHERE g.id = h.gpu_id AND g.uuid = ANY($2) AND h.closed_at IS NULL AND h.node_id <> $1",
        node_id,
        &uuids
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Closes a session, unless another owns the node by now. Nothing is released.
pub async fn close_session(db: &PgPool, session: Session, absence: Absence) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE nodes SET connection = 'disconnected', disconnected_at = compute_now(), version = version + 1,
             unreachable_at = compute_now() + make_interval(secs => $3)
         WHERE id = $1 AND session_epoch = $2 AND connection = 'connected'",
        session.node_id,
        session.epoch,
        f64::from(absence.unreachable_after_s())
    )
    .execute(db)
    .await?;
    Ok(())
}

/// That a session heard its node so many seconds ago.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// The session.
    pub session: Session,
    /// Seconds ago.
    pub age_s: f64,
    /// The last generation of its target that it has applied.
    pub observed_generation: u64,
}

/// Records when nodes were heard by the sessions of this controller. Returns the nodes whose session still owns them; one of
/// these that counted as away, since the controller itself had been, is connected again.
pub async fn record_seen(db: &PgPool, controller: &str, heard: &[Heard]) -> Result<HashSet<i64>, StoreError> {
    let ids: Vec<i64> = heard.iter().map(|h| h.session.node_id).collect();
    let epochs: Vec<i64> = heard.iter().map(|h| h.session.epoch).collect();
    let generations: Vec<i64> =
        heard.iter().map(|h| i64::try_from(h.observed_generation).unwrap_or(i64::MAX)).collect();
    let ages: Vec<f64> = heard.iter().map(|h| h.age_s).collect();
    let owned = sqlx::query_scalar!(
        "WITH owned AS (
             SELECT n.id, i.age_s, i.generation FROM nodes n
             JOIN unnest($1::bigint[], $2::bigint[], $3::double precision[], $5::bigint[]) AS i(id, epoch, age_s, generation)
                 ON i.id = n.id AND i.epoch = n.session_epoch
             ORDER BY n.id FOR NO KEY UPDATE OF n)
         UPDATE nodes n SET last_seen_at = GREATEST(n.last_seen_at, compute_now() - make_interval(secs => o.age_s)),
             connection = 'connected', disconnected_at = NULL, unreachable_at = NULL, gateway = $4,
             observed_generation = GREATEST(n.observed_generation, o.generation)
         FROM owned o WHERE n.id = o.id
         RETURNING n.id",
        &ids,
        &epochs,
        &ages,
        controller,
        &generations
    )
    .fetch_all(db)
    .await?;
    Ok(owned.into_iter().collect())
}

/// What a session has told its node so far; a target is sent as the difference.
#[derive(Debug, Default)]
pub struct Told {
    /// With the time limit that the node knows.
    run: HashMap<i64, Option<i64>>,
    stop: HashSet<i64>,
}

/// What every assignment of this controller says alike.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The cluster's name.
    pub cluster: &'a str,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace_s: u32,
}

struct LiveRow {
    allocation_id: i64,
    job_id: i64,
    started: bool,
    stop_by: Option<String>,
    stopping: bool,
    time_limit_s: Option<i64>,
}

/// What the node should do that it has not been told: the first call makes the whole target. `None`: nothing new.
pub async fn target(
    db: &PgPool,
    session: Session,
    told: &mut Told,
    first: bool,
    terms: Terms<'_>,
) -> Result<Option<Target>, StoreError> {
    let live = sqlx::query_as!(
        LiveRow,
        r#"SELECT a.id AS allocation_id, t.job_id, a.started_at IS NOT NULL AS "started!", t.stop_by,
               j.time_limit_s, (t.stop_as IS NOT NULL OR t.outcome IS NOT NULL) AS "stopping!"
           FROM allocations a JOIN attempts t ON t.id = a.attempt_id JOIN jobs j ON j.id = t.job_id
           WHERE a.node_id = $1 AND a.released_at IS NULL AND t.ended_at IS NULL
           ORDER BY a.id"#,
        session.node_id
    )
    .fetch_all(db)
    .await?;
    let mut target = Target { full: first, ..Target::default() };
    let mut run = Vec::new();
    for row in &live {
        let known = told.run.insert(row.allocation_id, row.time_limit_s);
        match known {
            None if first && row.started => target.keep.push(row.allocation_id),
            // The assignment says the limit.
            None => run.push((row.allocation_id, row.job_id)),
            Some(_) => {}
        }
        let limit_is_news = known.map_or(first && row.started, |limit| limit != row.time_limit_s);
        if limit_is_news {
            target.limits.push(Limit {
                allocation_id: row.allocation_id,
                time_limit_s: row.time_limit_s.map(i64::unsigned_abs),
            });
        }
        if row.stopping && told.stop.insert(row.allocation_id) {
            target.stop.push(Stop {
                allocation_id: row.allocation_id,
                grace_s: terms.grace_s,
                banner: match &row.stop_by {
                    Some(by) => format!("CANCELLED BY {by}"),
                    None => "ENDED WITH ITS SCRIPT".to_owned(),
                },
            });
        }
    }
    let alive: HashSet<i64> = live.iter().map(|row| row.allocation_id).collect();
    told.run.retain(|id, _| alive.contains(id));
    told.stop.retain(|id| alive.contains(id));
    target.run = assignments(db, &run, terms).await?;
    let empty = target.run.is_empty() && target.stop.is_empty() && target.limits.is_empty();
    Ok((first || !empty).then_some(target))
}

struct Fixed {
    submission: Submission,
    uid: u32,
    gid: u32,
    user: String,
    tenant: String,
    pool: String,
    indices: IndexSet,
    is_array: bool,
    time_limit_s: Option<u64>,
}

/// What each job of the batch says once, whatever task of it runs.
async fn fixed(db: &PgPool, job_ids: &[i64]) -> Result<HashMap<i64, Fixed>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT j.id, s.submission, j.uid, j.gid, j.user_name, n.name AS tenant, p.name AS pool,
               j.indices::text AS "indices!", j.is_array, j.time_limit_s
           FROM jobs j JOIN job_scripts s ON s.job_id = j.id JOIN pools p ON p.id = j.pool_id
           JOIN tenants n ON n.id = j.tenant_id
           WHERE j.id = ANY($1)"#,
        job_ids
    )
    .fetch_all(db)
    .await?;
    let mut of = HashMap::with_capacity(rows.len());
    for row in rows {
        let submission = serde_json::from_str(&row.submission).map_err(|error| {
            super::row_error("job_scripts", "submission", format!("job {}: {error}", row.id))
        })?;
        let id32 = |column, value: i64| {
            u32::try_from(value).map_err(|_| super::row_error("jobs", column, value.to_string()))
        };
        of.insert(
            row.id,
            Fixed {
                submission,
                uid: id32("uid", row.uid)?,
                gid: id32("gid", row.gid)?,
                user: row.user_name,
                tenant: row.tenant,
                pool: row.pool,
                indices: super::index_set("jobs", "indices", &row.indices)?,
                is_array: row.is_array,
                time_limit_s: row.time_limit_s.map(i64::unsigned_abs),
            },
        );
    }
    Ok(of)
}

async fn assignments(
    db: &PgPool,
    run: &[(i64, i64)],
    terms: Terms<'_>,
) -> Result<Vec<Assignment>, StoreError> {
    if run.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = run.iter().map(|r| r.0).collect();
    let mut job_ids: Vec<i64> = run.iter().map(|r| r.1).collect();
    job_ids.dedup();
    let fixed = fixed(db, &job_ids).await?;
    let rows = sqlx::query!(
        r#"SELECT a.id, a.attempt_id, a.position, a.cpus, a.mem_mib, a.disk_mib, t.job_id, t.task, t.number, t.placed_at,
               ARRAY(SELECT n.name FROM allocations o JOIN nodes n ON n.id = o.node_id
                   WHERE o.attempt_id = a.attempt_id ORDER BY o.position) AS "nodes!",
               ARRAY(SELECT g.uuid FROM device_bookings b JOIN gpus g ON g.id = b.gpu_id
                   WHERE b.allocation_id = a.id ORDER BY g.index) AS "gpus!"
           FROM allocations a JOIN attempts t ON t.id = a.attempt_id
           WHERE a.id = ANY($1) ORDER BY a.id"#,
        &ids
    )
    .fetch_all(db)
    .await?;
    let mut out = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(job) = fixed.get(&row.job_id) else { continue };
        let share = ShareOf {
            allocation_id: row.id,
            job_id: row.job_id,
            task: row.task.unsigned_abs(),
            number: row.number,
            position: row.position,
            cpus: row.cpus.unsigned_abs(),
            mem_mib: row.mem_mib.unsigned_abs(),
            disk_mib: row.disk_mib.unsigned_abs(),
            nodes: row.nodes,
            gpus: row.gpus,
            placed_at: row.placed_at,
        };
        out.push(assignment(job, share, terms));
    }
    Ok(out)
}

struct ShareOf {
    allocation_id: i64,
    job_id: i64,
    task: u32,
    number: i32,
    position: i32,
    cpus: u32,
    mem_mib: u64,
    disk_mib: u64,
    nodes: Vec<String>,
    gpus: Vec<String>,
    placed_at: DateTime<Utc>,
}

fn assignment(job: &Fixed, share: ShareOf, terms: Terms<'_>) -> Assignment {
    let s = &job.submission;
    Assignment {
        allocation_id: share.allocation_id,
        job_id: share.job_id,
        task: job.is_array.then_some(share.task),
        array: job.is_array.then(|| array_facts(&job.indices)),
        attempt: share.number,
        runs_script: share.position == 0,
        cluster: terms.cluster.to_owned(),
        name: s.name.clone(),
        user: job.user.clone(),
        uid: job.uid,
        gid: job.gid,
        tenant: job.tenant.clone(),
        account: s.account.clone(),
        pool: job.pool.clone(),
        script: s.script.clone(),
        args: s.args.clone(),
        env: s.env.clone(),
        chdir: s.chdir.clone(),
        output: s.output.clone(),
        error: s.error.clone(),
        input: s.input.clone(),
        open_mode: s.open_mode,
        umask: s.umask,
        rlimits: s.rlimits.clone(),
        cpus: share.cpus,
        mem_mib: share.mem_mib,
        disk_mib: share.disk_mib,
        gpus: share.gpus,
        nodes: share.nodes,
        ntasks: s.ntasks,
        cpus_per_task: s.cpus_per_task,
        time_limit_s: job.time_limit_s,
        grace_s: terms.grace_s,
        warn: s.warn.clone(),
        submit_host: s.submit_host.clone(),
        submit_dir: s.submit_dir.clone(),
        start_epoch_s: share.placed_at.timestamp(),
    }
}

/// The shape of an array as `SLURM_ARRAY_TASK_*` tell it; the step is 1 unless every index lies on one grid.
fn array_facts(indices: &IndexSet) -> ArrayFacts {
    let (min, max) = (indices.first().unwrap_or(0), indices.last().unwrap_or(0));
    let count = indices.len();
    let span = u64::from(max - min);
    let step = if count > 1 && span % (count - 1) == 0 {
        let step = (span / (count - 1)) as u32;
        if indices.ranges().iter().all(|r| r.0 == r.1 && (r.0 - min).is_multiple_of(step)) { step } else { 1 }
    } else {
        1
    };
    ArrayFacts { count, min, max, step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrays_step_is_told_only_where_there_is_one() {
        for (indices, step) in [("0-9", 1), ("0,3,6,9", 3), ("1,3,4", 1), ("5", 1), ("0-1,4-5", 1)] {
            assert_eq!(array_facts(&indices.parse().unwrap()).step, step, "{indices}");
        }
    }
}
