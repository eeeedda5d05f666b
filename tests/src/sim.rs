//! The simulator: the shipped machines under virtual time, with faults.
//!
//! A seed names a run. It is drawn what the run is like ([`plan`]), then clients
//! work and trouble strikes; then everything is healed, must move again, and is
//! read whole. On the way promises are checked ([`violation`]).
//!
//! What decides and what is seen:
//! - [`random`], [`scheduler`]: the one generator and the virtual clock. Nothing else decides what
//!   happens next: the same seed gives the same [`trace`], byte for byte.
//! - [`plan`]: what a run is like, drawn from its seed.
//! - [`world`]: the run; [`workload`], [`trouble`], [`deletion`], [`finale`]: what happens in it.
//! - [`runner`]: many seeds. [`hits`]: how often each fault occurred.
//!
//! The machines and what is around them:
//! - [`bookie`] on a [`disk`] that drops and tears what was not synced.
//! - [`broker`], its [`pool`] of ledgers, its partitions ([`slot`]) and how they are read
//!   ([`reading`]).
//! - [`store`]: metadata, reached through the [`gate`] of each process.
//! - [`network`]: links that are late, lossy and break.
//! - [`client`]: producers and readers; [`batches`]: what they send and how it is told apart.
//!
//! Who judges:
//! - [`history`]: what clients saw, and whether it can be so.
//! - [`inspector`]: what metadata and bookies say, watched step by step.
//! - [`replay`]: what the entries of a chain make, read when all is over.

pub mod batches;
pub mod bookie;
pub mod broker;
pub mod client;
pub mod deletion;
pub mod disk;
pub mod finale;
pub mod gate;
pub mod history;
pub mod hits;
pub mod inspector;
pub mod network;
pub mod plan;
pub mod pool;
pub mod random;
pub mod reading;
pub mod replay;
pub mod runner;
pub mod scheduler;
pub mod slot;
pub mod store;
pub mod trace;
pub mod trouble;
pub mod violation;
pub mod workload;
pub mod world;
