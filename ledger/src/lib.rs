//! The replicated ledger: what brokers and bookies say to one another, and the
//! state machines on both ends, without I/O.
//!
//! - [`record`]: the record, one format on the wire and on disk.
//! - [`message`]: requests to a bookie and its answers.
//! - [`link`]: the trait by which a broker reaches a bookie.
//! - [`tcp`]: the link over framed TCP.
//! - [`ensemble`]: the replicas of a ledger and the arithmetic of quorums.
//! - [`writer`]: one ledger's writer (W1, W2).
//! - [`chain`]: one partition's writer, from ledger to ledger (W3 to W5).
//! - [`replica`]: all ledgers of one bookie (B2 to B8).
//! - [`recovery`]: a new leader's recovery of the last ledger (T2 to T6).
//! - [`clock`]: time as the machines see it.

pub mod chain;
pub mod clock;
pub mod ensemble;
pub mod link;
pub mod message;
pub mod record;
pub mod recovery;
pub mod replica;
pub mod tcp;
pub mod writer;

pub use quire_proto::fault;
