//! What holds the readers of events back: a transaction that has written and still runs, in any database of the server, since
//! transactions are numbered across all of them. Prepared ones count too, and stay until somebody ends them. What only reads
//! holds no event back.

use crate::store::StoreError;
use sqlx::PgPool;

/// A transaction that has been writing for long.
#[derive(Clone, Debug, PartialEq)]
pub struct HoldingBack {
    /// The server's process, where there is one; a prepared transaction has none.
    pub pid: Option<i32>,
    /// The role, where it is visible.
    pub user: String,
    /// The database.
    pub database: String,
    /// What it calls itself; of a prepared transaction its name.
    pub application: String,
    /// What it does: a state of `pg_stat_activity`, or `prepared`.
    pub state: String,
    /// Seconds since it began.
    pub age_s: f64,
}

/// The transactions that have held every reader of events back for longer than this, oldest first, ten at most.
pub async fn holding_back(db: &PgPool, longer_than_s: f64) -> Result<Vec<HoldingBack>, StoreError> {
    Ok(sqlx::query_as!(
        HoldingBack,
        r#"SELECT pid, coalesce("user", 'unknown') AS "user!", coalesce(database, '') AS "database!",
               coalesce(application, '') AS "application!", coalesce(state, 'hidden') AS "state!", age_s AS "age_s!"
           FROM (
               SELECT a.pid, a.usename::text AS "user", a.datname::text AS database, a.application_name AS application, a.state,
                   extract(epoch FROM compute_now() - a.xact_start)::double precision AS age_s
               FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
               UNION ALL
               SELECT NULL, p.owner::text, p.database::text, p.gid, 'prepared',
                   extract(epoch FROM compute_now() - p.prepared)::double precision
               FROM pg_prepared_xacts p
           ) x WHERE age_s > $1 ORDER BY age_s DESC LIMIT 10"#,
        longer_than_s
    )
    .fetch_all(db)
    .await?)
}
