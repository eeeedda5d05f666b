//! The program as users run it: real processes, real files, real sockets.
//!
//! - [`quickstart`]: the first lines of the README.
//! - [`footprint`]: start-up time and idle memory.
//! - [`flights`]: a third of a million records, to seven readers at once.
//! - [`crashes`]: the server killed while a producer goes on.
//! - [`recreated`]: a topic that is another one of the same name.
//! - [`bad_input`]: what is wrong is refused, with cause and remedy.
//! - [`failed_sync`]: a disk that fails a sync.
//! - [`full_disk`]: a disk without space.
//! - [`grpc`]: any language's client, here `grpcurl`.
//! - [`commands`]: what the client commands promise to scripts.
//! - [`bench`]: the measurements run and report.

// All of it is test code: a panic is how it reports.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod bad_input;
mod bench;
mod commands;
mod crashes;
mod failed_sync;
mod flights;
mod footprint;
mod full_disk;
mod grpc;
mod harness;
mod quickstart;
mod recreated;
