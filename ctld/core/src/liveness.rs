//! Disconnected is not dead: how long a node may be away before that means something, by why it is away.
//!
//! Source: the guide's table "Disconnected is not dead". Nothing here ends a job: an unreachable node takes no new work, and
//! what is on it keeps its place.

/// Seconds without a session after which a node is unreachable, when nothing but the session is gone.
pub const UNREACHABLE_AFTER_S: u32 = 40;
/// Seconds between two looks beyond which there was an outage: no controller, or no database, that a node could have spoken
/// to. A takeover of the lease takes less.
pub const OUTAGE_S: u32 = 30;

/// Why a node has no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// Its session closed, or its daemon fell silent.
    SessionClosed,
    /// The controller that had its session is gone, or stops: the node has to find another.
    GatewayLost,
    /// The database, or every controller, was away.
    Outage,
}

impl Absence {
    /// Seconds from the beginning of the absence, or the end of the outage, until the node is unreachable.
    pub fn unreachable_after_s(self) -> u32 {
        UNREACHABLE_AFTER_S
            + match self {
                Absence::SessionClosed => 0,
                Absence::GatewayLost => 120,
                Absence::Outage => 300,
            }
    }
}
