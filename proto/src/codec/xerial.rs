//! Snappy as Java's clients frame it: a header, then blocks, each behind its
//! length. Some clients send one bare block instead, so that is read too.
//!
//! | at | size | field |
//! |---:|---:|---|
//! | 0 | 8 | magic |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | oldest version that can read it, 1 |
//! | 16 | | blocks: length, 4 bytes big-endian; then as many bytes |

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{CodecError, Compression};

const MAGIC: &[u8; 8] = b"\x82SNAPPY\0";
const HEADER_LEN: usize = 16;

/// Bytes that go into one block.
const BLOCK: usize = 32 << 10;

pub(super) fn compress(input: &[u8], out: &mut BytesMut) -> io::Result<()> {
    out.put_slice(MAGIC);
    out.put_u32(1);
    out.put_u32(1);
    let mut encoder = snap::raw::Encoder::new();
    let mut block = vec![0; snap::raw::max_compress_len(BLOCK)];
    for chunk in input.chunks(BLOCK) {
        let len = encoder.compress(chunk, &mut block).map_err(io::Error::other)?;
        out.put_u32(u32::try_from(len).map_err(io::Error::other)?);
        out.put_slice(&block[..len]);
    }
    Ok(())
}

pub(super) fn decompress(input: &[u8], limit: usize) -> Result<Bytes, CodecError> {
    let mut out = Vec::new();
    if !input.starts_with(MAGIC) {
        block(input, limit, &mut out)?;
        return Ok(out.into());
    }
    let mut rest = input.get(HEADER_LEN..).ok_or(CORRUPT)?;
    while !rest.is_empty() {
        let len = rest.try_get_u32().map_err(|_| CORRUPT)? as usize;
        let (compressed, after) = rest.split_at_checked(len).ok_or(CORRUPT)?;
        block(compressed, limit, &mut out)?;
        rest = after;
    }
    Ok(out.into())
}

const CORRUPT: CodecError = CodecError::Corrupt(Compression::Snappy);

/// A block of `n` bytes gives at most this many times as many: a copy of three
/// bytes stands for 64.
const EXPANSION_MAX: usize = 64;

/// Adds one block to `out`. The length that a block states is believed only as
/// far as its own bytes could give it.
fn block(compressed: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let len = snap::raw::decompress_len(compressed).map_err(|_| CORRUPT)?;
    if len > compressed.len().saturating_mul(EXPANSION_MAX) {
        return Err(CORRUPT);
    }
    if len > limit.saturating_sub(out.len()) {
        return Err(CodecError::TooLarge { limit });
    }
    let from = out.len();
    out.resize(from + len, 0);
    let written = snap::raw::Decoder::new().decompress(compressed, &mut out[from..]).map_err(|_| CORRUPT)?;
    if written == len { Ok(()) } else { Err(CORRUPT) }
}
