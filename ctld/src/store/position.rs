//! Where the database is in its history of commits.

use super::{StoreError, row_error};
use proto::position::Position;
use sqlx::PgPool;

/// Everything that has been seen to be committed was committed at or before this.
pub async fn position(db: &PgPool) -> Result<Position, StoreError> {
    let text =
        sqlx::query_scalar!(r#"SELECT pg_current_wal_insert_lsn()::text AS "lsn!""#).fetch_one(db).await?;
    text.parse().map_err(|_| row_error("pg_current_wal_insert_lsn", "lsn", text))
}
