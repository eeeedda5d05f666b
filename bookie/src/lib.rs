//! The bookie: ledgers on disk, written once.
//!
//! A bookie knows nothing of topics or of what an entry holds. From the edge
//! inwards:
//!
//! - [`bookie`]: start, connect, health, shutdown.
//! - [`options`], [`error`]: what can be set, what can go wrong.
//! - `link`: the in-process link. `inbox`, `thread`: the log thread.
//! - [`directory`]: the data directory and whose it is (B1). `registrar`: what
//!   is told to the metadata. `importer`: repair (B7). `upkeep`: indexes,
//!   recycling, scrub. `space`: what there is room for (L6).
//! - [`engine`]: the ledgers' machine on its log. The simulator drives it, too.
//! - [`reader`], [`cache`], [`tail`]: reading entries.
//! - [`catalog`]: what can be read, and where it is.
//! - [`reclaim`]: indexes of full files, recycling.
//! - [`log`]: files, commit batches, boot.
//! - [`disk`]: the files, real and simulated.

pub mod bookie;
pub mod cache;
pub mod catalog;
pub mod directory;
pub mod disk;
pub mod engine;
pub mod error;
mod importer;
mod inbox;
mod link;
pub mod log;
pub mod options;
pub mod reader;
pub mod reclaim;
mod registrar;
mod shared;
mod space;
pub mod tail;
mod thread;
mod upkeep;

pub use bookie::{Bookie, Health, InProcessConnector};
pub use error::Error;
pub use options::Options;
