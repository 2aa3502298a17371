//! What only the view of one job shows: where its files are, what it used, and for those who may see it, its script.

use crate::app::Caller;
use crate::store::{StoreError, row_error};
use proto::api::{Job, JobDetail, Submission, Usage};
use sqlx::PgConnection;
use sqlx::types::Json;
use std::collections::HashMap;

/// Adds the detail to the entries of one job. The script, which may be megabytes, stands in the first entry only.
pub(super) async fn add_detail(
    db: &mut PgConnection,
    job_id: i64,
    entries: &mut [Job],
    viewer: &Caller,
) -> Result<(), StoreError> {
    let row = sqlx::query!(
        r#"SELECT j.uid, j.gid, j.requeue, j.is_array, s.submission AS "submission: Json<Submission>"
           FROM jobs j JOIN job_scripts s ON s.job_id = j.id WHERE j.id = $1"#,
        job_id
    )
    .fetch_optional(&mut *db)
    .await?;
    // A job without a script has nothing more to show.
    let Some(row) = row else { return Ok(()) };
    let Json(submission) = row.submission;
    let uid = id("uid", row.uid)?;
    let gid = id("gid", row.gid)?;
    let may_read = viewer.operator || viewer.uid == uid;
    let mut script = may_read.then_some(submission.script);
    let output = submission
        .output
        .unwrap_or_else(|| if row.is_array { "slurm-%A_%a.out" } else { "slurm-%j.out" }.to_owned());
    let error = submission.error.unwrap_or_else(|| output.clone());
    let input = submission.input.unwrap_or_else(|| "/dev/null".to_owned());
    let mut outcomes = outcomes(db, job_id, entries).await?;
    for entry in entries {
        let outcome = outcomes.remove(&(entry.task.unwrap_or(0), entry.attempt)).unwrap_or_default();
        let mut paths = outcome.paths.into_iter();
        entry.detail = Some(Box::new(JobDetail {
            uid,
            gid,
            args: submission.args.clone(),
            chdir: submission.chdir.clone(),
            output: paths.next().unwrap_or_else(|| output.clone()),
            error: paths.next().unwrap_or_else(|| error.clone()),
            input: paths.next().unwrap_or_else(|| input.clone()),
            submit_host: submission.submit_host.clone(),
            requeue: row.requeue,
            usage: outcome.usage,
            script: script.take(),
        }));
    }
    Ok(())
}

#[derive(Default)]
struct Outcome {
    /// Output, error and input, as the node opened them.
    paths: Vec<String>,
    usage: Option<Usage>,
}

/// What is known of the attempts shown, by task and number. Tasks that wait have made none.
async fn outcomes(
    db: &mut PgConnection,
    job_id: i64,
    entries: &[Job],
) -> Result<HashMap<(u32, i32), Outcome>, StoreError> {
    let shown: Vec<&Job> = entries.iter().filter(|entry| !entry.nodes.is_empty()).collect();
    if shown.is_empty() {
        return Ok(HashMap::new());
    }
    let tasks: Vec<i32> = shown.iter().map(|entry| entry.task.unwrap_or(0).cast_signed()).collect();
    let numbers: Vec<i32> = shown.iter().map(|entry| entry.attempt).collect();
    let rows = sqlx::query!(
        r#"SELECT a.task, a.number, a.paths, a.cpu_us, a.mem_peak_bytes, a.oom_kills
           FROM unnest($2::int[], $3::int[]) AS w (task, number)
           JOIN attempts a ON a.job_id = $1 AND a.task = w.task AND a.number = w.number"#,
        job_id,
        &tasks,
        &numbers
    )
    .fetch_all(db)
    .await?;
    let outcomes = rows.into_iter().map(|row| {
        let usage = row.cpu_us.map(|cpu_us| Usage {
            cpu_us: cpu_us.unsigned_abs(),
            mem_peak_bytes: row.mem_peak_bytes.map(i64::unsigned_abs),
            oom_kills: row.oom_kills.unwrap_or(0).unsigned_abs(),
        });
        ((row.task.unsigned_abs(), row.number), Outcome { paths: row.paths.unwrap_or_default(), usage })
    });
    Ok(outcomes.collect())
}

fn id(column: &'static str, value: i64) -> Result<u32, StoreError> {
    u32::try_from(value).map_err(|_| row_error("jobs", column, value.to_string()))
}
