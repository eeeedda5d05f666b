//! Simulator, checker and tests across crates.
//!
//! - [`sim`]: the seeded simulator.

pub mod sim;
