//! Advance reservations: capacity booked for a time of its owner's choosing, in which the jobs it admits run.
//!
//! `reserve` books, `lifecycle` begins and ends, `carve` places jobs inside, `read` shows, `fleet` is the book that a search
//! looks at.

pub(super) mod carve;
mod fleet;
mod lifecycle;
mod parts;
mod read;
mod reserve;

pub use lifecycle::{Advanced, advance, cancel, next_s};
pub use read::{list, named};
pub(super) use reserve::AHEAD_MAX;
pub use reserve::reserve;

use super::StoreError;
use crate::app::Caller;
use proto::{ApiError, ErrorCode};
use sqlx::PgPool;

/// A reservation that a job is to run in.
#[derive(Clone, Debug)]
pub struct Admits {
    /// Its id.
    pub id: i64,
    /// Its pool's name.
    pub pool: String,
}

/// The reservation that a job of this caller names: the one that runs, or the next that will. An account is its tenant's
/// own word, which no other tenant's job can use.
pub async fn admit(
    db: &PgPool,
    caller: &Caller,
    account: Option<&str>,
    name: &str,
) -> Result<Admits, StoreError> {
    let row = sqlx::query!(
        r#"SELECT r.id, p.name AS pool,
               (r.owner = $2 OR $2 = ANY(r.users) OR coalesce($3 = ANY(r.accounts), false) AND t.name = $4) AS "admitted!"
           FROM reservations r JOIN pools p ON p.id = r.pool_id JOIN tenants t ON t.id = r.tenant_id
           WHERE r.name = $1 AND r.ended_at IS NULL ORDER BY upper(r.during) LIMIT 1"#,
        name,
        caller.user,
        account,
        caller.tenant
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| unknown(name))?;
    if !row.admitted && !caller.operator {
        let message = format!("reservation \"{name}\" does not admit user \"{}\"", caller.user);
        return Err(ApiError::new(ErrorCode::PermissionDenied, message)
            .hint("its owner, the users it names, and its tenant's accounts that it names may use it")
            .into());
    }
    Ok(Admits { id: row.id, pool: row.pool })
}

fn unknown(name: &str) -> StoreError {
    ApiError::new(ErrorCode::NotFound, format!("no reservation is called \"{name}\""))
        .hint("see `bctl reservation list`")
        .into()
}
