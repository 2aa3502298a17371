//! Which tenant each caller is in, remembered for a few seconds: every request asks, and it hardly ever changes. A change made
//! through this controller is seen at once.

use crate::store::{StoreError, tenants};
use sqlx::PgPool;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer is remembered: so long may a change through another controller take to be seen.
const REMEMBERED: Duration = Duration::from_secs(5);
/// The most users remembered; one more and all are asked again.
const USERS_MAX: usize = 10_000;

/// Who is in which tenant.
#[derive(Debug, Default)]
pub struct Membership {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Raised by every change: an answer from before it is not remembered.
    changes: u64,
    tenants: HashMap<String, (Instant, String)>,
}

impl Membership {
    /// The tenant that a user is in.
    pub async fn tenant_of(&self, db: &PgPool, user: &str) -> Result<String, StoreError> {
        let changes = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((at, tenant)) = known.tenants.get(user)
                && at.elapsed() < REMEMBERED
            {
                return Ok(tenant.clone());
            }
            known.changes
        };
        let tenant = tenants::of_user(db, user).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.changes == changes {
            if known.tenants.len() >= USERS_MAX {
                known.tenants.clear();
            }
            known.tenants.insert(user.to_owned(), (Instant::now(), tenant.clone()));
        }
        Ok(tenant)
    }

    /// Somebody is in another tenant now: everybody is asked again.
    pub fn changed(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.changes += 1;
        known.tenants.clear();
    }
}
