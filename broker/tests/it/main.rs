//! A whole broker over a real bookie and the embedded store, as its clients see
//! it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod bad_input;
mod events;
mod fetch;
mod idempotence;
mod identity;
mod limits;
mod offsets;
mod produce;
mod segments;
mod server;
mod subscribe;
mod takeover;
mod topics;
