//! The framed-TCP link between brokers and bookies.
//!
//! A connection begins with a hello that names protocol version, cluster and
//! bookie, so that no request reaches another one (B1). Then frames flow both
//! ways:
//!
//! | at | size | field |
//! |---:|---:|---|
//! | 0 | 4 | length of body and trailer |
//! | 4 | 1 | kind |
//! | 5 | 3 | zero |
//! | 8 | 4 | CRC-32C of bytes 0 to 8 |
//! | 12 | | body |
//! | | 4 | CRC-32C of the body; of a frame of records, without their payloads |
//!
//! Records are sent as they are: each carries the CRC of its payload in its
//! header, and whoever stores it checks it, once. A frame has at most 1 MiB, or
//! holds a single larger record.
//!
//! Whatever is no frame ends the connection with a reason. A peer that says
//! nothing for long is gone. No queue grows without bound: a link whose peer
//! does not keep up breaks.
//!
//! - [`frame`]: frames, cut out of a stream of bytes.
//! - [`codec`]: messages as bodies of frames.
//! - `outbox`: what waits to be sent on one connection.
//! - [`client`], [`server`]: the two ends.

pub mod client;
pub mod codec;
pub mod frame;
mod outbox;
pub mod server;
#[cfg(test)]
mod tests;

use std::time::Duration;

use uuid::Uuid;

pub use client::{Resolve, TcpConnector, connect};
pub use frame::FrameError;
pub use server::{Local, serve};

/// The version of what is said on a connection.
pub const VERSION: u32 = 1;

/// How long the parts of a connection may take, and how much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// From the connection to the end of the greeting.
    pub greeting: Duration,
    /// A client that has nothing else to say says so after this long.
    pub ping: Duration,
    /// A peer that says nothing for this long is gone.
    pub silence: Duration,
    /// Bytes that may wait to be sent on one connection.
    pub outbox_bytes: usize,
    /// Requests that may wait for their responses on one connection.
    pub calls: usize,
    /// Connections that a server has open at once; others wait.
    pub connections: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            greeting: Duration::from_secs(5),
            ping: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            outbox_bytes: 256 << 20,
            calls: 256,
            connections: 4_096,
        }
    }
}

/// A cluster's identity.
pub type ClusterId = Uuid;
