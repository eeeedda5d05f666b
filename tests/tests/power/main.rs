//! A standalone process whose power is cut: real broker, bookie, controller and
//! metadata file, on two simulated disks that lose power at the same instant.
//!
//! - [`supply`]: the disks and their power.
//! - [`node`]: the process, from its boot to its end.
//! - [`load`]: clients that produce and administer, and [`book`] what they were
//!   told.
//! - [`world`]: all of it for one seed.
//! - [`reading`]: what is there, over the wire.
//! - [`cuts`], [`damage`]: the tests.
//!
//! The disks draw from the seed, and so do the moments of the cuts, in writes
//! and syncs. The threads of the process are real: what is under way at such a
//! moment differs from run to run. `QUIRE_SIM_POWER_SEED` runs one seed alone.

#![allow(clippy::unwrap_used, clippy::expect_used)] // the whole program is a test

mod book;
mod cuts;
mod damage;
mod load;
mod node;
mod reading;
mod supply;
mod world;
