//! Real processes: started, waited for, and ended when they go out of scope.
//!
//! - [`ports`]: ports that nobody else takes.
//! - [`quire`]: runs commands of `quire` and collects what they say.
//! - [`server`]: `quire standalone` in a directory of its own.
//! - [`flights`]: the data that is sent through.
//! - [`http`]: plain requests.
//! - [`mount`]: a file system that is small.

pub(crate) mod flights;
pub(crate) mod http;
pub(crate) mod mount;
pub(crate) mod ports;
pub(crate) mod quire;
pub(crate) mod server;
pub(crate) mod wait;

pub(crate) use quire::{Finished, Quire};
pub(crate) use server::Server;
pub(crate) use wait::wait_until;
