//! The replicated ledger: what brokers and bookies say to one another, and the
//! state machines on both ends, without I/O.
//!
//! - [`record`]: the record, one format on the wire and on disk.
//! - [`message`]: requests to a bookie and its answers.
//! - [`link`]: the trait by which a broker reaches a bookie.

pub mod link;
pub mod message;
pub mod record;
