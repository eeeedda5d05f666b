//! `ids/<kind>/…`: ids come in blocks, each held by one process.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use bytes::Bytes;
use prost::Message;
use quire_proto::id::Nonce;

use crate::process::Process;
use crate::typed::{Malformed, Typed, uuid_bytes, uuid_from};
use crate::value;

/// A block may have at most this many ids.
pub const ID_BLOCK_MAX: u64 = 10_000;

/// What the ids are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdKind {
    /// Ledgers.
    Ledgers,
    /// Idempotent producers.
    Producers,
}

/// The text is no kind of id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are no ids of kind {0:?}")]
pub struct UnknownIdKind(pub String);

impl IdKind {
    /// The first id there is. 0 stands for none.
    pub const FIRST: u64 = 1;
}

impl fmt::Display for IdKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ledgers => "ledgers",
            Self::Producers => "producers",
        })
    }
}

impl FromStr for IdKind {
    type Err = UnknownIdKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "ledgers" => Ok(Self::Ledgers),
            "producers" => Ok(Self::Producers),
            _ => Err(UnknownIdKind(text.to_owned())),
        }
    }
}

/// `ids/<kind>/blocks/<first id>`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdBlock {
    /// Its first id.
    pub first: u64,
    /// How many ids it has, 1 to [`ID_BLOCK_MAX`].
    pub count: u64,
    /// The process that alone may use them; none once the block is released.
    pub holder: Option<Process>,
    /// Drawn for this allocation: tells its maker that it is its own.
    pub attempt: Nonce,
}

impl IdBlock {
    /// The ids of the block.
    #[must_use]
    pub const fn ids(&self) -> Range<u64> {
        self.first..self.first + self.count
    }
}

impl Typed for IdBlock {
    const NAME: &'static str = "id block";

    fn encode(&self) -> Bytes {
        let holder = self.holder.as_ref();
        value::IdBlock {
            first: self.first,
            count: self.count,
            holder: holder.map(|process| process.broker.to_string()).unwrap_or_default(),
            holder_nonce: holder.map(|process| uuid_bytes(process.nonce.0)).unwrap_or_default(),
            released: holder.is_none(),
            attempt: uuid_bytes(self.attempt.0),
        }
        .encode_to_vec()
        .into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let value::IdBlock { first, count, holder, holder_nonce, released, attempt } =
            value::IdBlock::decode(bytes.clone())?;
        if !(1..=ID_BLOCK_MAX).contains(&count) || first.checked_add(count).is_none() {
            return Err(Malformed(format!("{count} ids from {first}")));
        }
        let holder = if released { None } else { Some(Process::read(&holder, &holder_nonce)?) };
        Ok(Self { first, count, holder, attempt: Nonce(uuid_from(&attempt, "attempt")?) })
    }
}

/// `ids/<kind>/next`: the next id that no block has yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdAllocator {
    /// That id.
    pub next: u64,
}

impl Typed for IdAllocator {
    const NAME: &'static str = "id allocator";

    fn encode(&self) -> Bytes {
        value::IdAllocator { next: self.next }.encode_to_vec().into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let value::IdAllocator { next } = value::IdAllocator::decode(bytes.clone())?;
        Ok(Self { next })
    }
}
