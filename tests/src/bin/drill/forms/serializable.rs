//! What the naive form does, SERIALIZABLE: PostgreSQL watches what was read, and ends one of those whom no serial order explains.
//!
//! What was ended is tried again as a whole, from a new snapshot and under the same key, after a random pause.

use super::naive::read_compare_insert;
use super::{Bought, Buyer, TRIES_MAX, Wanted, lost_a_race, pause};
use tokio::sync::Barrier;

pub async fn buy(buyer: &mut Buyer, wanted: Wanted, meet: Option<&Barrier>) -> Result<Bought, sqlx::Error> {
    for tries in 0..TRIES_MAX {
        let meet = meet.filter(|_| tries == 0);
        match read_compare_insert(buyer, "BEGIN ISOLATION LEVEL SERIALIZABLE", wanted, meet).await {
            Err(error) if lost_a_race(&error) => pause(&mut buyer.rng, tries).await,
            done => return Ok(Bought::after(tries, done?)),
        }
    }
    Ok(Bought::never())
}
