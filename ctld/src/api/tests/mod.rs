//! The API through a real unix socket, over a real database.

mod connections;
mod door;
mod events;
mod forms;
mod jobs;
mod nodes;
mod tenants;
mod tls;
