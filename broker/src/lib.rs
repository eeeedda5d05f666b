//! The broker: partitions over ledgers, and the public gRPC services.
//!
//! - [`options`]: what can be set, with defaults.
//! - [`broker`]: start, serve, hand over.
//! - [`entry`]: what is appended to a ledger at once.
//! - [`producer`]: idempotent producers of a partition.
//! - [`error`]: why a broker does not start.

pub mod broker;
pub mod entry;
pub mod error;
pub mod options;
pub mod producer;

pub use broker::Broker;
pub use error::Error;
pub use options::Options;
