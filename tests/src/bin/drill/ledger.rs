//! The database that is drilled on: what the forms write, and the audit, which shares nothing with them.
//!
//! There is no CHECK that would hold the bound by itself: each form has to do so alone. The key of a purchase is its primary
//! key, so one that is tried again, whatever became of the first try, is made once.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use std::str::FromStr;

/// What an event has to sell.
pub const CAPACITY: i64 = 8;
/// Among how many owners the escrow form splits it.
pub const OWNERS: i64 = 2;

/// `sold` is the truth of every form; `counters` is the conditional form's, `rights` the escrow's.
const SCHEMA: &str = "
    DROP TABLE IF EXISTS sold, counters, rights;
    CREATE TABLE sold (key bigint PRIMARY KEY, event bigint NOT NULL, amount bigint NOT NULL CHECK (amount > 0));
    CREATE INDEX ON sold (event);
    CREATE TABLE counters (event bigint PRIMARY KEY, used bigint NOT NULL);
    CREATE TABLE rights (
        event bigint NOT NULL,
        owner bigint NOT NULL,
        epoch bigint NOT NULL,
        unspent bigint NOT NULL,
        PRIMARY KEY (event, owner)
    );";

/// A database in a server, for one drill.
pub struct Ledger {
    name: String,
    server: PgConnectOptions,
}

/// What stands in the end.
pub struct Audit {
    /// Purchases that stand.
    pub purchases: i64,
    /// Events of which more was sold than there is.
    pub oversold_events: i64,
    /// How much too much, over all events.
    pub oversold_by: i64,
    /// How much too much of the worst event.
    pub worst: i64,
    /// Events whose rights, unspent and sold, are not what it had to sell.
    pub rights_lost: i64,
}

impl Ledger {
    /// Makes it in the server of this URL.
    pub async fn create(url: &str) -> Result<Ledger, sqlx::Error> {
        let ledger = Ledger {
            name: format!("drill_{}", std::process::id()),
            server: PgConnectOptions::from_str(url)?.disable_statement_logging(),
        };
        let create = format!("CREATE DATABASE {}", ledger.name);
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut ledger.server.connect().await?).await?;
        Ok(ledger)
    }

    /// Removes it, whoever is connected.
    pub async fn remove(self) -> Result<(), sqlx::Error> {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut self.server.connect().await?).await?;
        Ok(())
    }

    /// A connection of a buyer's own.
    pub async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        PgConnection::connect_with(&self.server.clone().database(&self.name)).await
    }

    /// Whether a commit is on disk when it is acknowledged, which the figures depend upon.
    pub async fn durable(&self) -> Result<bool, sqlx::Error> {
        sqlx::query_scalar(
            "SELECT bool_and(setting <> 'off') FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes')",
        )
        .fetch_one(&mut self.connect().await?)
        .await
    }

    /// Begins anew with so many events, nothing of them sold and each one's rights split evenly.
    pub async fn open(&self, events: i64) -> Result<(), sqlx::Error> {
        let mut db = self.connect().await?;
        sqlx::raw_sql(SCHEMA).execute(&mut db).await?;
        sqlx::query("INSERT INTO counters SELECT event, 0 FROM generate_series(1, $1) event")
            .bind(events)
            .execute(&mut db)
            .await?;
        sqlx::query(
            "INSERT INTO rights SELECT event, owner, 1, $2 FROM generate_series(1, $1) event, generate_series(0, $3 - 1) owner",
        )
        .bind(events)
        .bind(CAPACITY / OWNERS)
        .bind(OWNERS)
        .execute(&mut db)
        .await?;
        sqlx::raw_sql("ANALYZE; CHECKPOINT").execute(&mut db).await?;
        Ok(())
    }

    /// How many of the events up to this one are oversold.
    pub async fn oversold_to(&self, event: i64) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT FROM sold WHERE event <= $1 GROUP BY event HAVING sum(amount) > $2) oversold",
        )
        .bind(event)
        .bind(CAPACITY)
        .fetch_one(&mut self.connect().await?)
        .await
    }

    /// Adds up what stands.
    pub async fn audit(&self) -> Result<Audit, sqlx::Error> {
        let mut db = self.connect().await?;
        let (purchases, oversold_events, oversold_by, worst) = sqlx::query_as(
            "SELECT coalesce(sum(purchases), 0)::bigint, count(*) FILTER (WHERE amount > $1),
                    coalesce(sum(amount - $1) FILTER (WHERE amount > $1), 0)::bigint, coalesce(greatest(max(amount) - $1, 0), 0)
               FROM (SELECT count(*) AS purchases, sum(amount)::bigint AS amount FROM sold GROUP BY event) event",
        )
        .bind(CAPACITY)
        .fetch_one(&mut db)
        .await?;
        let rights_lost = sqlx::query_scalar(
            "SELECT count(*)
               FROM (SELECT event, sum(unspent) AS unspent, min(unspent) AS least FROM rights GROUP BY event) r
               LEFT JOIN (SELECT event, sum(amount) AS amount FROM sold GROUP BY event) s USING (event)
              WHERE r.unspent + coalesce(s.amount, 0) <> $1 OR r.least < 0",
        )
        .bind(CAPACITY)
        .fetch_one(&mut db)
        .await?;
        Ok(Audit { purchases, oversold_events, oversold_by, worst, rights_lost })
    }
}
