//! The simulator: the shipped machines under virtual time, with faults.
//!
//! - [`random`], [`scheduler`]: the one generator and the virtual clock. Nothing else decides what
//!   happens next: the same seed gives the same [`trace`], byte for byte.
//! - [`network`]: links that are late, lossy and break.
//! - [`history`]: what clients saw, and whether it can be so.
//! - [`violation`]: the promises that are checked.
//! - [`hits`]: how often each fault occurred.

pub mod history;
pub mod hits;
pub mod network;
pub mod random;
pub mod scheduler;
pub mod trace;
pub mod violation;
