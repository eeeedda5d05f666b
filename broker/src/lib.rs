//! The broker: partitions over ledgers, and the public gRPC services.
//!
//! From the edge inwards:
//!
//! - [`broker`]: start, serve, hand over. [`options`], [`error`]: what can be
//!   set, what can go wrong.
//! - [`service`]: the gRPC services.
//! - [`catalog`], [`topic`]: the topics and their partitions.
//! - [`leadership`]: registering, taking over, recovering.
//! - [`shard`]: the tasks that step the partitions' writers.
//! - [`log`]: what readers see of a partition.
//! - [`entry`], [`producer`]: what is appended, and what is remembered of
//!   producers.
//! - [`pool`], [`bookies`]: new ledgers, and who can hold them.
//! - [`call`], [`memory`], [`failure`], [`clock`], [`context`]: what they share.

pub mod bookies;
pub mod broker;
pub mod call;
pub mod catalog;
pub mod clock;
pub mod context;
pub mod entry;
pub mod error;
pub mod failure;
pub mod leadership;
pub mod log;
pub mod memory;
pub mod options;
pub mod pool;
pub mod producer;
pub mod service;
pub mod shard;
#[cfg(test)]
pub mod testing;
pub mod topic;

pub use broker::Broker;
pub use error::Error;
pub use options::Options;
