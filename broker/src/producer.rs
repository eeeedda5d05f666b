//! What a partition remembers of its idempotent producers.
//!
//! - [`table`]: the state machine: new, repeated, out of order.
//! - [`snapshot`]: the committed state as bytes, for entry 0 of a ledger.

pub mod snapshot;
pub mod table;

pub use snapshot::Snapshot;
pub use table::{Append, Producers, Verdict};
