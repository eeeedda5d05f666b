//! `cluster`: what the whole store belongs to.

use bytes::Bytes;
use prost::Message;
use quire_proto::id::ClusterId;

use crate::typed::{Malformed, Typed, uuid_bytes, uuid_from};
use crate::value;

/// The version of keys and values that this program writes.
pub const FORMAT_VERSION: u32 = 1;

/// The cluster's identity and what must be the same for all its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Made by the first starter.
    pub id: ClusterId,
    /// The version of keys and values.
    pub format_version: u32,
    /// Where objects go; empty without tiering.
    pub bucket: String,
    /// What the names of objects start with.
    pub prefix: String,
}

impl Typed for Cluster {
    const NAME: &'static str = "cluster";

    fn encode(&self) -> Bytes {
        value::Cluster {
            id: uuid_bytes(self.id.0),
            format_version: self.format_version,
            bucket: self.bucket.clone(),
            prefix: self.prefix.clone(),
        }
        .encode_to_vec()
        .into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let value::Cluster { id, format_version, bucket, prefix } = value::Cluster::decode(bytes.clone())?;
        Ok(Self { id: ClusterId(uuid_from(&id, "cluster id")?), format_version, bucket, prefix })
    }
}
