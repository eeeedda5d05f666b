//! The entry: what a broker appends to a ledger at once, a header and the
//! batches of one partition, or a part of a snapshot.
//!
//! - [`header`]: the header, which a prefix read returns alone.
//! - [`builder`]: batches that wait for one partition become one entry.

pub mod builder;
pub mod header;

pub use builder::{Built, EntryBuilder};
pub use header::{EntryError, EntryHeader, EntryKind, Line};
