//! The bookie: ledgers on disk, written once.
//!
//! A bookie knows nothing of topics or of what an entry holds. From the edge
//! inwards:
//!
//! - [`bookie`]: start, connect, health, shutdown.
//! - [`options`], [`error`]: what can be set, what can go wrong.
//! - [`disk`]: the files, real and simulated.

pub mod bookie;
pub mod disk;
pub mod error;
pub mod options;

pub use bookie::{Bookie, Health, InProcessConnector};
pub use error::Error;
pub use options::Options;
