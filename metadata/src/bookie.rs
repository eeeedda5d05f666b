//! Bookies: who belongs to the cluster, and who is alive.

use bytes::Bytes;
use prost::Message;
use quire_proto::id::Nonce;

use crate::typed::{Malformed, Typed, uuid_bytes, uuid_from};
use crate::value;

/// A place in a bookie's log: the log file's generation and the sequence of a
/// commit batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// The log file.
    pub generation: u64,
    /// The commit batch.
    pub sequence: u64,
}

/// `bookie-registry/<uuid>`: a bookie that belongs to the cluster (B1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookieRegistration {
    /// Raised at each start.
    pub generation: u64,
    /// Of the start that raised it.
    pub nonce: Nonce,
    /// Where it stands, empty when not told.
    pub rack: String,
    /// What of its log was durable when it last told: a log that is shorter at
    /// boot has lost its tail (B6).
    pub durable: LogPosition,
}

/// `bookies/<uuid>`: a bookie that is alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookieLiveness {
    /// `host:port` where brokers reach it; empty for an in-process bookie.
    pub address: String,
    /// The start that serves.
    pub generation: u64,
    /// What of its log was durable.
    pub durable: LogPosition,
    /// Whether its disk is too full for new ledgers.
    pub read_only: bool,
    /// Bytes free on its disk.
    pub free_bytes: u64,
}

impl Typed for BookieRegistration {
    const NAME: &'static str = "bookie registration";

    fn encode(&self) -> Bytes {
        value::BookieRegistration {
            generation: self.generation,
            nonce: uuid_bytes(self.nonce.0),
            rack: self.rack.clone(),
            durable_generation: self.durable.generation,
            durable_sequence: self.durable.sequence,
        }
        .encode_to_vec()
        .into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let stored = value::BookieRegistration::decode(bytes.clone())?;
        Ok(Self {
            generation: stored.generation,
            nonce: Nonce(uuid_from(&stored.nonce, "nonce")?),
            rack: stored.rack,
            durable: LogPosition { generation: stored.durable_generation, sequence: stored.durable_sequence },
        })
    }
}

impl Typed for BookieLiveness {
    const NAME: &'static str = "bookie";

    fn encode(&self) -> Bytes {
        value::BookieLiveness {
            address: self.address.clone(),
            generation: self.generation,
            durable_generation: self.durable.generation,
            durable_sequence: self.durable.sequence,
            read_only: self.read_only,
            free_bytes: self.free_bytes,
        }
        .encode_to_vec()
        .into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let stored = value::BookieLiveness::decode(bytes.clone())?;
        Ok(Self {
            address: stored.address,
            generation: stored.generation,
            durable: LogPosition { generation: stored.durable_generation, sequence: stored.durable_sequence },
            read_only: stored.read_only,
            free_bytes: stored.free_bytes,
        })
    }
}
