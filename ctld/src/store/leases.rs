//! Leases: rows that say which controller does what, and the fence that keeps one that lost its lease from acting.
//!
//! A lease lives for seconds and is renewed by its owner. When it has expired another controller takes it over: an UPDATE that
//! raises the epoch and waits for the old owner's fenced transactions, since those hold the row `FOR SHARE`. Such a
//! transaction begins with [`fence`]; an act that needs a lease takes an [`Authority`] in place of the database, so that it
//! cannot begin otherwise.
//!
//! Surprising: a lease's row is not locked by a plain look, so what [`look`] says may be over when it is read. Only the fence
//! decides.

use super::StoreError;
use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use std::sync::Arc;
use std::time::Duration;

/// How long the leases of pools and singletons live.
pub const LEASE_TTL: Duration = Duration::from_secs(15);
/// How long a gateway's lease lives: that of a controller's node sessions.
pub const GATEWAY_TTL: Duration = Duration::from_secs(20);

/// Who holds leases: a controller, and which process of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The controller: the same after a restart in the same state directory.
    pub controller: Arc<str>,
    /// Controller and process: what stands in the row.
    text: Arc<str>,
}

impl Owner {
    /// This process of a controller, both made of letters, digits, `.`, `_` and `-`.
    pub fn new(controller: &str, process: &str) -> Owner {
        Owner { controller: controller.into(), text: format!("{controller}/{process}").into() }
    }

    /// The name of the lease under which its node sessions stand.
    pub fn gateway(&self) -> String {
        format!("gateway:{}", self.controller)
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// A lease as its owner took it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub name: String,
    /// Who took it.
    pub owner: Owner,
    /// In which epoch.
    pub epoch: i64,
}

/// By what right an act runs: its transactions begin here.
pub trait Authority: Sync {
    /// The database, for what needs no fence: looks.
    fn db(&self) -> &PgPool;
    /// The controller that acts.
    fn controller(&self) -> Option<&str>;
    /// Begins a transaction whose first statement is the fence.
    fn begin(&self) -> impl Future<Output = Result<Transaction<'static, Postgres>, StoreError>> + Send;
}

/// Acting under a lease.
#[derive(Clone, Copy, Debug)]
pub struct Under<'a> {
    /// The database.
    pub db: &'a PgPool,
    /// The lease.
    pub lease: &'a Lease,
}

impl Authority for Under<'_> {
    fn db(&self) -> &PgPool {
        self.db
    }

    fn controller(&self) -> Option<&str> {
        Some(&self.lease.owner.controller)
    }

    async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        let mut tx = self.db.begin().await?;
        fence(&mut tx, self.lease).await?;
        Ok(tx)
    }
}

/// Tests of acts that are not about leases begin them without one.
#[cfg(test)]
impl Authority for PgPool {
    fn db(&self) -> &PgPool {
        self
    }

    fn controller(&self) -> Option<&str> {
        None
    }

    async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        Ok(PgPool::begin(self).await?)
    }
}

/// The first statement of a fenced transaction: locks the lease against a takeover, or refuses since it is another's by now.
pub async fn fence(tx: &mut PgConnection, lease: &Lease) -> Result<(), StoreError> {
    let valid = sqlx::query_scalar!(
        r#"SELECT 1 AS "one!" FROM leases
           WHERE name = $1 AND owner = $2 AND epoch = $3 AND expires_at > compute_now() FOR SHARE"#,
        lease.name,
        &*lease.owner.text,
        lease.epoch
    )
    .fetch_optional(tx)
    .await?;
    valid.map(|_| ()).ok_or_else(|| StoreError::Fenced { lease: lease.name.clone(), epoch: lease.epoch })
}

/// Takes a lease that is free, has expired, or was held by an earlier process of the same controller; or renews one's own.
/// `None`: somebody else's.
///
/// Waits for the old owner's fenced transactions.
pub async fn take(
    db: &PgPool,
    owner: &Owner,
    name: &str,
    ttl: Duration,
) -> Result<Option<Lease>, StoreError> {
    let epoch = sqlx::query_scalar!(
        "INSERT INTO leases AS l (name, owner, epoch, taken_at, renewed_at, expires_at)
         VALUES ($1, $2, 1, compute_now(), compute_now(), compute_now() + make_interval(secs => $4))
         ON CONFLICT (name) DO UPDATE SET owner = $2,
             epoch = CASE WHEN l.owner = $2 THEN l.epoch ELSE l.epoch + 1 END,
             taken_at = CASE WHEN l.owner = $2 THEN l.taken_at ELSE compute_now() END,
             renewed_at = compute_now(), expires_at = compute_now() + make_interval(secs => $4)
         WHERE l.owner = $2 OR l.expires_at < compute_now() OR split_part(l.owner, '/', 1) = $3
         RETURNING epoch",
        name,
        &*owner.text,
        &*owner.controller,
        ttl.as_secs_f64()
    )
    .fetch_optional(db)
    .await?;
    Ok(epoch.map(|epoch| Lease { name: name.to_owned(), owner: owner.clone(), epoch }))
}

/// Renews leases in one statement. Returns the names of those that are renewed: of the others, some are another's by now, and
/// some are locked by a fenced transaction that is under way and need [`take`].
pub async fn renew(
    db: &PgPool,
    owner: &Owner,
    names: &[String],
    ttl: Duration,
) -> Result<Vec<String>, StoreError> {
    Ok(sqlx::query_scalar!(
        "UPDATE leases SET renewed_at = compute_now(), expires_at = compute_now() + make_interval(secs => $3)
         WHERE name IN (SELECT name FROM leases WHERE name = ANY($1) AND owner = $2 AND expires_at > compute_now()
             ORDER BY name FOR UPDATE SKIP LOCKED)
         RETURNING name",
        names,
        &*owner.text,
        ttl.as_secs_f64()
    )
    .fetch_all(db)
    .await?)
}

/// Gives up these leases at once, so that another controller need not wait for them to expire.
pub async fn release(db: &PgPool, owner: &Owner) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE leases SET expires_at = LEAST(expires_at, compute_now() - interval '1 microsecond') WHERE owner = $1",
        &*owner.text
    )
    .execute(db)
    .await?;
    Ok(())
}

/// A lease as anybody sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Who has it, or had it last: controller and process.
    pub owner: String,
    /// In which epoch.
    pub epoch: i64,
    /// Since when.
    pub taken_at: DateTime<Utc>,
    /// Seconds since it was renewed.
    pub age_s: f64,
    /// Seconds that it is still valid; negative once it has expired.
    pub left_s: f64,
}

/// Every lease.
pub async fn look(db: &PgPool) -> Result<Vec<Seen>, StoreError> {
    Ok(sqlx::query_as!(
        Seen,
        r#"SELECT name, owner, epoch, taken_at,
               extract(epoch FROM compute_now() - renewed_at)::double precision AS "age_s!",
               extract(epoch FROM expires_at - compute_now())::double precision AS "left_s!"
           FROM leases ORDER BY name"#
    )
    .fetch_all(db)
    .await?)
}
