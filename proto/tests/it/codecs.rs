use bytes::{BufMut, Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use quire_proto::codec::{CodecError, Compression};

use crate::support;

const TEXT: &[u8] = b"what repeats itself, repeats itself, repeats itself";

fn compressed(codec: Compression, input: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    codec.compress(input, &mut out).unwrap();
    out
}

proptest! {
    #[test]
    fn what_is_compressed_is_decompressed(
        input in vec(any::<u8>(), 0..2000),
        times in 1_usize..100,
        codec in support::compression(),
    ) {
        let input = input.repeat(times);
        let out = compressed(codec, &input).freeze();
        prop_assert_eq!(codec.decompress(&out, input.len()), Ok(Bytes::from(input.clone())));
        if let Some(limit) = input.len().checked_sub(1) {
            prop_assert_eq!(codec.decompress(&out, limit), Err(CodecError::TooLarge { limit }));
        }
    }
}

#[test]
fn compressing_adds_to_the_end() {
    for codec in Compression::ALL {
        let mut out = BytesMut::from(&b"before"[..]);
        codec.compress(TEXT, &mut out).unwrap();
        assert!(out.starts_with(b"before"));
        let rest = out.split_off(6).freeze();
        assert_eq!(codec.decompress(&rest, 1000), Ok(Bytes::from_static(TEXT)), "{codec}");
    }
}

#[test]
fn cut_data_is_corrupt_or_short_and_never_more() {
    for codec in &Compression::ALL[1..] {
        let whole = compressed(*codec, TEXT).freeze();
        for len in 1..whole.len() {
            match codec.decompress(&whole.slice(..len), 1000) {
                Ok(out) => assert!(TEXT.starts_with(&out), "{codec} at {len}"),
                Err(error) => assert_eq!(error, CodecError::Corrupt(*codec), "{codec} at {len}"),
            }
        }
    }
}

/// Some clients send snappy without the framing of Java's.
#[test]
fn a_bare_snappy_block_is_read() {
    let bare = snap::raw::Encoder::new().compress_vec(TEXT).unwrap();
    assert_eq!(Compression::Snappy.decompress(&bare.into(), 1000), Ok(Bytes::from_static(TEXT)));
}

#[test]
fn a_snappy_block_that_lies_about_its_length_allocates_nothing() {
    let mut lying = BytesMut::new();
    // A length of 256 MiB, and three bytes.
    lying.put_slice(&[0x80, 0x80, 0x80, 0x80, 0x01, 0, 0, 0]);
    let corrupt = Err(CodecError::Corrupt(Compression::Snappy));
    assert_eq!(Compression::Snappy.decompress(&lying.freeze(), 1 << 30), corrupt);
}

/// A producer may join several frames.
#[test]
fn joined_frames_are_read() {
    for codec in [Compression::Gzip, Compression::Lz4, Compression::Zstd] {
        let mut joined = compressed(codec, b"one, ");
        joined.unsplit(compressed(codec, b"two"));
        let out = codec.decompress(&joined.freeze(), 1000);
        assert_eq!(out, Ok(Bytes::from_static(b"one, two")), "{codec}");
    }
}

#[test]
fn codecs_have_names_and_numbers() {
    for codec in Compression::ALL {
        assert_eq!(codec.name().parse(), Ok(codec));
        assert_eq!(Compression::from_id(codec.id()), Some(codec));
    }
    assert_eq!(Compression::from_id(5), None);
    let error = "brotli".parse::<Compression>().unwrap_err().to_string();
    assert!(error.contains("brotli") && error.contains("none, gzip, snappy, lz4 or zstd"), "{error}");
}
