//! Split rights: each owner has some of what an event has to sell, and spends them without asking anybody.
//!
//! Only an owner who lacks some coordinates: a transfer locks all rights of the event in order, moves exactly what is missing
//! and spends it, in one transaction. It raises the epoch of both sides' rights, and every spending names the epoch it believes
//! in; so one who looked before a transfer spends nothing, and looks again. Between several databases a transfer would be two
//! commits with the rights on their way in a row of their own; here both sides are in one.

use super::{Bought, Buyer, TRIES_MAX, Wanted};
use crate::ledger::OWNERS;
use sqlx::Connection;
use sqlx::postgres::PgConnection;

/// What everybody believes of an event of which they have seen nothing.
const FIRST_EPOCH: i64 = 1;

pub async fn buy(buyer: &mut Buyer, wanted: Wanted) -> Result<Bought, sqlx::Error> {
    if buyer.epoch.0 != wanted.event {
        buyer.epoch = (wanted.event, FIRST_EPOCH);
    }
    for tries in 0..TRIES_MAX {
        if spend(&mut buyer.db, buyer.owner, buyer.epoch.1, wanted).await? {
            return Ok(Bought::after(tries, true));
        }
        let (epoch, unspent): (i64, i64) =
            sqlx::query_as("SELECT epoch, unspent FROM rights WHERE event = $1 AND owner = $2")
                .bind(wanted.event)
                .bind(buyer.owner)
                .fetch_one(&mut buyer.db)
                .await?;
        let fenced = epoch != buyer.epoch.1;
        buyer.epoch.1 = epoch;
        if fenced && unspent >= wanted.amount {
            continue;
        }
        let fits = transfer_and_spend(buyer, wanted).await?;
        return Ok(Bought::after(tries, fits));
    }
    Ok(Bought::never())
}

/// Spends the owner's own rights, if there are enough and the epoch still counts.
async fn spend(db: &mut PgConnection, owner: i64, epoch: i64, wanted: Wanted) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "WITH spent AS (
             UPDATE rights SET unspent = unspent - $3
              WHERE event = $2 AND owner = $4 AND epoch = $5 AND unspent >= $3 RETURNING event
         )
         INSERT INTO sold (key, event, amount) SELECT $1, event, $3 FROM spent",
    )
    .bind(wanted.key)
    .bind(wanted.event)
    .bind(wanted.amount)
    .bind(owner)
    .bind(epoch)
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Takes what the owner lacks from the others and spends it with its own; nothing at all if all rights together are too few.
async fn transfer_and_spend(buyer: &mut Buyer, wanted: Wanted) -> Result<bool, sqlx::Error> {
    let owner = buyer.owner;
    let mut tx = buyer.db.begin().await?;
    let rights: Vec<(i64, i64, i64)> =
        sqlx::query_as("SELECT owner, epoch, unspent FROM rights WHERE event = $1 ORDER BY owner FOR UPDATE")
            .bind(wanted.event)
            .fetch_all(&mut *tx)
            .await?;
    debug_assert_eq!(rights.len() as i64, OWNERS);
    let own = rights.iter().find(|(whose, ..)| *whose == owner).ok_or(sqlx::Error::RowNotFound)?;
    let mut lacking = (wanted.amount - own.2).max(0);
    let mut epoch = own.1;
    for &(giver, _, unspent) in rights.iter().filter(|(whose, ..)| *whose != owner) {
        let moved = lacking.min(unspent);
        if moved == 0 {
            continue;
        }
        epoch += 1;
        lacking -= moved;
        sqlx::query(
            "UPDATE rights SET epoch = epoch + 1, unspent = unspent + CASE WHEN owner = $2 THEN $4 ELSE -$4 END
              WHERE event = $1 AND owner IN ($2, $3)",
        )
        .bind(wanted.event)
        .bind(owner)
        .bind(giver)
        .bind(moved)
        .execute(&mut *tx)
        .await?;
    }
    let fits = lacking == 0 && spend(&mut tx, owner, epoch, wanted).await?;
    if fits {
        tx.commit().await?;
        buyer.epoch.1 = epoch;
    } else {
        tx.rollback().await?;
    }
    Ok(fits)
}
