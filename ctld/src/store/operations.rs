//! Keys of operations that are no submissions: the same key and body is given the same answer for ever, another body is a
//! CONFLICT. The key is stored in the transaction of its operation, so it exists exactly if the operation happened.

use super::StoreError;
use proto::{ApiError, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use sqlx::PgConnection;

/// The longest key, bytes.
const KEY_BYTES_MAX: usize = 200;

/// An operation under its key.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    /// The caller's tenant.
    pub tenant_id: i32,
    /// The caller.
    pub identity: &'a str,
    /// The key.
    pub key: &'a str,
    /// What is done: `reserve`, `extend`…
    pub name: &'static str,
    hash: Vec<u8>,
}

impl<'a> Operation<'a> {
    /// The operation with this body. A key that is none is refused.
    pub fn new(
        tenant_id: i32,
        identity: &'a str,
        key: &'a str,
        name: &'static str,
        body: &impl Serialize,
    ) -> Result<Operation<'a>, StoreError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX || key.chars().any(char::is_control) {
            let message =
                format!("the idempotency key is not 1 to {KEY_BYTES_MAX} bytes without control characters");
            return Err(ApiError::new(ErrorCode::InvalidArgument, message).into());
        }
        let json = serde_json::to_string(body).map_err(|e| sqlx::Error::Encode(e.into()))?;
        let hash = Sha256::digest(format!("{name}\n{json}").as_bytes()).to_vec();
        Ok(Operation { tenant_id, identity, key, name, hash })
    }

    /// What was answered the first time, if this is not it.
    pub async fn answered<T: DeserializeOwned>(
        &self,
        db: &mut PgConnection,
    ) -> Result<Option<T>, StoreError> {
        let row = sqlx::query!(
            "SELECT operation, body_hash, answer FROM idempotency_keys WHERE tenant_id = $1 AND identity = $2 AND key = $3",
            self.tenant_id,
            self.identity,
            self.key
        )
        .fetch_optional(db)
        .await?;
        let Some(row) = row else { return Ok(None) };
        match row.answer {
            Some(answer) if row.body_hash == self.hash => serde_json::from_value(answer)
                .map(Some)
                .map_err(|e| super::row_error("idempotency_keys", "answer", e.to_string())),
            _ => Err(ApiError::new(
                ErrorCode::Conflict,
                format!("idempotency key \"{}\" names a {} with another content", self.key, row.operation),
            )
            .hint("use another key for another request")
            .into()),
        }
    }

    /// Stores the answer. An error of the unique key means that the same request was carried out meanwhile.
    pub async fn answer<T: Serialize>(&self, tx: &mut PgConnection, answer: &T) -> Result<(), StoreError> {
        let answer = serde_json::to_value(answer).map_err(|e| sqlx::Error::Encode(e.into()))?;
        sqlx::query!(
            "INSERT INTO idempotency_keys (tenant_id, identity, key, operation, body_hash, answer)
             VALUES ($1, $2, $3, $4, $5, $6)",
            self.tenant_id,
            self.identity,
            self.key,
            self.name,
            &self.hash,
            answer
        )
        .execute(tx)
        .await?;
        Ok(())
    }
}
