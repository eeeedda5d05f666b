use bytes::Bytes;
use quire_proto::batch::{Batch, Header, Producer};
use quire_proto::codec::Compression;

use crate::support::{self, Input, LIMIT};

/// The leader epoch: outside the checksum, and overwritten by the broker.
const NOT_LOOKED_AT: std::ops::Range<usize> = Header::LENGTH_END..Header::STAMPED_LEN;

fn sample(compression: Compression) -> Batch {
    let inputs: Vec<_> = (0..20)
        .map(|n| Input {
            timestamp_ms: 1_700_000_000_000 + n,
            key: Some(format!("key {}", n % 3).into_bytes()),
            value: Some(format!("the value of record number {n}").into_bytes()),
            headers: vec![(b"header".to_vec(), (n % 2 == 0).then(|| b"value".to_vec()))],
        })
        .collect();
    support::seal(&inputs, compression, Producer { id: 3, epoch: 1, base_sequence: 60 })
}

#[test]
fn every_flipped_bit_is_noticed() {
    for compression in Compression::ALL {
        let batch = sample(compression);
        assert_eq!(batch.header.attributes.compression(), Ok(compression));
        for bit in (0..batch.bytes.len() * 8).filter(|bit| !NOT_LOOKED_AT.contains(&(bit / 8))) {
            let mut bytes = batch.bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let accepted = Batch::split(Bytes::from(bytes))
                .and_then(|batches| batches.iter().try_for_each(|batch| batch.check(LIMIT)));
            assert!(accepted.is_err(), "{compression}: bit {bit} flipped and not noticed");
        }
    }
}

/// Without the checksum, too: whatever a flip makes of compressed bytes, it
/// ends in an error or in records, within the limit.
#[test]
fn a_flipped_bit_in_compressed_bytes_does_no_harm() {
    for compression in &Compression::ALL[1..] {
        let compressed = sample(*compression).bytes.slice(Header::LEN..);
        for bit in 0..compressed.len() * 8 {
            let mut bytes = compressed.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(out) = compression.decompress(&bytes.into(), 10_000) {
                assert!(out.len() <= 10_000);
            }
        }
        for len in 0..compressed.len() {
            let _ = compression.decompress(&compressed.slice(..len), 10_000);
        }
    }
}
