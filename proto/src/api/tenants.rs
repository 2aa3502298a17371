//! Tenants, who is in which, and their quotas.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The most users or limits that one request names.
pub const TENANT_NAMES_MAX: usize = 1000;

/// A tenant to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantRequest {
    /// Its name.
    pub name: String,
}

/// Who comes into a tenant, and who leaves it for `default`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantUsersRequest {
    /// Users who are in it from now on, wherever they were.
    #[serde(default)]
    pub add: Vec<String>,
    /// Users of it who are not any more.
    #[serde(default)]
    pub remove: Vec<String>,
}

/// Tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantList {
    /// By name.
    pub tenants: Vec<Tenant>,
}

/// Who is billed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Who is in it; in `default` is also everybody who is in none.
    pub users: Vec<String>,
}

/// Limits to be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaRequest {
    /// Resource to the most that may be in use, in the resource's unit; `null` takes the limit away. Resources are `jobs`,
    /// `cpus`, `mem` and `disk` (MiB), `gpus` and `gpus:MODEL` (5040ths of a GPU), and `atoms`.
    pub max: BTreeMap<String, Option<u64>>,
}

/// Quotas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaList {
    /// By tenant, then by resource.
    pub quotas: Vec<Quota>,
}

/// What a tenant has in use of something, and may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// The tenant.
    pub tenant: String,
    /// Of what.
    pub resource: String,
    /// What the amounts count: `1`, `MiB` or `1/5040 GPU`.
    pub unit: String,
    /// What everything of the tenant's that has not ended is charged, what waits included.
    pub used: u64,
    /// The most that may be; absent is no limit. A limit set below what is in use lets nothing new in.
    pub max: Option<u64>,
}
