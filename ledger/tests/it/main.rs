//! Scenarios of the ledger machines, and the TCP link.
//!
//! - [`scenario`]: the files under `tests/scenarios`, run and compared.
//! - [`random`]: scenarios made up at random.
//! - [`world`]: brokers, bookies and metadata with messages between them, and
//!   the commands that move it.
//! - [`broker`]: a broker that drives the real writer and recovery.
//! - [`network`]: links, and the messages on their way.
//! - [`bookie`]: a bookie that drives the real replicas on a plain log.
//! - [`store`]: metadata of one partition.
//! - [`tcp`]: the TCP link over the loopback.

#![allow(clippy::unwrap_used)]

mod bookie;
mod broker;
mod network;
mod random;
mod scenario;
mod store;
mod tcp;
mod world;
