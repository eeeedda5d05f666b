//! `partitions/<topic uuid>/<partition>`: the epoch and who minted it.

use bytes::Bytes;
use prost::Message;
use quire_proto::id::{Epoch, PartitionId};

use crate::process::Process;
use crate::store::{Guard, Revision};
use crate::typed::{Malformed, Typed, uuid_bytes};
use crate::{key::Keys, value};

/// A partition's leadership, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Raised by every take-over. A partition without a key is at 0.
    pub epoch: Epoch,
    /// The process that minted the epoch (T1); none when it was raised to
    /// depose the leader of a topic that is being deleted.
    pub leader: Option<Process>,
}

impl Typed for Partition {
    const NAME: &'static str = "partition";

    fn encode(&self) -> Bytes {
        let leader = self.leader.as_ref();
        value::Partition {
            epoch: self.epoch.0,
            leader: leader.map(|process| process.broker.to_string()).unwrap_or_default(),
            leader_nonce: leader.map(|process| uuid_bytes(process.nonce.0)).unwrap_or_default(),
        }
        .encode_to_vec()
        .into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let value::Partition { epoch, leader, leader_nonce } = value::Partition::decode(bytes.clone())?;
        let leader = if leader.is_empty() && leader_nonce.is_empty() {
            None
        } else {
            Some(Process::read(&leader, &leader_nonce)?)
        };
        Ok(Self { epoch: Epoch(epoch), leader })
    }
}

/// An epoch that this process minted (T1), as long as nobody minted a higher
/// one. Only a take-over's outcome makes one: it is never built from a value
/// that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The partition led.
    pub partition: PartitionId,
    /// The epoch minted.
    pub epoch: Epoch,
    /// The revision that minted it: the partition's key is written by minting
    /// alone, so the key is unchanged for as long as the epoch is ours.
    pub minted: Revision,
}

impl Leadership {
    /// Holds while no higher epoch was minted.
    #[must_use]
    pub fn guard(&self, keys: &Keys) -> Guard {
        Guard::Unchanged(keys.partition(self.partition), self.minted)
    }
}
