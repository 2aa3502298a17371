//! Wakes between controllers: PostgreSQL's NOTIFY. They only shorten waits; whoever misses one looks by itself.

use super::StoreError;
use sqlx::PgPool;
use sqlx::postgres::PgListener;

/// The channel.
const CHANNEL: &str = "bc_wakes";
/// The longest text PostgreSQL takes is 8,000 bytes.
pub const TEXT_BYTES_MAX: usize = 7900;

/// Tells every controller that listens, this one included.
pub async fn tell(db: &PgPool, text: &str) -> Result<(), StoreError> {
    sqlx::query!("SELECT pg_notify($1, $2)", CHANNEL, text).fetch_one(db).await?;
    Ok(())
}

/// An ear, on a connection of its own.
pub struct Ear(PgListener);

impl Ear {
    /// Listens from now on.
    pub async fn open(db: &PgPool) -> Result<Ear, StoreError> {
        let mut listener = PgListener::connect_with(db).await?;
        listener.listen(CHANNEL).await?;
        Ok(Ear(listener))
    }

    /// The next text; `None` once after the connection was lost, when some may have been missed. It connects again by itself.
    pub async fn hear(&mut self) -> Result<Option<String>, StoreError> {
        Ok(self.0.try_recv().await?.map(|notification| notification.payload().to_owned()))
    }
}
