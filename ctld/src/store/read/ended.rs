//! Whether what was named has ended: the look behind `GET /v1/jobs/{id}/wait`.

use crate::store::StoreError;
use proto::JobRef;
use sqlx::PgPool;

/// Whether every task named has ended; `None` if there is no such job. Tasks that the job never had do not keep it waiting:
/// whoever names them learns so from [`super::job`].
pub async fn ended(db: &PgPool, job: &JobRef) -> Result<Option<bool>, StoreError> {
    let Some(tasks) = &job.tasks else {
        let ended = sqlx::query_scalar!(
            r#"SELECT ended_at IS NOT NULL AS "ended!" FROM jobs WHERE id = $1"#,
            job.job
        );
        return Ok(ended.fetch_optional(db).await?);
    };
    let ended = sqlx::query_scalar!(
        r#"SELECT ended_at IS NOT NULL OR NOT (pending && $2::text::int4multirange OR EXISTS (
               SELECT FROM attempts a
               WHERE a.job_id = j.id AND a.ended_at IS NULL AND $2::text::int4multirange @> a.task)) AS "ended!"
           FROM jobs j WHERE id = $1"#,
        job.job,
        tasks.to_multirange()
    );
    Ok(ended.fetch_optional(db).await?)
}
