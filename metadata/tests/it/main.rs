//! Tests of the metadata store and of what quire does in it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod embedded;
mod model;
mod operations;
mod power;
mod reading;
mod suite;
mod world;
