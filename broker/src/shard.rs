//! A shard: a few of the partitions, stepped by one task from one inbox.
//!
//! - [`inbox`]: what comes in, bounded.
//! - [`piece`]: one partition's part of a produce request.
//! - [`writer`]: one partition's side of it: sequences, offsets, entries,
//!   acknowledgements. No I/O.
//! - [`leader`]: a partition that is led: its writer, its ledgers to be, its
//!   rolls. No I/O.
//! - [`links`]: the shard's append streams to bookies.
//! - [`timers`]: when which partition is due.
//! - [`driver`]: the task: carries out what the machines ask for.

pub mod driver;
pub mod inbox;
pub mod leader;
pub mod links;
pub mod piece;
pub mod timers;
pub mod writer;

pub use driver::Shard;
pub use inbox::Inbox;
pub use leader::Leader;
