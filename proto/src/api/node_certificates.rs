//! How nodes on other machines come to be known: join tokens, and the certificates that they are traded for.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest a join token may be good for, in seconds: a week.
pub const TOKEN_TTL_MAX_S: u64 = 7 * 86400;

/// Asks for a join token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeTokenRequest {
    /// The only node that may join with it; without one, any whose name no node has had.
    pub node: Option<String>,
    /// How long it is good for, 1 s to a week.
    pub ttl_s: u64,
}

/// A join token, shown this once.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeToken {
    /// The token: a secret, and by what the node knows the controller.
    pub token: String,
    /// The only node that may join with it.
    pub node: Option<String>,
    /// When it is good no more.
    pub expires_at: DateTime<Utc>,
}

/// Trades a token for a certificate.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The token's secret.
    pub secret: String,
    /// The node.
    pub node: String,
    /// Its pool.
    pub pool: String,
    /// A certificate signing request of the node's key, in PEM.
    pub request: String,
}

/// Asks for a new certificate, by the one that the connection shows.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// A certificate signing request of the node's key, in PEM.
    pub request: String,
}

/// A node's certificate, and whom it may trust.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IssuedCertificate {
    /// The node's certificate, in PEM.
    pub certificate: String,
    /// The certificates of every authority whose controllers the node may trust, in PEM.
    pub authorities: String,
}

/// Certificates of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeCertificateList {
    /// By node, the newest first.
    pub certificates: Vec<NodeCertificate>,
}

/// A node's certificate, without its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeCertificate {
    /// The node.
    pub node: String,
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// When it was issued.
    pub issued_at: DateTime<Utc>,
    /// When it is good no more.
    pub expires_at: DateTime<Utc>,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
    /// By whom.
    pub revoked_by: Option<String>,
}

/// A secret in a log would be one no more.
macro_rules! without_secret {
    ($type:ident, $($shown:ident),+) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type))$(.field(stringify!($shown), &self.$shown))+.finish_non_exhaustive()
            }
        }
    };
}
without_secret!(NodeToken, node, expires_at);
without_secret!(JoinRequest, node, pool);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_shown_for_debugging() {
        let (node, expires_at) = (Some("n1".to_owned()), DateTime::UNIX_EPOCH);
        let token = NodeToken { token: "hush".into(), node, expires_at };
        let join = JoinRequest {
            secret: "hush".into(),
            node: "n1".into(),
            pool: "main".into(),
            request: String::new(),
        };
        let shown = format!("{token:?} {join:?}");
        assert!(shown.contains("n1") && !shown.contains("hush"), "{shown}");
    }
}
