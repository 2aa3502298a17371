//! Tenants, and who is in which. A user who is in none is in `default`.

use super::StoreError;
use proto::api::{Tenant, TenantList, TenantUsersRequest};
use proto::{ApiError, ErrorCode};
use sqlx::PgPool;

/// The tenant of everybody who is in none.
pub const DEFAULT: &str = "default";

/// The tenant that a user is in.
pub async fn of_user(db: &PgPool, user: &str) -> Result<String, StoreError> {
    let tenant = sqlx::query_scalar!(
        "SELECT t.name FROM tenant_users u JOIN tenants t ON t.id = u.tenant_id WHERE u.user_name = $1",
        user
    )
    .fetch_optional(db)
    .await?;
    Ok(tenant.unwrap_or_else(|| DEFAULT.to_owned()))
}

/// The id of a tenant.
pub async fn id(db: &PgPool, name: &str) -> Result<i32, StoreError> {
    let id = sqlx::query_scalar!("SELECT id FROM tenants WHERE name = $1", name).fetch_optional(db).await?;
    id.ok_or_else(|| {
        ApiError::new(ErrorCode::NotFound, format!("no tenant is called \"{name}\""))
            .hint("`bctl tenant list` lists them")
            .into()
    })
}

/// Makes a tenant. One that there is already is left as it is.
pub async fn add(db: &PgPool, name: &str) -> Result<(), StoreError> {
    let accepted = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.len() > 63
        || !name.starts_with(|c: char| c.is_ascii_alphanumeric())
        || !name.chars().all(accepted)
    {
        let message = format!(
            "{name:?} is no tenant's name: 1 to 63 letters, digits, \".\", \"_\" and \"-\", the first a letter or digit"
        );
        return Err(ApiError::new(ErrorCode::InvalidArgument, message).into());
    }
    sqlx::query!("INSERT INTO tenants (name) VALUES ($1) ON CONFLICT DO NOTHING", name).execute(db).await?;
    Ok(())
}

/// Moves users into a tenant, and out of it. What they have submitted stays charged where it was.
pub async fn move_users(db: &PgPool, tenant: &str, request: &TenantUsersRequest) -> Result<(), StoreError> {
    let tenant_id = id(db, tenant).await?;
    if let Some(user) = request.add.iter().find(|user| user.is_empty() || user.contains(char::is_control)) {
        let message = format!("{user:?} is no user's name");
        return Err(ApiError::new(ErrorCode::InvalidArgument, message).into());
    }
    let mut tx = db.begin().await?;
    sqlx::query!(
        "INSERT INTO tenant_users (user_name, tenant_id) SELECT DISTINCT u, $1::int FROM unnest($2::text[]) u ORDER BY u
         ON CONFLICT (user_name) DO UPDATE SET tenant_id = EXCLUDED.tenant_id",
        tenant_id,
        &request.add
    )
    .execute(&mut *tx)
    .await?;
    let removed = sqlx::query_scalar!(
        "DELETE FROM tenant_users WHERE tenant_id = $1 AND user_name = ANY($2) RETURNING user_name",
        tenant_id,
        &request.remove
    )
    .fetch_all(&mut *tx)
    .await?;
    if let Some(user) = request.remove.iter().find(|user| !removed.contains(user)) {
        let message = format!("user \"{user}\" is not in tenant \"{tenant}\"");
        return Err(ApiError::new(ErrorCode::NotFound, message)
            .hint(format!("`bctl tenant show {tenant}` lists who is"))
            .into());
    }
    tx.commit().await?;
    Ok(())
}

/// Every tenant, or this one, with who is in it.
pub async fn list(db: &PgPool, tenant: Option<&str>) -> Result<TenantList, StoreError> {
    if let Some(tenant) = tenant {
        id(db, tenant).await?;
    }
    let tenants = sqlx::query_as!(
        Tenant,
        r#"SELECT t.name, ARRAY(SELECT u.user_name FROM tenant_users u WHERE u.tenant_id = t.id ORDER BY u.user_name) AS "users!"
           FROM tenants t WHERE $1::text IS NULL OR t.name = $1 ORDER BY t.name"#,
        tenant
    )
    .fetch_all(db)
    .await?;
    Ok(TenantList { tenants })
}

/// Every tenant's name and id.
pub async fn ids(db: &PgPool) -> Result<Vec<(String, i32)>, StoreError> {
    let rows = sqlx::query!("SELECT name, id FROM tenants").fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| (row.name, row.id)).collect())
}
