//! The embedded backend: everything in this process, kept in one local file.
//!
//! - [`state`]: revisions, guards, limits, history and leases, as a plain
//!   struct without clock, disk or task.
//! - [`mod@file`]: the store whose transactions are answered once they are durable
//!   in the file.
//! - [`sim`]: a disk in memory for that file, whose power can be cut.
//! - [`volatile`]: the same without a file and with a clock that is moved by
//!   hand, for tests and simulation.

pub mod file;
mod shared;
pub mod sim;
pub mod state;
pub mod volatile;

pub use file::{EmbeddedStore, OpenError};
pub use sim::SimBackend;
pub use state::State;
pub use volatile::{Fault, VolatileStore};
