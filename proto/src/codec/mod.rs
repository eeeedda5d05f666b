//! How the records of a batch are compressed.

mod xerial;

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use bytes::{BufMut, Bytes, BytesMut};

/// A codec of the record batch format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// Records as they are.
    #[default]
    None = 0,
    /// RFC 1952.
    Gzip = 1,
    /// Snappy blocks in the framing of Java's clients; read with or without it.
    Snappy = 2,
    /// LZ4 frames with independent blocks.
    Lz4 = 3,
    /// Zstandard frames.
    Zstd = 4,
}

/// Why records cannot be decompressed. Determinate; the same bytes will fail
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not what the codec writes.
    #[error("the {0} data is corrupt")]
    Corrupt(Compression),
    /// More bytes than allowed come out.
    #[error("more than {limit} bytes come out")]
    TooLarge {
        /// Bytes allowed.
        limit: usize,
    },
}

impl Compression {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// Its number in a batch's attributes.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The codec with this number, if there is one.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            0 => Self::None,
            1 => Self::Gzip,
            2 => Self::Snappy,
            3 => Self::Lz4,
            4 => Self::Zstd,
            _ => return None,
        })
    }

    /// Its name in a topic's and a producer's configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Compresses to the end of `out`.
    ///
    /// # Errors
    /// [`CodecError::Corrupt`] when the codec's library refuses, which it has no
    /// reason to; what it has written so far stays in `out`.
    pub fn compress(self, input: &[u8], out: &mut BytesMut) -> Result<(), CodecError> {
        let done = match self {
            Self::None => {
                out.put_slice(input);
                Ok(())
            }
            Self::Gzip => gzip(input, out),
            Self::Snappy => xerial::compress(input, out),
            Self::Lz4 => lz4(input, out),
            Self::Zstd => zstd(input, out),
        };
        done.map_err(|_| CodecError::Corrupt(self))
    }

    /// Decompresses to at most `limit` bytes; memory stays in proportion to what
    /// comes out.
    ///
    /// # Errors
    /// When the bytes are not what the codec writes, or too much comes out.
    pub fn decompress(self, input: &Bytes, limit: usize) -> Result<Bytes, CodecError> {
        match self {
            Self::None if input.len() > limit => Err(CodecError::TooLarge { limit }),
            Self::None => Ok(input.clone()),
            Self::Gzip => self.read(flate2::bufread::MultiGzDecoder::new(&input[..]), limit),
            Self::Snappy => xerial::decompress(input, limit),
            Self::Lz4 => self.read(Lz4Frames(lz4_flex::frame::FrameDecoder::new(&input[..])), limit),
            Self::Zstd => {
                let reader = zstd::stream::read::Decoder::with_buffer(&input[..]);
                self.read(reader.map_err(|_| CodecError::Corrupt(self))?, limit)
            }
        }
    }

    fn read(self, reader: impl Read, limit: usize) -> Result<Bytes, CodecError> {
        let mut out = Vec::new();
        let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        reader.take(bound).read_to_end(&mut out).map_err(|_| CodecError::Corrupt(self))?;
        if out.len() > limit { Err(CodecError::TooLarge { limit }) } else { Ok(out.into()) }
    }
}

/// Reads frame after frame: the library's decoder ends with each.
struct Lz4Frames<'a>(lz4_flex::frame::FrameDecoder<&'a [u8]>);

impl Read for Lz4Frames<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.0.get_ref().len();
            let read = self.0.read(out)?;
            let progress = self.0.get_ref().len() < left;
            if read > 0 || out.is_empty() || !progress {
                return Ok(read);
            }
        }
    }
}

fn gzip(input: &[u8], out: &mut BytesMut) -> io::Result<()> {
    let mut encoder = flate2::write::GzEncoder::new(out.writer(), flate2::Compression::default());
    encoder.write_all(input)?;
    encoder.finish().map(drop)
}

/// Blocks are independent and of 64 KiB: what Java's clients can read.
fn lz4(input: &[u8], out: &mut BytesMut) -> io::Result<()> {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let info = FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(info, out.writer());
    encoder.write_all(input)?;
    encoder.finish().map(drop).map_err(io::Error::other)
}

fn zstd(input: &[u8], out: &mut BytesMut) -> io::Result<()> {
    let mut encoder = zstd::stream::write::Encoder::new(out.writer(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
    encoder.set_pledged_src_size(u64::try_from(input.len()).ok())?;
    encoder.include_contentsize(true)?;
    encoder.write_all(input)?;
    encoder.finish().map(drop)
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not the name of a codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a compression codec: choose none, gzip, snappy, lz4 or zstd")]
pub struct UnknownCompression(String);

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|codec| codec.name() == text);
        known.ok_or_else(|| UnknownCompression(text.to_owned()))
    }
}
