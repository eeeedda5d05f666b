//! A partition's chain of segments.

use std::fmt;

use bytes::Bytes;
use prost::Message;
use quire_proto::id::{LedgerId, Offset};

use crate::typed::{Malformed, Typed};
use crate::value;

/// A segment's place in its chain. Places are used in order and never again;
/// retention takes them away at the front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainSequence(pub u64);

impl ChainSequence {
    /// The place after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for ChainSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `segments/<topic uuid>/<partition>/<chain sequence>`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The offset of its first record.
    pub base_offset: Offset,
    /// Where its bytes are.
    pub ledger: LedgerId,
}

impl Typed for Segment {
    const NAME: &'static str = "segment";

    fn encode(&self) -> Bytes {
        value::Segment { base_offset: self.base_offset.0, ledger: self.ledger.0 }.encode_to_vec().into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let value::Segment { base_offset, ledger } = value::Segment::decode(bytes.clone())?;
        Ok(Self { base_offset: Offset(base_offset), ledger: LedgerId(ledger) })
    }
}
