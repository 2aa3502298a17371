//! How nodes on other machines come to be known, for operators: join tokens, what was issued for them, and taking it back.

use super::caller::Operator;
use super::error::{Answer, Failure, act_begins, invalid};
use super::extract::{Body, Named, NoParams, Params};
use crate::app::{App, Caller};
use crate::node_tls::{self, TlsError};
use crate::pki::{self, hex};
use crate::store::node_certificates;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use proto::api::{NodeCertificateList, NodeToken, NodeTokenRequest, TOKEN_TTL_MAX_S};
use proto::error::ErrorBody;
use proto::join_token::JoinToken;
use proto::{ApiError, ErrorCode};
use sha2::{Digest, Sha256};

/// Make a join token
///
/// Good once, for one node to join with (`noded join`). It is shown in this answer and kept nowhere. For operators.
#[utoipa::path(post, path = "/v1/node-tokens", tag = "nodes", request_body = NodeTokenRequest, responses(
    (status = 201, description = "the token", body = NodeToken),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn token(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Body(request): Body<NodeTokenRequest>,
) -> Result<(StatusCode, Json<NodeToken>), Failure> {
    if app.config.listen.is_none() {
        return Err(ApiError::new(ErrorCode::Conflict, "this controller takes no nodes of other machines")
            .hint("set `listen` in ctld.toml, such as listen = \"0.0.0.0:7443\"; a node on this machine needs no token")
            .into());
    }
    if request.ttl_s == 0 || request.ttl_s > TOKEN_TTL_MAX_S {
        let message = format!("a token for {} s will not do: 1 to {TOKEN_TTL_MAX_S} accepted", request.ttl_s);
        return Err(invalid(message).into());
    }
    if let Some(node) = &request.node {
        node_name(node)?;
    }
    let authorities = node_tls::authorities(&app).await.map_err(unmade)?;
    let now = app.clock.now().ok_or(TlsError::NoTime).map_err(unmade)?;
    let shown = pki::for_servers(&authorities, now).ok_or(TlsError::NoAuthority).map_err(unmade)?;
    let secret = hex(&rand::random::<[u8; 32]>());
    let token = JoinToken {
        fingerprint: shown.fingerprint().map_err(TlsError::from).map_err(unmade)?,
        secret: secret.clone(),
    };
    let node = request.node;
    let expires_at = node_certificates::add_token(
        &app.db,
        &token_hash(&secret),
        node.as_deref(),
        &caller.user,
        request.ttl_s,
    )
    .await?;
    tracing::info!(user.name = caller.user, node.name = node, %expires_at, "join token made");
    Ok((StatusCode::CREATED, Json(NodeToken { token: token.to_string(), node, expires_at })))
}

/// List nodes' certificates
#[utoipa::path(get, path = "/v1/node-certificates", tag = "nodes", responses(
    (status = 200, description = "by node, the newest first", body = NodeCertificateList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn list(
    State(app): State<App>,
    _: Caller,
    _: Params<NoParams>,
) -> Answer<NodeCertificateList> {
    Ok(Json(node_certificates::list(&app.db, None).await?))
}

/// Revoke a node's certificates
///
/// All that it has; its session is closed. What runs there goes on. Joining again needs a new token. For operators.
#[utoipa::path(post, path = "/v1/nodes/{name}/revoke", tag = "nodes", params(("name", description = "its name")), responses(
    (status = 200, description = "the node's certificates", body = NodeCertificateList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn revoke(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Named(name): Named,
) -> Answer<NodeCertificateList> {
    act_begins();
    let node_id = node_certificates::revoke(&app.db, &name, &caller.user).await?;
    tracing::warn!(node.name = name, user.name = caller.user, "the node's certificates are revoked");
    // Its session looks for commands, wherever it is, and finds that the node is no longer its own.
    app.wakes.commands([node_id]);
    Ok(Json(node_certificates::list(&app.db, Some(&name)).await?))
}

/// What a token's secret is kept as.
pub(super) fn token_hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Refuses what could be no node's name.
pub(super) fn node_name(name: &str) -> Result<(), ApiError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=63).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(fits)
    {
        return Ok(());
    }
    Err(invalid(format!(
        "{name:?} is no node's name: 1 to 63 letters, digits, \".\", \"_\" and \"-\", the first a letter or digit"
    )))
}

/// The answer when certificates cannot be made.
pub(super) fn unmade(error: TlsError) -> Failure {
    match error {
        TlsError::Store(error) => error.into(),
        TlsError::NoTime => Failure(ApiError::new(ErrorCode::Unavailable, "the controller is starting")),
        error => {
            tracing::error!(error = &error as &dyn std::error::Error, "certificates cannot be made");
            Failure(
                ApiError::new(ErrorCode::Internal, "the controller met a fault of its own")
                    .hint("the controller's log says which"),
            )
        }
    }
}
