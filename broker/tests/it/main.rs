//! A whole broker over a real bookie and the embedded store, as its clients see
//! it.

mod bad_input;
mod fetch;
mod idempotence;
mod offsets;
mod produce;
mod segments;
mod server;
mod subscribe;
mod takeover;
mod topics;
