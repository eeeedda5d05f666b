//! The guarded transactions of quire.
//!
//! - [`bootstrap`]: the cluster's identity.
//! - [`register`][]: brokers.
//! - [`bookie_start`]: bookies (B1) and how far their logs are durable.
//! - [`ids`]: blocks of ids.
//! - [`topics`]: creating and deleting topics.
//! - [`take_over`]: T1 and T2 for many partitions at once.
//! - [`recovery`]: T2, T5 and T6 for one ledger.
//! - [`roll`][]: W3.
//! - [`election`]: the controller, and the guard of all it does.
//! - [`deletion`]: the controller's steps of deleting.

pub mod bookie_start;
pub mod bootstrap;
pub mod deletion;
pub mod election;
pub mod ids;
pub mod recovery;
pub mod register;
pub mod roll;
pub mod take_over;
pub mod topics;
