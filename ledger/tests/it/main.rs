//! Scenarios of the ledger machines.
//!
//! - [`scenario`]: the files under `tests/scenarios`, run and compared.
//! - [`world`]: brokers, bookies and metadata with messages between them, and
//!   the commands that move it.
//! - [`broker`]: a broker that drives the real writer and recovery.
//! - [`network`]: links, and the messages on their way.
//! - [`bookie`]: a bookie that drives the real replicas on a plain log.
//! - [`store`]: metadata of one partition.

#![allow(clippy::unwrap_used)]

mod bookie;
mod broker;
mod network;
mod scenario;
mod store;
mod world;
