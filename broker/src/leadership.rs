//! Leading partitions: registering, taking over, recovering, restoring state.
//!
//! - [`registration`]: the broker's lease.
//! - [`manager`]: follows the topics and takes their partitions over.
//! - [`take_over`]: T1 and T2, in bulk.
//! - [`recover`]: the chain's last ledger, T3 to T6.
//! - [`scan`]: a ledger's headers, read once: its end and the state it holds.
//! - [`deposed`]: partitions that were lost to another leader.

pub mod deposed;
pub mod manager;
pub mod recover;
pub mod registration;
pub mod scan;
pub mod take_over;

pub use deposed::Deposed;
