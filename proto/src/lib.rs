//! The words Better Compute's programs share on the wire.
//!
//! Owns: ids, states and waiting reasons (one table each), quantities and their spellings, the HTTP API's
//! bodies, the node session's messages, and the error code table. Nothing here does I/O, reads a clock or
//! decides anything; the controller's rules are in `ctld-core`.

pub mod api;
pub mod atom;
pub mod datetime;
pub mod duration;
pub mod error;
pub mod event;
pub mod gpu_mode;
pub mod gpu_share;
pub mod gres;
pub mod hold_kind;
pub mod id;
pub mod index_set;
pub mod join_token;
pub mod memory;
pub mod mig_profile;
pub mod pattern;
pub mod position;
pub mod quota;
pub mod reason;
pub mod session;
pub mod state;

pub use atom::{Atom, GpuAtom, Slot};
pub use error::{ApiError, ErrorCode};
pub use event::{Cursor, Event};
pub use gpu_mode::GpuMode;
pub use hold_kind::HoldKind;
pub use id::{JobRef, TaskId};
pub use index_set::IndexSet;
pub use mig_profile::ProfileName;
pub use reason::{Check, Condition, Reason};
pub use state::State;
