//! The HTTP API under `/v1`, as `proto::api` lists it: who is asking, what is asked, and the answer's form.
//!
//! Thin on purpose. A handler reads its request, calls the store or a gatherer, and answers; what a job may do is decided in
//! the core, and who may act on which job in the store, in the same transaction as the act. Callers are known by the
//! connection they came on, see `caller`. Everything that can grow is bounded: connections, headers, bodies, lists.

mod act;
mod audit;
mod caller;
mod check;
mod deadline;
mod error;
mod events;
mod extract;
mod gpu_changes;
mod holds;
mod jobs;
mod node_certificates;
mod node_join;
mod node_session;
mod nodes;
mod observe;
mod position;
mod reply;
mod reservations;
mod serve;
mod sinks;
mod slow_reader;
mod submit;
mod tenants;
#[cfg(test)]
mod tests;
mod tls;
mod wait;

pub use serve::{Limits, serve, serve_within};
pub use tls::serve_nodes;

use crate::app::App;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::{Extension, Router, middleware};
use extract::BODY_BYTES_MAX;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

#[derive(OpenApi)]
#[openapi(
    paths(node_join::join, node_join::renew),
    info(
        title = "Better Compute",
        description = "The controller of a Better Compute cluster. Keys are snake case with units in the name, times are \
                       RFC 3339 in UTC, and every answer that is not a success carries an error with a stable code. A success \
                       carries the header `bc-position`: what it shows was committed at or before that position. A request with \
                       `bc-at-least: POSITION` is answered only by a database that has got there: it waits up to 5 s for that, \
                       and is then refused as UNAVAILABLE. A request may say with `bc-deadline-ms: MILLISECONDS` how long its \
                       caller still waits: it is not begun later than that.",
    ),
    tags(
        (name = "jobs", description = "Submitting, looking at and acting on jobs"),
        (name = "nodes", description = "Nodes and pools, and what takes no new work"),
        (name = "reservations", description = "Capacity booked ahead, and more time for what is booked"),
        (name = "tenants", description = "Tenants, who is in them, and their quotas"),
        (name = "events", description = "What happens, told as it happens and to be picked up where one left off"),
        (name = "controller", description = "The controller itself"),
    )
)]
struct Document;

/// Every path of the API.
pub fn router(app: App) -> Router {
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(submit::submit, jobs::list))
        .routes(routes!(submit::submit_batch))
        .routes(routes!(act::cancel))
        .routes(routes!(act::hold))
        .routes(routes!(act::release))
        .routes(routes!(act::requeue))
        .routes(routes!(jobs::brief))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::why))
        .routes(routes!(wait::wait))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::show))
        .routes(routes!(nodes::lost))
        .routes(routes!(holds::list, holds::put))
        .routes(routes!(holds::preview))
        .routes(routes!(holds::resume))
        .routes(routes!(nodes::pools))
        .routes(routes!(gpu_changes::list, gpu_changes::change))
        .routes(routes!(gpu_changes::cancel))
        .routes(routes!(reservations::list, reservations::reserve))
        .routes(routes!(reservations::show))
        .routes(routes!(reservations::cancel))
        .routes(routes!(reservations::extend))
        .routes(routes!(tenants::list, tenants::add))
        .routes(routes!(tenants::show))
        .routes(routes!(tenants::users))
        .routes(routes!(tenants::quotas))
        .routes(routes!(tenants::quota, tenants::set_quota))
        .routes(routes!(events::stream))
        .routes(routes!(sinks::list, sinks::add))
        .routes(routes!(sinks::show))
        .routes(routes!(sinks::pause))
        .routes(routes!(sinks::resume))
        .routes(routes!(sinks::delete))
        .routes(routes!(sinks::dead_letters))
        .routes(routes!(sinks::replay))
        .routes(routes!(check::check))
        .routes(routes!(audit::audit))
        .routes(routes!(node_certificates::token))
        .routes(routes!(node_certificates::list))
        .routes(routes!(node_certificates::revoke))
        .routes(routes!(node_session::open))
        .routes(routes!(observe::metrics))
        .routes(routes!(observe::document))
        .split_for_parts();
    let document = document.to_json().expect("the document is plain data");
    router
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(Extension(observe::Document(Bytes::from(document))))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(middleware::from_fn_with_state(app.clone(), position::carry))
        .layer(middleware::from_fn(error::remember_act))
        .layer(middleware::from_fn(deadline::heed))
        .layer(middleware::from_fn_with_state(app.clone(), observe::count))
        .with_state(app)
}
