//! The audit on request.

use super::caller::Operator;
use super::error::Answer;
use super::extract::Params;
use crate::app::App;
use crate::store::audit;
use axum::Json;
use axum::extract::State;
use proto::api::Audit;
use proto::error::ErrorBody;
use serde::Deserialize;

/// The query.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AuditParams {
    invariant: String,
}

/// Check every invariant
///
/// In one snapshot of the database, by statements that share nothing with those that keep the invariants. Costs a pass over the
/// whole book. For operators.
#[utoipa::path(get, path = "/v1/audit", tag = "controller",
    params(("invariant" = Option<String>, Query, description = "only these, by name, separated by commas")), responses(
    (status = 200, description = "what was found, broken or not", body = Audit),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn audit(
    State(app): State<App>,
    Operator(_): Operator,
    Params(params): Params<AuditParams>,
) -> Answer<Audit> {
    let names: Vec<String> =
        params.invariant.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Ok(Json(audit::audit(&app.db, audit::Look { names: &names, ..Default::default() }).await?))
}
