//! Processes of brokers and controllers: each run has a nonce of its own.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use quire_proto::id::Nonce;

use crate::typed::{Malformed, Typed, uuid_bytes, uuid_from};
use crate::value;

/// A broker's name may have at most this many bytes.
pub const BROKER_NAME_MAX: usize = 128;

/// A broker's name: the same over its restarts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerName(Arc<str>);

/// The text is not a broker's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("broker id {0:?} is not valid: it must have 1 to {BROKER_NAME_MAX} letters, digits, '-', '_' or '.'")]
pub struct InvalidBrokerName(pub String);

impl BrokerName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BrokerName {
    type Err = InvalidBrokerName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > BROKER_NAME_MAX || !text.chars().all(allowed) {
            return Err(InvalidBrokerName(text.to_owned()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for BrokerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One run of a broker. What it minted or holds is told by the nonce: the name
/// alone may be an earlier run's (T1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// The broker's name.
    pub broker: BrokerName,
    /// Drawn at this start.
    pub nonce: Nonce,
}

impl Process {
    pub(crate) fn read(broker: &str, nonce: &Bytes) -> Result<Self, Malformed> {
        Ok(Self {
            broker: broker.parse().map_err(|error: InvalidBrokerName| Malformed(error.to_string()))?,
            nonce: Nonce(uuid_from(nonce, "nonce")?),
        })
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (run {})", self.broker, self.nonce)
    }
}

/// `brokers/<id>`: a broker that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// The run that serves.
    pub process: Process,
    /// `host:port` where clients and brokers reach it.
    pub address: String,
    /// Where it stands, empty when not told.
    pub rack: String,
}

impl Typed for Broker {
    const NAME: &'static str = "broker";

    fn encode(&self) -> Bytes {
        let Self { process, address, rack } = self;
        value::Broker {
            id: process.broker.to_string(),
            address: address.clone(),
            nonce: uuid_bytes(process.nonce.0),
            rack: rack.clone(),
        }
        .encode_to_vec()
        .into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let value::Broker { id, address, nonce, rack } = value::Broker::decode(bytes.clone())?;
        Ok(Self { process: Process::read(&id, &nonce)?, address, rack })
    }
}

/// `controller`: the elected controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// The run that was elected.
    pub process: Process,
}

impl Typed for Controller {
    const NAME: &'static str = "controller";

    fn encode(&self) -> Bytes {
        let Process { broker, nonce } = &self.process;
        value::Controller { id: broker.to_string(), nonce: uuid_bytes(nonce.0) }.encode_to_vec().into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let value::Controller { id, nonce } = value::Controller::decode(bytes.clone())?;
        Ok(Self { process: Process::read(&id, &nonce)? })
    }
}
