use crate::codec::CodecError;
use crate::v1::ErrorReason;

/// Why bytes are not a batch, or not one that a producer may send. Every one of
/// them is determinate (nothing was appended) and will come again when the same
/// bytes are sent again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Fewer bytes than a header, or than the header says.
    #[error("the batch is cut short: it needs {need} bytes and {have} are there")]
    Short {
        /// Bytes of the whole batch, or of a header when that is not there.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// The length field is smaller than a header.
    #[error("the batch says that it is {0} bytes long, which is less than its header")]
    Length(i32),
    /// Another format version.
    #[error("record format version {0} is not supported: send version 2 (magic byte 2)")]
    Version(i8),
    /// The checksum does not match.
    #[error("the batch's CRC-32C is {stated:#010x} but its bytes give {actual:#010x}")]
    Crc {
        /// What the header says.
        stated: u32,
        /// What the bytes give.
        actual: u32,
    },
    /// Larger than the topic allows.
    #[error("the batch has {size} bytes and the limit is {limit} (max.message.bytes)")]
    TooLarge {
        /// Bytes of the whole batch.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// A number in the header is out of its range.
    #[error("the batch's {0} is out of range")]
    Field(&'static str),
    /// Control batches are written by brokers only.
    #[error("a producer may not send a control batch")]
    Control,
    /// Bits 0 to 2 of the attributes name no codec.
    #[error("compression codec {0} is not known")]
    Codec(u8),
    /// Count and last offset delta contradict each other, or the records inside
    /// contradict them.
    #[error("the batch says {count} records with last offset delta {last_delta}, which does not hold")]
    Counts {
        /// Record count of the header.
        count: u32,
        /// Last offset delta of the header.
        last_delta: u32,
    },
    /// The records are malformed.
    #[error("record {index} of the batch is malformed: {what}")]
    Record {
        /// The record's place in the batch, from 0.
        index: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The records cannot be decompressed.
    #[error("the batch's records cannot be decompressed: {0}")]
    Decompress(#[from] CodecError),
    /// The batch that is being built takes no more.
    #[error("the batch would be larger than 2 GiB")]
    Full,
}

impl BatchError {
    /// The reason that a broker answers with.
    #[must_use]
    pub const fn reason(&self) -> ErrorReason {
        match self {
            Self::Short { .. } | Self::Length(_) | Self::Crc { .. } => ErrorReason::CorruptBatch,
            Self::Version(_) => ErrorReason::UnsupportedBatchVersion,
            Self::TooLarge { .. } | Self::Full => ErrorReason::BatchTooLarge,
            Self::Field(_)
            | Self::Control
            | Self::Codec(_)
            | Self::Counts { .. }
            | Self::Record { .. }
            | Self::Decompress(_) => ErrorReason::InvalidBatch,
        }
    }
}
