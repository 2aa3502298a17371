//! What nodes on other machines may ask, over TLS: to join, to renew their certificate, to open their session. Nothing else is
//! served there.
//!
//! A node is known by the certificate that its connection shows; TLS has verified that it is one of ours and not expired, the
//! database says whose it is and whether it was revoked.

use super::error::{Answer, Failure, invalid};
use super::extract::{Body, NoParams, Params};
use super::node_certificates::{node_name, token_hash, unmade};
use super::node_session::upgrade;
use super::serve::Held;
use crate::app::App;
use crate::node_tls::{self, TlsError};
use crate::pki::{self, Authority, Issued, Request};
use crate::session::Certified;
use crate::store::node_certificates::{self as store, Joining};
use axum::extract::FromRequestParts;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::request::Parts;
use axum::response::Response;
use axum::{Extension, Json};
use chrono::{DateTime, TimeDelta, Utc};
use proto::api::{IssuedCertificate, JoinRequest, RenewRequest};
use proto::error::ErrorBody;
use proto::{ApiError, ErrorCode};
use std::sync::Arc;

/// The serial number of the certificate that a connection has shown.
#[derive(Clone, Debug)]
pub(super) struct Shown(pub Option<String>);

impl FromRequestParts<App> for Certified {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Certified, Failure> {
        let Some(Shown(Some(serial))) = parts.extensions.get::<Shown>().cloned() else {
            return Err(ApiError::new(ErrorCode::PermissionDenied, "the connection shows no certificate")
                .hint("`noded join` gets one")
                .into());
        };
        match store::holder(&app.db, &serial).await? {
            Some(holder) if !holder.revoked => Ok(Certified { serial, node: holder.node }),
            _ => Err(store::not_good().into()),
        }
    }
}

/// Join the cluster
///
/// For `noded join`, on the TLS address only: trades a join token for a certificate. The same token and key are answered with the
/// same certificate, so that a lost answer can be asked for again.
#[utoipa::path(post, path = "/v1/node-join", tag = "nodes", request_body = JoinRequest, responses(
    (status = 200, description = "the certificate", body = IssuedCertificate),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn join(
    State(app): State<App>,
    _: Params<NoParams>,
    Body(request): Body<JoinRequest>,
) -> Answer<IssuedCertificate> {
    node_name(&request.node)?;
    let signing = Signing::begin(&app).await?;
    let asked = read(&request.request)?;
    let (authority, issued) = signing.sign(&app, &asked, &request.node)?;
    let certificate = store::join(
        &app.db,
        &Joining {
            token_hash: &token_hash(&request.secret),
            node: &request.node,
            pool: &request.pool,
            key_hash: &asked.key_hash,
            issued: &issued,
            authority_id: authority.id,
        },
    )
    .await?;
    tracing::info!(node.name = request.node, "node joined");
    Ok(Json(signing.answer(certificate)))
}

/// Renew a node's certificate
///
/// For `noded`, on the TLS address only, with the certificate that it has. The old one stays good until it ends.
#[utoipa::path(post, path = "/v1/node-renewal", tag = "nodes", request_body = RenewRequest, responses(
    (status = 200, description = "the new certificate", body = IssuedCertificate),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn renew(
    State(app): State<App>,
    certified: Certified,
    _: Params<NoParams>,
    Body(request): Body<RenewRequest>,
) -> Answer<IssuedCertificate> {
    let signing = Signing::begin(&app).await?;
    let asked = read(&request.request)?;
    let (authority, issued) = signing.sign(&app, &asked, &certified.node)?;
    let certificate =
        store::renew(&app.db, &certified.serial, &asked.key_hash, &issued, authority.id).await?;
    tracing::info!(node.name = certified.node, "the node's certificate is renewed");
    Ok(Json(signing.answer(certificate)))
}

/// The session of a node that its certificate names; in the document it is the same path as on the unix socket.
pub(super) async fn session(
    State(app): State<App>,
    certified: Certified,
    _: Params<NoParams>,
    held: Option<Extension<Arc<Held>>>,
    request: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    upgrade(app, Some(certified), held, request)
}

/// The authorities and the time at which something is signed.
struct Signing {
    authorities: Vec<Authority>,
    now: DateTime<Utc>,
}

impl Signing {
    async fn begin(app: &App) -> Result<Signing, Failure> {
        let authorities = node_tls::authorities(app).await.map_err(unmade)?;
        let now = app.clock.now().ok_or(TlsError::NoTime).map_err(unmade)?;
        Ok(Signing { authorities, now })
    }

    fn sign(&self, app: &App, asked: &Request, node: &str) -> Result<(&Authority, Issued), Failure> {
        let authority =
            pki::for_nodes(&self.authorities, self.now).ok_or(TlsError::NoAuthority).map_err(unmade)?;
        let life = TimeDelta::days(i64::from(app.config.node_certificate_days));
        let issued =
            authority.sign_node(asked, node, self.now, life).map_err(TlsError::from).map_err(unmade)?;
        Ok((authority, issued))
    }

    fn answer(&self, certificate: String) -> IssuedCertificate {
        IssuedCertificate {
            certificate,
            authorities: self.authorities.iter().map(|a| a.certificate.as_str()).collect(),
        }
    }
}

fn read(request: &str) -> Result<Request, ApiError> {
    pki::read_request(request)
        .map_err(|error| invalid(format!("the request for a certificate cannot be used: {error}")))
}
