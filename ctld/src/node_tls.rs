//! TLS for the nodes' door: what this controller shows, whom it trusts, and the time it judges certificates by, which is the
//! database's, as for everything else.
//!
//! Kept fresh by [`keep`]: the controller's own certificate is made anew each day, and an authority that another controller made
//! is trusted from then on. The first authority is made here too, by whichever controller comes first.

use crate::app::App;
use crate::clock::Clock;
use crate::pki::{self, Authority, PkiError};
use crate::store::{StoreError, node_certificates};
use chrono::{DateTime, Utc};
use rustls::pki_types::UnixTime;
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::{RootCertStore, ServerConfig};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often everything is made anew.
const REFRESH_EVERY: Duration = Duration::from_secs(3600);
/// How soon again when that failed.
const REFRESH_RETRY: Duration = Duration::from_secs(10);

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The store failed.
    #[error("the certificate authorities cannot be read")]
    Store(#[from] StoreError),
    /// A certificate could not be made or read.
    #[error("the certificates cannot be made")]
    Pki(#[from] PkiError),
    /// The TLS library refuses what it was given.
    #[error("the TLS library")]
    Tls(#[from] rustls::Error),
    /// It does not trust what it was given.
    #[error("the verifier of nodes' certificates")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The clock has not been anchored to the database's yet.
    #[error("the time is not known yet")]
    NoTime,
    /// There is no authority though one was just made.
    #[error("there is no certificate authority")]
    NoAuthority,
}

/// What connections are opened with.
pub struct NodeTls {
    names: Vec<String>,
    current: Mutex<Arc<ServerConfig>>,
}

impl NodeTls {
    /// Makes what connections need, and an authority where there is none.
    pub async fn prepare(app: &App, names: Vec<String>) -> Result<NodeTls, TlsError> {
        let current = Mutex::new(make(app, &names).await?);
        Ok(NodeTls { names, current })
    }

    /// Makes it anew.
    pub async fn refresh(&self, app: &App) -> Result<(), TlsError> {
        let current = make(app, &self.names).await?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = current;
        Ok(())
    }

    /// What the next connection is opened with.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Keeps it fresh until the controller stops.
pub async fn keep(app: App, tls: Arc<NodeTls>) {
    let mut pause = REFRESH_EVERY;
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = match tls.refresh(&app).await {
            Ok(()) => REFRESH_EVERY,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "TLS for nodes is not made anew");
                REFRESH_RETRY
            }
        };
    }
}

/// The authorities that there are, with a new one when the last is near its end.
pub async fn authorities(app: &App) -> Result<Vec<Authority>, TlsError> {
    let now = app.clock.now().ok_or(TlsError::NoTime)?;
    // Before the look: one that another controller makes in between is seen by it, or has this number and comes first.
    let id = node_certificates::next_authority(&app.db).await?;
    let known = node_certificates::authorities(&app.db).await?;
    if known.iter().any(|a| a.expires_at - now > pki::AUTHORITY_LEFT_MIN) {
        return Ok(known);
    }
    let next = pki::make_authority(id, &app.config.cluster, now)?;
    node_certificates::add_authority(&app.db, &next).await?;
    // Another controller's may have come first.
    Ok(node_certificates::authorities(&app.db).await?)
}

async fn make(app: &App, names: &[String]) -> Result<Arc<ServerConfig>, TlsError> {
    let authorities = authorities(app).await?;
    let now = app.clock.now().ok_or(TlsError::NoTime)?;
    let own = pki::for_servers(&authorities, now).ok_or(TlsError::NoAuthority)?.sign_server(names, now)?;
    let mut roots = RootCertStore::empty();
    for authority in &authorities {
        roots.add(authority.der()?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        // A node that joins has no certificate yet; whatever else it asks for is refused.
        .allow_unauthenticated()
        .build()?;
    let clock = Arc::new(DatabaseTime(app.clock.clone()));
    let mut server = ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(own.chain, own.key)?;
    // A resumed session would not look at its certificate again.
    server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(Arc::new(server))
}

/// The time of the one clock, for judging certificates.
#[derive(Debug)]
struct DatabaseTime(Arc<Clock>);

impl TimeProvider for DatabaseTime {
    /// Without a time no certificate is good.
    fn current_time(&self) -> Option<UnixTime> {
        let now: DateTime<Utc> = self.0.now()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.timestamp()).ok()?)))
    }
}
