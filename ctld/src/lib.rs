//! The controller: the API, the store, the reconcilers and the node sessions.
//!
//! Data flows one way: api → core (decide) → store (record) → reconcilers → node session. `api`, `reconcile` and `session` never
//! import one another; they share the store and wake one another through [`wake::Wakes`]. Only `store` speaks SQL. Nothing
//! in memory that a restart could not rebuild from the database and the nodes' reports.

pub mod api;
pub mod app;
pub mod clock;
pub mod config;
pub mod embedded;
pub mod events;
pub mod gather;
pub mod leases;
pub mod membership;
pub mod metrics;
pub mod node_tls;
pub mod pki;
pub mod reconcile;
pub mod run;
pub mod session;
pub mod store;
pub mod wake;
pub mod webhook;
