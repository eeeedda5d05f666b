//! Identifiers. Each is a type of its own, so that a swapped argument does not
//! compile.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The next one.
            ///
            /// # Panics
            /// At `u64::MAX`, which no counter of quire reaches.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

macro_rules! uuid {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

number! {
    /// A ledger. Unique in a cluster, never used again.
    LedgerId
}
number! {
    /// An entry's place in its ledger, from 0. As a length or an end it is the
    /// number of entries: one past the last.
    EntryId
}
number! {
    /// A partition's leader generation, the fencing token. 0 is before any
    /// leader.
    Epoch
}
number! {
    /// A record's place in its partition, from 0, dense.
    Offset
}
uuid! {
    /// A cluster's identity, made by its first starter.
    ClusterId
}
uuid! {
    /// A bookie's identity: made when its data directory is formatted.
    BookieId
}
uuid! {
    /// A topic's identity: a topic that is created anew under an old name has
    /// another.
    TopicId
}
uuid! {
    /// A number that only its maker knows, for telling one's own writes from
    /// another's: a process's run, a creation, an attempt.
    Nonce
}

/// A partition's number in its topic, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionIndex(pub u32);

impl fmt::Display for PartitionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One partition of one topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    /// Its topic.
    pub topic: TopicId,
    /// Its number in the topic.
    pub index: PartitionIndex,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.index)
    }
}
