//! The four forms of a sale, and what each promises.
//!
//! A file a form, with a `buy` each: it answers when the answer can no longer change, and tries again by itself what the
//! database made it lose.

mod conditional;
mod escrow;
mod naive;
mod serializable;

use rand::RngExt;
use rand::rngs::StdRng;
use sqlx::postgres::PgConnection;
use std::time::Duration;
use tokio::sync::Barrier;

/// How often one purchase is tried before the buyer is told to come again later. Eight buyers need a handful.
const TRIES_MAX: u32 = 30;
/// The longest pause before a try is 2 to the power of this many milliseconds: about ten commits.
const PAUSE_DOUBLINGS_MAX: u32 = 5;

/// How a sale keeps the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Read, compare in the application, insert.
    Naive,
    /// One statement that changes a counter only if that fits.
    Conditional,
    /// The naive form where the database sees to it that some serial order explains all.
    Serializable,
    /// Rights split among owners, who spend their own alone and move them when they lack some.
    Escrow,
}

/// Somebody with a connection.
pub struct Buyer {
    pub db: PgConnection,
    pub rng: StdRng,
    /// Whose rights are spent.
    pub owner: i64,
    /// The event last bought of and the epoch of the owner's rights in it, as far as this buyer knows.
    pub epoch: (i64, i64),
}

/// What somebody wants.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Names the purchase, however often it is tried.
    pub key: i64,
    pub event: i64,
    pub amount: i64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Accepted,
    /// What is left is less than what was wanted.
    Refused,
    /// Nothing is known to be missing; there were too many others.
    GaveUp,
}

/// An answer, and how often it took another try.
#[derive(Clone, Copy, Debug)]
pub struct Bought {
    pub answer: Answer,
    pub retries: u32,
}

impl Form {
    pub const ALL: [Form; 4] = [Form::Naive, Form::Conditional, Form::Serializable, Form::Escrow];

    pub fn name(self) -> &'static str {
        match self {
            Form::Naive => "naive",
            Form::Conditional => "conditional update",
            Form::Serializable => "serializable",
            Form::Escrow => "split rights",
        }
    }

    /// What is true, and on disk, when the buyer is told yes.
    pub fn acknowledged_at(self) -> &'static str {
        match self {
            Form::Naive => "commit of the purchase; the sum it relies on was true in its own snapshot only",
            Form::Conditional => "commit of counter and purchase together, under the counter's row lock",
            Form::Serializable => {
                "commit, which is where a sum that no longer holds is found out; no read counts before"
            }
            Form::Escrow => {
                "commit of the owner's spent rights and the purchase together; a transfer is in the same commit"
            }
        }
    }

    /// What it says no to.
    pub fn refuses(self) -> &'static str {
        match self {
            Form::Naive => "what does not fit its snapshot, which is not enough",
            Form::Conditional => {
                "what does not fit, finally; whoever comes second waits for the row and never tries again"
            }
            Form::Serializable => {
                "what does not fit; whoever loses a race aborts and tries the whole again under its key"
            }
            Form::Escrow => {
                "what does not fit all rights together; an epoch that a transfer ended is fenced out and read again"
            }
        }
    }

    /// Whether the drill is to catch it overselling.
    pub fn oversells(self) -> bool {
        self == Form::Naive
    }

    /// Buys. With `meet`, the first try of a form that reads first waits there between its reading and its writing: this is how
    /// the forbidden history is made on purpose.
    pub async fn buy(
        self,
        buyer: &mut Buyer,
        wanted: Wanted,
        meet: Option<&Barrier>,
    ) -> Result<Bought, sqlx::Error> {
        match self {
            Form::Naive => naive::buy(buyer, wanted, meet).await,
            Form::Conditional => conditional::buy(buyer, wanted).await,
            Form::Serializable => serializable::buy(buyer, wanted, meet).await,
            Form::Escrow => escrow::buy(buyer, wanted).await,
        }
    }
}

impl Bought {
    fn after(retries: u32, fits: bool) -> Bought {
        Bought { answer: if fits { Answer::Accepted } else { Answer::Refused }, retries }
    }

    fn never() -> Bought {
        Bought { answer: Answer::GaveUp, retries: TRIES_MAX }
    }
}

/// Waits for a random while before another try, longer each time, so that those who met do not meet again.
async fn pause(rng: &mut StdRng, tries: u32) {
    let most_us = 1_000 << tries.min(PAUSE_DOUBLINGS_MAX);
    tokio::time::sleep(Duration::from_micros(rng.random_range(0..most_us))).await;
}

/// Whether PostgreSQL ended this for the sake of somebody else.
fn lost_a_race(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("40001" | "40P01"))
}
