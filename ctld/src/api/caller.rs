//! Who is asking: from the kernel's word about the connection, never from anything a request says.
//!
//! Names come from the machine's user database, which may be a slow network service: asked off the async threads, and
//! remembered for [`REMEMBERED`]. A user database that cannot answer is no reason to call somebody by a number: such a
//! caller is told to try again.

use super::error::Failure;
use crate::app::{App, Caller};
use crate::config::Config;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use nix::unistd::{Uid, User};
use proto::{ApiError, ErrorCode};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::unix::UCred;

/// How long a user's name is remembered.
const REMEMBERED: Duration = Duration::from_secs(30);
/// The most names remembered; one more and all are asked again.
const NAMES_MAX: usize = 10_000;

/// What every request of a connection carries: its caller, whose tenant each request looks up, or why there is none.
#[derive(Clone, Debug)]
pub(super) struct Peer(pub Result<Caller, ApiError>);

/// A caller of whom the tenant does not matter: known also while the database is away.
#[derive(Clone, Debug)]
pub(super) struct Anybody(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for Anybody {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Anybody, Failure> {
        match parts.extensions.get::<Peer>() {
            Some(Peer(caller)) => Ok(Anybody(caller.clone()?)),
            None => {
                Err(ApiError::new(ErrorCode::PermissionDenied, "the connection does not say who is asking")
                    .into())
            }
        }
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Caller, Failure> {
        let Anybody(mut caller) = Anybody::from_request_parts(parts, app).await?;
        caller.tenant = app.membership.tenant_of(&app.db, &caller.user).await?;
        Ok(caller)
    }
}

/// A caller who administers. Asked for before the body is read, so that others learn nothing from what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Operator(pub Caller);

impl FromRequestParts<App> for Operator {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Operator, Failure> {
        let caller = Caller::from_request_parts(parts, app).await?;
        if caller.operator {
            return Ok(Operator(caller));
        }
        let message = format!("user \"{}\" may not do this: it needs an operator", caller.user);
        Err(ApiError::new(ErrorCode::PermissionDenied, message)
            .hint("operators are root and those named in `operators` of ctld.toml")
            .into())
    }
}

/// The names of users seen lately.
#[derive(Debug, Default)]
pub(super) struct Users {
    names: Mutex<HashMap<u32, (Instant, String)>>,
}

impl Users {
    /// The caller at the other end of a connection.
    pub(super) async fn caller(&self, peer: UCred, config: &Config) -> Peer {
        let (uid, gid) = (peer.uid(), peer.gid());
        Peer(self.name(uid).await.map(|user| {
            let operator = uid == 0 || config.operators.contains(&user);
            Caller { uid, gid, user, tenant: String::new(), operator }
        }))
    }

    async fn name(&self, uid: u32) -> Result<String, ApiError> {
        if let Some(name) = self.remembered(uid) {
            return Ok(name);
        }
        let asked = tokio::task::spawn_blocking(move || User::from_uid(Uid::from_raw(uid))).await;
        let name = match asked {
            Ok(Ok(Some(user))) => user.name,
            // Nobody of that number: the number is the name.
            Ok(Ok(None)) => uid.to_string(),
            Ok(Err(error)) => return Err(unnamed(uid, &error)),
            Err(error) => return Err(unnamed(uid, &error)),
        };
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert(uid, (Instant::now(), name.clone()));
        Ok(name)
    }

    fn remembered(&self, uid: u32) -> Option<String> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&uid).filter(|(at, _)| at.elapsed() < REMEMBERED).map(|(_, name)| name.clone())
    }
}

fn unnamed(uid: u32, error: &(dyn std::error::Error + 'static)) -> ApiError {
    tracing::warn!(user.id = uid, error, "the user database did not answer");
    ApiError::new(ErrorCode::Unavailable, format!("the name of user {uid} cannot be looked up now"))
        .hint("the controller's machine could not ask its user database; try again in a moment")
}
