//! Nodes that fail to launch what other nodes then launch: held, with the evidence.
//!
//! A launch that fails may be the job's own fault, and one bad script, or one person's hundred, must not empty a pool. So only
//! those count whose task has started on another node since: several different jobs of these in an hour are the node's fault. The
//! hold has an owner of its own, whom people may lift it from when they have mended the node; what was before that does not count
//! again.

use super::super::StoreError;
use super::super::leases::Authority;
use super::derive_eligible;
use proto::api::CONTROLLER;

/// Whose holds these are.
pub const OWNER: &str = "launch-failures";
/// So many different jobs are evidence enough.
const JOBS_MIN: i64 = 3;
/// For how long a failure counts, seconds.
const COUNTS_S: f64 = 3600.0;
/// The most evidence that a reason cites.
const CITED: usize = 5;

/// Holds the nodes that are suspect by now. Their names, each with the reason.
pub async fn hold_suspects(right: &impl Authority) -> Result<Vec<(String, String)>, StoreError> {
    let mut tx = right.begin().await?;
    let suspects = sqlx::query!(
        r#"WITH failed AS (
               SELECT a.node_id, t.job_id, min(t.condition->>'message') AS message
               FROM attempts t JOIN allocations a ON a.attempt_id = t.id AND a.position = 0
               WHERE t.outcome = 'failed' AND t.started_at IS NULL AND t.ended_at IS NOT NULL
                   AND t.ended_at > compute_now() - make_interval(secs => $2)
                   AND t.condition->>'reason' = 'LaunchFailed'
                   AND EXISTS (SELECT FROM attempts e JOIN allocations b ON b.attempt_id = e.id AND b.position = 0
                       WHERE e.job_id = t.job_id AND e.task = t.task AND e.number > t.number AND e.started_at IS NOT NULL
                           AND b.node_id <> a.node_id)
                   AND NOT EXISTS (SELECT FROM holds h WHERE h.node_id = a.node_id AND h.gpu_id IS NULL AND h.owner = $3
                       AND (h.closed_at IS NULL OR h.closed_at >= t.ended_at))
               GROUP BY a.node_id, t.job_id)
           SELECT f.node_id, n.name, count(*) AS "jobs!",
               array_agg(format('job %s: %s', f.job_id, f.message) ORDER BY f.job_id) AS "evidence!"
           FROM failed f JOIN nodes n ON n.id = f.node_id GROUP BY f.node_id, n.name HAVING count(*) >= $1
           ORDER BY f.node_id"#,
        JOBS_MIN,
        COUNTS_S,
        OWNER
    )
    .fetch_all(&mut *tx)
    .await?;
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = suspects.iter().map(|row| row.node_id).collect();
    sqlx::query!("SELECT id FROM nodes WHERE id = ANY($1) ORDER BY id FOR UPDATE", &ids)
        .fetch_all(&mut *tx)
        .await?;
    let mut held = Vec::new();
    for row in suspects {
        let cited: Vec<String> = row.evidence.into_iter().take(CITED).collect();
        let reason = format!(
            "{} jobs could not be launched here and then started elsewhere: {}",
            row.jobs,
            cited.join("; ").replace(char::is_control, " ")
        );
        sqlx::query!(
            "INSERT INTO holds (node_id, kind, owner, author, reason, opened_at, during)
             SELECT $1, 'quarantine', $2, $3, $4, compute_now(), tstzrange(compute_now(), NULL)
             WHERE NOT EXISTS (SELECT FROM holds WHERE node_id = $1 AND gpu_id IS NULL AND owner = $2 AND closed_at IS NULL)",
            row.node_id,
            OWNER,
            CONTROLLER,
            reason
        )
        .execute(&mut *tx)
        .await?;
        held.push((row.name, reason));
    }
    derive_eligible(&mut tx, &ids, &[]).await?;
    tx.commit().await?;
    Ok(held)
}
