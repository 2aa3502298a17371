//! One statement, which changes a counter if what is wanted fits, and inserts the purchase if it did.
//!
//! Everybody who buys of an event meets at its row: the second waits for the first's commit, and then looks at what that left.

use super::{Bought, Buyer, Wanted};
use crate::ledger::CAPACITY;

pub async fn buy(buyer: &mut Buyer, wanted: Wanted) -> Result<Bought, sqlx::Error> {
    let done = sqlx::query(
        "WITH taken AS (UPDATE counters SET used = used + $3 WHERE event = $2 AND used + $3 <= $4 RETURNING event)
         INSERT INTO sold (key, event, amount) SELECT $1, event, $3 FROM taken",
    )
    .bind(wanted.key)
    .bind(wanted.event)
    .bind(wanted.amount)
    .bind(CAPACITY)
    .execute(&mut buyer.db)
    .await?;
    Ok(Bought::after(0, done.rows_affected() == 1))
}
