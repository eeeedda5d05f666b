//! Tests of the controller over a store in memory and bookies that fail in all
//! ways. Time is virtual.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod bookies;
mod cut;
mod deletes;
mod elections;
mod interruptions;
mod reclaim;
mod world;
