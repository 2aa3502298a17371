//! The bodies of the HTTP API under `/v1`.
//!
//! JSON answers are an object holding `jobs`, `nodes`, `gpus`, `pools` or `results`; keys are snake case with units in the
//! name; times are RFC 3339 in UTC; an absent value is `null` or missing, never a magic number. The paths:
//!
//! | method and path | body → answer |
//! |---|---|
//! | `POST /v1/jobs` | [`Submission`] → 201 [`Submitted`] |
//! | `POST /v1/jobs/batch` | [`SubmissionBatch`] → [`SubmittedBatch`] |
//! | `GET /v1/jobs?…` | [`JobQuery`] → [`JobList`] |
//! | `GET /v1/jobs/brief?…` | [`JobQuery`] → [`BriefList`]: what a line of a list shows, for long lists |
//! | `GET /v1/jobs/{id}` | `12` or `12_3`, with `detail`; all its tasks for an array → [`JobList`] |
//! | `GET /v1/jobs/{id}/why` | → [`JobList`] with reasons worked out now |
//! | `GET /v1/jobs/{id}/wait?timeout_s=` | answers when the job (every task) ended, or at the timeout → [`JobList`] |
//! | `POST /v1/jobs/cancel` | [`CancelRequest`] → [`ActResults`] |
//! | `POST /v1/jobs/{hold,release,requeue}` | [`ActRequest`] → [`ActResults`] |
//! | `GET /v1/nodes`, `GET /v1/nodes/{name}` | → [`NodeList`] |
//! | `GET /v1/holds?target=` | → [`HoldList`] |
//! | `POST /v1/holds` | [`HoldRequest`] → [`HoldList`]: the one hold that stands now |
//! | `POST /v1/holds/preview` | [`HoldRequest`] → [`HoldImpact`]; changes nothing |
//! | `POST /v1/holds/resume` | [`ResumeRequest`] → [`HoldList`]: what was lifted |
//! | `GET /v1/gpus/changes`, `POST /v1/gpus/changes` | [`GpuChangeRequest`] → [`GpuChangeList`] / [`GpuChangeAnswer`] |
//! | `POST /v1/gpus/changes/{id}/cancel` | → [`GpuChangeList`] |
//! | `GET /v1/pools` | → [`PoolList`] |
//! | `GET /v1/tenants`, `GET /v1/tenants/{name}` | → [`TenantList`] |
//! | `POST /v1/tenants` | [`TenantRequest`] → 201 [`TenantList`] |
//! | `POST /v1/tenants/{name}/users` | [`TenantUsersRequest`] → [`TenantList`] |
//! | `GET /v1/quotas`, `GET /v1/tenants/{name}/quota` | → [`QuotaList`] |
//! | `POST /v1/tenants/{name}/quota` | [`QuotaRequest`] → [`QuotaList`] |
//! | `GET /v1/events?after=&type=&job=&follow=` | → a stream of [`crate::Event`]s, see [`crate::event`] |
//! | `GET /v1/sinks`, `POST /v1/sinks` | for operators; [`SinkRequest`] → [`SinkList`] / 201 [`SinkAdded`] |
//! | `GET /v1/sinks/{id}`, `POST /v1/sinks/{id}/{pause,resume,delete}` | → [`SinkList`] |
//! | `GET /v1/sinks/{id}/dead-letters` | → [`DeadLetterList`] |
//! | `POST /v1/sinks/{id}/replay` | [`ReplayRequest`] → [`ReplayAnswer`] |
//! | `GET /v1/check` | → [`Health`] |
//! | `GET /v1/audit?invariant=…` | for operators; `invariant` names some, separated by commas → [`Audit`] |
//! | `POST /v1/node-tokens` | for operators; [`NodeTokenRequest`] → 201 [`NodeToken`] |
//! | `GET /v1/node-certificates` | → [`NodeCertificateList`] |
//! | `POST /v1/nodes/{name}/revoke` | for operators → [`NodeCertificateList`]: the node's |
//! | `POST /v1/node-join`, `POST /v1/node-renewal` | for `noded`, over TLS; [`JoinRequest`], [`RenewRequest`] → [`IssuedCertificate`] |
//! | `GET /v1/node-session` | WebSocket for `noded`, see [`crate::session`] |
//! | `GET /metrics`, `GET /v1/openapi.json` | |
//!
//! Every answer that is not 2xx carries [`crate::error::ErrorBody`], every other a position ([`crate::position`]).

mod act;
mod audit;
mod gpu_changes;
mod holds;
mod jobs;
mod node_certificates;
mod nodes;
mod reservations;
mod sinks;
mod submission;
mod tenants;

pub use act::*;
pub use audit::*;
pub use gpu_changes::*;
pub use holds::*;
pub use jobs::*;
pub use node_certificates::*;
pub use nodes::*;
pub use reservations::*;
pub use sinks::*;
pub use submission::*;
pub use tenants::*;
