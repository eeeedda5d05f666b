//! A whole quire in one process, over the interfaces that a cluster has.
//!
//! - [`standalone`]: the parts, started and stopped in order.
//! - [`storage`]: what they keep their data on.
//! - [`error`]: why they do not start.

pub mod error;
pub mod standalone;
pub mod storage;

pub use error::Error;
pub use standalone::{Options, Standalone};
pub use storage::Storage;
