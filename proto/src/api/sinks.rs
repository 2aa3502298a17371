//! Sinks: webhooks that events are sent to.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Has events sent to a URL from now on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SinkRequest {
    /// Where to: `https://…`.
    pub url: String,
    /// Only this tenant's events; absent: everybody's, and the fleet's.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Only these types, or families of them; empty: all.
    #[serde(default)]
    pub types: Vec<String>,
    /// The key of the signatures, `whsec_` and 24 to 64 bytes in base64; absent: one is made.
    #[serde(default)]
    pub secret: Option<String>,
}

/// A new sink, and its secret, which is shown this once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SinkAdded {
    /// The sink.
    pub sink: Sink,
    /// The key of its signatures.
    pub secret: String,
}

/// A sink as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sink {
    /// Its number.
    pub id: i64,
    /// Where events go.
    pub url: String,
    /// Whose; absent: everybody's.
    pub tenant: Option<String>,
    /// Which types; empty: all.
    pub types: Vec<String>,
    /// `active` or `paused`.
    pub state: String,
    /// Why it is paused, or what it missed.
    pub note: Option<String>,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: DateTime<Utc>,
    /// Up to where it has been served.
    pub cursor: String,
    /// Events that are tried again.
    pub waiting: i64,
    /// Dead letters: events that were given up.
    pub dead: i64,
}

/// `GET /v1/sinks`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SinkList {
    /// Sinks, by number.
    pub sinks: Vec<Sink>,
}

/// An event that a sink did not take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// Its place, which names it.
    pub cursor: String,
    /// How often it was tried.
    pub attempts: i32,
    /// What the last try met.
    pub error: Option<String>,
    /// When it was given up.
    pub given_up_at: DateTime<Utc>,
    /// The event.
    #[schema(value_type = crate::Event)]
    pub event: serde_json::Value,
}

/// `GET /v1/sinks/{id}/dead-letters`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterList {
    /// Dead letters, the oldest first; a thousand at most.
    pub dead_letters: Vec<DeadLetter>,
}

/// Sends dead letters again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// The cursors of those; empty: all.
    #[serde(default)]
    pub cursors: Vec<String>,
}

/// What is sent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayAnswer {
    /// How many.
    pub replayed: u64,
}
