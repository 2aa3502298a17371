//! A condition as a `jsonb` column holds it. Its own type, so that one that cannot be read is shown in the error.

use proto::Condition;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgTypeInfo, PgValueRef, Postgres};
use sqlx::types::Json;
use sqlx::{Decode, Type};

/// The first byte of a binary `jsonb`: the version of its form. No JSON text begins with it.
const VERSION: u8 = 1;

/// A condition read from its column.
#[derive(Clone, Debug)]
pub(super) struct Stored(pub Condition);

impl Type<Postgres> for Stored {
    fn type_info() -> PgTypeInfo {
        <Json<Condition> as Type<Postgres>>::type_info()
    }
}

impl<'r> Decode<'r, Postgres> for Stored {
    fn decode(value: PgValueRef<'r>) -> Result<Stored, BoxDynError> {
        let bytes = value.as_bytes()?;
        let json = bytes.strip_prefix(&[VERSION]).unwrap_or(bytes);
        let condition = serde_json::from_slice(json)
            .map_err(|error| format!("condition {}: {error}", String::from_utf8_lossy(json)))?;
        Ok(Stored(condition))
    }
}
