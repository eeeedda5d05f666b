//! The record batch, version 2 of Kafka's format: the one form of data on the
//! wire, in a ledger and in an object.
//!
//! - [`Header`]: the 61 bytes in front, [`Attributes`] among them.
//! - [`Batch`]: one sealed batch; cutting a run of them apart, checking one that
//!   a producer sent, stamping offset and epoch.
//! - [`Records`]: the records inside.
//! - [`Builder`]: records encoded straight into the buffer that is sealed.
//! - [`BatchError`]: why bytes are not a batch.
//!
//! | at | size | field | who sets it |
//! |---:|---:|---|---|
//! | 0 | 8 | base offset | broker |
//! | 8 | 4 | batch length: bytes after this field | producer |
//! | 12 | 4 | leader epoch | broker |
//! | 16 | 1 | magic, 2 | producer |
//! | 17 | 4 | CRC-32C of everything from 21 on | producer |
//! | 21 | 2 | attributes | producer |
//! | 23 | 4 | last offset delta | producer |
//! | 27 | 8 | base timestamp, ms | producer |
//! | 35 | 8 | max timestamp, ms | producer |
//! | 43 | 8 | producer id, -1 for none | producer |
//! | 51 | 2 | producer epoch | producer |
//! | 53 | 4 | base sequence | producer |
//! | 57 | 4 | record count | producer |
//! | 61 | | records, compressed or not | producer |
//!
//! Numbers are big-endian. What the broker sets lies outside the checksum, so
//! that stamping a batch neither decodes nor sums it anew.

mod builder;
mod error;
mod header;
mod record;
mod sealed;
mod varint;

pub use builder::{Builder, NO_HEADERS, Producer, UNRESOLVED_MAX};
pub use error::BatchError;
pub use header::{Attributes, Header};
pub use record::{Headers, Record, RecordHeader, RecordView, Records, Views};
pub use sealed::{Batch, Batches};
