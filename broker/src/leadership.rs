//! Leading partitions: registering, taking over, recovering, restoring state.
//!
//! - [`registration`]: the broker's lease.
//! - [`manager`]: follows the topics and takes their partitions over.
//! - [`take_over`]: T1 and T2, in bulk.
//! - [`promotion`]: from taken over to led: the last ledger is recovered (T3 to
//!   T6) and the state restored. No I/O.
//! - [`scan`]: a ledger's headers, read once: its end and the state it holds. No
//!   I/O.
//! - [`driver`]: the task that carries out what a promotion asks for.
//! - [`deposed`]: partitions that were lost to another leader.

pub mod deposed;
pub mod driver;
pub mod manager;
pub mod promotion;
pub mod registration;
pub mod scan;
pub mod take_over;

pub use deposed::Deposed;
pub use promotion::{Promoted, Promotion};
