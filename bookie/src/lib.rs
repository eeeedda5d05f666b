//! The bookie: ledgers on disk, written once.
//!
//! A bookie knows nothing of topics or of what an entry holds. From the edge
//! inwards:
//!
//! - [`bookie`]: start, connect, health, shutdown.
//! - [`options`], [`error`]: what can be set, what can go wrong.
//! - [`engine`]: the ledgers' machine on its log.
//! - [`reader`], [`cache`]: reading entries.
//! - [`log`]: files, commit batches, boot.
//! - [`catalog`]: what can be read, and where it is.
//! - [`tail`]: what was written last, in memory.
//! - [`disk`]: the files, real and simulated.

pub mod bookie;
pub mod cache;
pub mod catalog;
pub mod disk;
pub mod engine;
pub mod error;
pub mod log;
pub mod options;
pub mod reader;
pub mod tail;

pub use bookie::{Bookie, Health, InProcessConnector};
pub use error::Error;
pub use options::Options;
