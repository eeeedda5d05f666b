//! Frames, cut out of a stream of bytes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::Decoder;

use crate::record::{DecodeError, HEADER_LEN, PAYLOAD_MAX};

/// Bytes of a frame's header.
pub const FRAME_HEADER_LEN: usize = 12;

/// Bytes of the CRC behind the body.
pub const TRAILER_LEN: usize = 4;

/// Body and trailer of a frame have at most this many bytes: 1 MiB.
pub const FRAME_MAX: usize = 1 << 20;

/// But a frame that holds a single record may have so many.
pub const RECORD_FRAME_MAX: usize = PAYLOAD_MAX + HEADER_LEN + 64;

/// Payload pieces below this many bytes are copied rather than sent in place.
const COPY_BELOW: usize = 4 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The client names version, cluster and bookie.
    Hello = 1,
    /// The server takes it.
    Welcome = 2,
    /// The connection ends, and why.
    Goodbye = 3,
    /// Appends, of any ledgers.
    Append = 4,
    /// A request.
    Request = 5,
    /// The response to one.
    Response = 6,
    /// A response that is entries.
    Entries = 7,
    /// How far ledgers are durable.
    Durable = 8,
    /// An append was not the next one.
    Gap = 9,
    /// An append was refused.
    Refused = 10,
    /// Is somebody there?
    Ping = 11,
    /// Yes.
    Pong = 12,
}

impl Kind {
    const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Goodbye,
            4 => Self::Append,
            5 => Self::Request,
            6 => Self::Response,
            7 => Self::Entries,
            8 => Self::Durable,
            9 => Self::Gap,
            10 => Self::Refused,
            11 => Self::Ping,
            12 => Self::Pong,
            _ => return None,
        })
    }

    /// The most bytes that body and trailer may have.
    const fn max(self) -> usize {
        match self {
            Self::Append | Self::Entries => RECORD_FRAME_MAX,
            Self::Hello => 256,
            _ => FRAME_MAX,
        }
    }
}

/// A frame whose header is sound. Its body is checked by who knows its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// The body.
    pub body: Bytes,
    /// The CRC behind the body.
    pub crc: u32,
}

/// Why bytes are no frame, or a frame no message. The connection ends.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The header's or the body's checksum does not match: garbage, or another
    /// protocol.
    #[error("a frame's checksum does not match: this is not quire's bookie protocol, or it was damaged")]
    Checksum,
    /// A kind that this version does not know.
    #[error("a frame of the unknown kind {0}")]
    UnknownKind(u8),
    /// More bytes than such a frame may have.
    #[error("a frame of {0} bytes is beyond the limit")]
    TooLarge(usize),
    /// A body that is no message.
    #[error("a malformed message: {0}")]
    Malformed(&'static str),
    /// A record in it is none.
    #[error("a malformed record: {0}")]
    Record(#[from] DecodeError),
}

impl FrameError {
    /// Whether the peer just left, between two frames.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof
            || error.kind() == io::ErrorKind::ConnectionReset)
    }
}

impl From<bytes::TryGetError> for FrameError {
    fn from(_: bytes::TryGetError) -> Self {
        Self::Malformed("it is cut short")
    }
}

/// Frames of a greeting have at most this many bytes: who has not greeted gets no
/// memory.
const GREETING_MAX: usize = 2 << 10;

/// Cuts frames out of a stream.
#[derive(Clone, Copy, Debug)]
pub struct FrameDecoder {
    max: usize,
}

impl FrameDecoder {
    /// One that takes no frame larger than a greeting.
    #[must_use]
    pub const fn greeting() -> Self {
        Self { max: GREETING_MAX }
    }
}

impl Default for FrameDecoder {
    fn default() -> Self {
        Self { max: RECORD_FRAME_MAX }
    }
}

impl Decoder for FrameDecoder {
    type Item = Frame;
    type Error = FrameError;

    fn decode(&mut self, from: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(mut header) = from.get(..FRAME_HEADER_LEN) else { return Ok(None) };
        let sound = crc32c::crc32c(&header[..8]);
        let length = header.get_u32_le() as usize;
        let kind = header.get_u8();
        let reserved = [header.get_u8(), header.get_u8(), header.get_u8()];
        if header.get_u32_le() != sound {
            return Err(FrameError::Checksum);
        }
        let kind = Kind::from_u8(kind).ok_or(FrameError::UnknownKind(kind))?;
        if reserved != [0; 3] || length < TRAILER_LEN {
            return Err(FrameError::Malformed("its header"));
        }
        if length > kind.max().min(self.max) {
            return Err(FrameError::TooLarge(length));
        }
        if from.len() < FRAME_HEADER_LEN + length {
            from.reserve(FRAME_HEADER_LEN + length - from.len());
            return Ok(None);
        }
        from.advance(FRAME_HEADER_LEN);
        let body = from.split_to(length - TRAILER_LEN).freeze();
        let crc = from.get_u32_le();
        Ok(Some(Frame { kind, body, crc }))
    }
}

/// Bytes to be sent, in pieces: large payloads are sent from where they are.
#[derive(Debug, Default)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    /// The last piece, still growing.
    tail: BytesMut,
    len: usize,
}

impl Pieces {
    /// Begins a frame whose body will have `body` bytes.
    pub(super) fn begin(&mut self, kind: Kind, body: usize) {
        let length = u32::try_from(body + TRAILER_LEN).unwrap_or(u32::MAX);
        let mut header = [0; 8];
        header[..4].copy_from_slice(&length.to_le_bytes());
        header[4] = kind as u8;
        self.put(&header);
        self.put(&crc32c::crc32c(&header).to_le_bytes());
    }

    /// A whole frame with this body.
    pub(super) fn frame(&mut self, kind: Kind, body: &[u8]) {
        self.begin(kind, body.len());
        self.put(body);
        self.put(&crc32c::crc32c(body).to_le_bytes());
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.tail.put_slice(bytes);
        self.len += bytes.len();
    }

    pub(super) fn put_payload(&mut self, bytes: &Bytes) {
        if bytes.len() < COPY_BELOW {
            return self.put(bytes);
        }
        self.seal_tail();
        self.len += bytes.len();
        self.pieces.push_back(bytes.clone());
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail[..], |piece| &piece[..])
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let tail = Some(&self.tail[..]).filter(|tail| !tail.is_empty());
        let chunks = self.pieces.iter().map(|piece| &piece[..]).chain(tail);
        let mut filled = 0;
        for (slice, chunk) in slices.iter_mut().zip(chunks) {
            *slice = IoSlice::new(chunk);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        self.len -= count;
        while count > 0 {
            let Some(piece) = self.pieces.front_mut() else { return self.tail.advance(count) };
            let step = count.min(piece.len());
            piece.advance(step);
            count -= step;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}
