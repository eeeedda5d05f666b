//! Consuming: assigned partitions are read from where one wishes.
//!
//! - [`Consumer`]: assign, seek, next batch.
//! - [`ConsumerOptions`]: what can be set; [`Start`]: where to begin;
//!   [`Until`]: where to end.
//! - [`FetchedBatch`]: records of one partition, in order.

mod assigned;
mod batch;
mod handle;
mod options;
mod stream;

pub use batch::{FetchedBatch, FetchedRecords};
pub use handle::Consumer;
pub use options::{ConsumerOptions, Start, Until};
