//! Reads what is sold, compares in the application, inserts.
//!
//! Each of two has a snapshot of its own, and they write different rows, so there is nothing at which one could see the other:
//! write skew, which snapshot isolation (PostgreSQL's REPEATABLE READ) permits.

use super::{Bought, Buyer, Wanted};
use crate::ledger::CAPACITY;
use sqlx::Connection;
use tokio::sync::Barrier;

pub async fn buy(buyer: &mut Buyer, wanted: Wanted, meet: Option<&Barrier>) -> Result<Bought, sqlx::Error> {
    let fits = read_compare_insert(buyer, "BEGIN ISOLATION LEVEL REPEATABLE READ", wanted, meet).await?;
    Ok(Bought::after(0, fits))
}

/// The same for any level.
pub async fn read_compare_insert(
    buyer: &mut Buyer,
    begin: &'static str,
    wanted: Wanted,
    meet: Option<&Barrier>,
) -> Result<bool, sqlx::Error> {
    let mut tx = buyer.db.begin_with(begin).await?;
    let sold = sqlx::query_scalar("SELECT coalesce(sum(amount), 0)::bigint FROM sold WHERE event = $1")
        .bind(wanted.event)
        .fetch_one(&mut *tx)
        .await;
    // Before an error is looked at: the other one waits there, too.
    if let Some(meet) = meet {
        meet.wait().await;
    }
    let sold: i64 = sold?;
    if sold + wanted.amount > CAPACITY {
        // A refusal rests on what was read, too: where reads can be found wrong, the commit finds it.
        tx.commit().await?;
        return Ok(false);
    }
    sqlx::query("INSERT INTO sold (key, event, amount) VALUES ($1, $2, $3)")
        .bind(wanted.key)
        .bind(wanted.event)
        .bind(wanted.amount)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(true)
}
