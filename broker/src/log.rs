//! A partition's log as readers see it: what is committed, where it is, and
//! the newest of it in memory. Shards write it, request handlers read it.
//!
//! - [`stored`]: an entry as it is read.
//! - [`partition`]: segments, committed end, tail.
//! - [`tail`]: the budget that the tails of all partitions share.
//! - [`waiter`]: long polls and subscriptions that wait for more.
//! - [`cold`]: entries read back from bookies, cached.
//! - [`flights`]: reads under way that several wait for.
//! - [`seek`]: offset or time → entry.
//! - [`reader`]: batches from an offset on, from wherever they are.

pub mod cold;
pub mod flights;
pub mod partition;
pub mod reader;
pub mod seek;
pub mod stored;
pub mod tail;
pub mod waiter;

pub use partition::PartitionLog;
pub use reader::Reader;
pub use stored::StoredEntry;
