//! The broker: partitions over ledgers, and the public gRPC services.
//!
//! - [`options`]: what can be set, with defaults.
//! - [`broker`]: start, serve, hand over.
//! - [`error`]: why a broker does not start.

pub mod broker;
pub mod error;
pub mod options;

pub use broker::Broker;
pub use error::Error;
pub use options::Options;
