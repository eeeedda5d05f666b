//! The bytes of one batch with each codec, as files: what is stored today must
//! be readable for ever.
//!
//! `QUIRE_WRITE_GOLDEN=1 cargo test -p quire-proto golden` writes the files anew.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use quire_proto::batch::{Batch, Producer};
use quire_proto::codec::Compression;

use crate::support::{self, Input, LIMIT};

fn inputs() -> Vec<Input> {
    let mut inputs: Vec<_> = (0..8)
        .map(|n| Input {
            timestamp_ms: 1_700_000_000_000 + 10 * n,
            key: Some(b"carrier".to_vec()),
            value: Some(format!("a value that repeats itself, repeats itself: {n}").into_bytes()),
            headers: vec![],
        })
        .collect();
    inputs[1].key = None;
    inputs[2].value = None;
    inputs[3].value = Some(vec![]);
    inputs[4].headers = vec![
        (b"a".to_vec(), Some(b"1".to_vec())),
        (b"a".to_vec(), Some(b"2".to_vec())),
        (b"b".to_vec(), None),
    ];
    inputs[5].timestamp_ms -= 100_000;
    inputs
}

fn path(compression: Compression) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{compression}.hex"))
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(32) {
        line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
        text.push('\n');
    }
    text
}

fn unhex(text: &str) -> Bytes {
    let digits: Vec<_> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn stored(compression: Compression) -> Batch {
    let bytes = unhex(&fs::read_to_string(path(compression)).unwrap());
    let [batch] = &Batch::split(bytes).unwrap()[..] else { panic!("one batch") };
    batch.clone()
}

#[test]
fn golden_batches_are_read() {
    for compression in Compression::ALL {
        if std::env::var_os("QUIRE_WRITE_GOLDEN").is_some() {
            let batch =
                support::seal(&inputs(), compression, Producer { id: 4000, epoch: 2, base_sequence: 16 });
            fs::write(path(compression), hex(&batch.bytes)).unwrap();
        }
        let batch = stored(compression);
        batch.check(LIMIT).unwrap();
        assert_eq!(batch.header.attributes.compression(), Ok(compression));
        assert_eq!((batch.header.producer_id, batch.header.producer_epoch), (4000, 2));
        assert_eq!((batch.header.base_sequence, batch.header.record_count), (16, 8));
        assert_eq!(support::records(&batch), inputs(), "{compression}");
    }
}

/// The encoder for uncompressed batches is this crate's own, so its bytes do not
/// change either.
#[test]
fn an_uncompressed_batch_is_built_to_the_byte() {
    let producer = Producer { id: 4000, epoch: 2, base_sequence: 16 };
    let built = support::seal(&inputs(), Compression::None, producer);
    assert_eq!(hex(&built.bytes), hex(&stored(Compression::None).bytes));
}

/// One record, byte by byte as the format's description has it.
#[test]
fn a_record_is_laid_out_as_described() {
    let input = Input {
        timestamp_ms: 5,
        key: Some(b"k1".to_vec()),
        value: Some(b"v11".to_vec()),
        headers: vec![(b"a".to_vec(), Some(b"b".to_vec())), (b"c".to_vec(), None)],
    };
    // Length; attributes, two deltas; key; value; two headers, the second null.
    let expected = unhex("24 000000 04 6b31 06 763131 04 02 61 02 62 02 63 01");
    let batch = support::seal(&[input], Compression::None, Producer::NONE);
    assert_eq!(hex(&batch.bytes[61..]), hex(&expected));
}
