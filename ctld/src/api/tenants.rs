//! Tenants and their quotas. Operators see and change all of them; others see their own.

use super::caller::Operator;
use super::error::{Answer, Failure, invalid};
use super::extract::{Body, Named, NoParams, Params};
use crate::app::{App, Caller};
use crate::store::{quotas, tenants};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use proto::api::{QuotaList, QuotaRequest, TENANT_NAMES_MAX, TenantList, TenantRequest, TenantUsersRequest};
use proto::error::ErrorBody;
use proto::quota::Resource;
use proto::{ApiError, ErrorCode};

/// List tenants
///
/// Every tenant for operators, their own for others.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants", responses(
    (status = 200, description = "tenants, by name", body = TenantList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn list(State(app): State<App>, caller: Caller, _: Params<NoParams>) -> Answer<TenantList> {
    Ok(Json(tenants::list(&app.db, own(&caller)).await?))
}

/// Make a tenant
///
/// One that there is already is left as it is. For operators.
#[utoipa::path(post, path = "/v1/tenants", tag = "tenants", request_body = TenantRequest, responses(
    (status = 201, description = "the tenant", body = TenantList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn add(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Body(request): Body<TenantRequest>,
) -> Result<(StatusCode, Json<TenantList>), Failure> {
    tenants::add(&app.db, &request.name).await?;
    tracing::info!(tenant.name = request.name, user.name = caller.user, "tenant made");
    Ok((StatusCode::CREATED, Json(tenants::list(&app.db, Some(&request.name)).await?)))
}

/// One tenant
#[utoipa::path(get, path = "/v1/tenants/{name}", tag = "tenants", params(("name", description = "its name")), responses(
    (status = 200, description = "the tenant", body = TenantList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Named(name): Named,
) -> Answer<TenantList> {
    may_see(&caller, &name)?;
    Ok(Json(tenants::list(&app.db, Some(&name)).await?))
}

/// Move users into a tenant, and out of it
///
/// What they submit from now on is charged there; what they have submitted stays where it was. For operators.
#[utoipa::path(post, path = "/v1/tenants/{name}/users", tag = "tenants", request_body = TenantUsersRequest,
    params(("name", description = "its name")), responses(
    (status = 200, description = "the tenant as it is now", body = TenantList),
    (status = "default", description = "refused; nobody was moved", body = ErrorBody)))]
pub(super) async fn users(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Named(name): Named,
    Body(request): Body<TenantUsersRequest>,
) -> Answer<TenantList> {
    bounded(request.add.len() + request.remove.len(), "users")?;
    tenants::move_users(&app.db, &name, &request).await?;
    app.membership.changed();
    tracing::info!(tenant.name = name, user.name = caller.user, added = ?request.add, removed = ?request.remove, "users moved");
    Ok(Json(tenants::list(&app.db, Some(&name)).await?))
}

/// List quotas
///
/// Every tenant's for operators, their own for others.
#[utoipa::path(get, path = "/v1/quotas", tag = "tenants", responses(
    (status = 200, description = "what is in use or limited, by tenant", body = QuotaList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn quotas(State(app): State<App>, caller: Caller, _: Params<NoParams>) -> Answer<QuotaList> {
    Ok(Json(quotas::list(&app.db, own(&caller)).await?))
}

/// One tenant's quota
#[utoipa::path(get, path = "/v1/tenants/{name}/quota", tag = "tenants",
    params(("name", description = "its name")), responses(
    (status = 200, description = "what is in use or limited", body = QuotaList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn quota(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Named(name): Named,
) -> Answer<QuotaList> {
    may_see(&caller, &name)?;
    Ok(Json(quotas::list(&app.db, Some(&name)).await?))
}

/// Set a tenant's limits
///
/// Those that are not named stay. A limit below what is in use lets nothing new in. For operators.
#[utoipa::path(post, path = "/v1/tenants/{name}/quota", tag = "tenants", request_body = QuotaRequest,
    params(("name", description = "its name")), responses(
    (status = 200, description = "the quota as it is now", body = QuotaList),
    (status = "default", description = "refused; nothing was set", body = ErrorBody)))]
pub(super) async fn set_quota(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Named(name): Named,
    Body(request): Body<QuotaRequest>,
) -> Answer<QuotaList> {
    bounded(request.max.len(), "limits")?;
    let mut max: Vec<(Resource, Option<u64>)> = Vec::with_capacity(request.max.len());
    for (resource, amount) in &request.max {
        if let Some(amount) = amount.filter(|amount| i64::try_from(*amount).is_err()) {
            return Err(invalid(format!("{amount} {resource} are more than can be counted")).into());
        }
        let resource: Resource = resource.parse().map_err(|error| invalid(format!("{error}")))?;
        if max.iter().any(|(named, _)| *named == resource) {
            return Err(invalid(format!("{resource} is named twice")).into());
        }
        max.push((resource, *amount));
    }
    quotas::set(&app.db, &name, &max).await?;
    tracing::info!(tenant.name = name, user.name = caller.user, max = ?request.max, "quota set");
    Ok(Json(quotas::list(&app.db, Some(&name)).await?))
}

/// What a list is narrowed to.
fn own(caller: &Caller) -> Option<&str> {
    (!caller.operator).then_some(caller.tenant.as_str())
}

fn may_see(caller: &Caller, tenant: &str) -> Result<(), ApiError> {
    if caller.operator || caller.tenant == tenant {
        return Ok(());
    }
    let message = format!("user \"{}\" is in tenant \"{}\", not in \"{tenant}\"", caller.user, caller.tenant);
    Err(ApiError::new(ErrorCode::PermissionDenied, message).hint("operators see every tenant"))
}

fn bounded(count: usize, what: &str) -> Result<(), ApiError> {
    if count <= TENANT_NAMES_MAX {
        return Ok(());
    }
    let message = format!("{count} {what} in one request, at most {TENANT_NAMES_MAX} accepted");
    Err(ApiError::new(ErrorCode::TooLarge, message))
}
