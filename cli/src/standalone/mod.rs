//! A whole quire in one process, over the interfaces that a cluster has.
//!
//! - [`process`]: the parts, started and stopped in order.
//! - [`storage`]: what they keep their data on.
//! - [`error`]: why they do not start.

pub mod error;
pub mod process;
pub mod storage;

pub use error::Error;
pub use process::{DiskFailed, Options, Standalone};
pub use storage::Storage;
