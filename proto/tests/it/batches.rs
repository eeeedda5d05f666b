use bytes::{BufMut, Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use quire_proto::batch::{Batch, BatchError, Builder, Header, NO_HEADERS, Producer};
use quire_proto::codec::{CodecError, Compression};
use quire_proto::id::{Epoch, Offset};
use quire_proto::v1::ErrorReason;

use crate::support::{self, Input, LIMIT};

proptest! {
    #[test]
    fn what_is_built_is_read(
        inputs in vec(support::input(), 1..40),
        compression in support::compression(),
        producer in support::producer(),
    ) {
        let batch = support::seal(&inputs, compression, producer);
        batch.check(LIMIT).unwrap();
        prop_assert_eq!(Header::parse(&batch.bytes), Ok(batch.header));
        prop_assert_eq!(&batch.header.encode()[..], &batch.bytes[..Header::LEN]);
        prop_assert_eq!(batch.header.producer_id, producer.id);
        prop_assert_eq!(batch.header.record_count as usize, inputs.len());
        let greatest = inputs.iter().map(|input| input.timestamp_ms).max();
        prop_assert_eq!(Some(batch.header.max_timestamp_ms), greatest);
        prop_assert_eq!(support::records(&batch), inputs);
    }

    #[test]
    fn borrowed_records_are_the_owned_ones(inputs in vec(support::input(), 1..20)) {
        let batch = support::seal(&inputs, Compression::None, Producer::NONE);
        let mut views = batch.records(LIMIT).unwrap();
        for record in batch.records(LIMIT).unwrap() {
            let record = record.unwrap();
            let view = views.next_view().unwrap().unwrap();
            prop_assert_eq!(view.offset, record.offset);
            prop_assert_eq!(view.timestamp_ms, record.timestamp_ms);
            prop_assert_eq!(view.key, record.key.as_deref());
            prop_assert_eq!(view.value, record.value.as_deref());
            let owned: Vec<_> = record.headers.iter().collect();
            let borrowed: Vec<_> = view.headers().collect();
            prop_assert_eq!(owned.len(), record.headers.len());
            let owned: Vec<_> = owned.iter().map(|one| (&one.key[..], one.value.as_deref())).collect();
            prop_assert_eq!(owned, borrowed);
        }
        prop_assert_eq!(views.next_view(), Ok(None));
    }

    #[test]
    fn the_size_that_is_foretold_is_the_size(inputs in vec(support::input(), 1..20)) {
        let mut builder = Builder::with_capacity(0);
        for input in &inputs {
            let (key, value) = (input.key.as_deref(), input.value.as_deref());
            let foretold = builder.size_with(input.timestamp_ms, key, value, input.headers());
            builder.append(input.timestamp_ms, key, value, input.headers()).unwrap();
            prop_assert_eq!(builder.size(), foretold);
        }
        let size = builder.size();
        prop_assert_eq!(builder.seal(Compression::None, Producer::NONE).unwrap().bytes.len(), size);
        prop_assert!(builder.is_empty());
    }

    #[test]
    fn a_run_is_cut_where_it_was_joined(
        runs in vec((vec(support::input(), 1..5), support::compression()), 0..6),
    ) {
        let batches: Vec<_> =
            runs.iter().map(|(inputs, codec)| support::seal(inputs, *codec, Producer::NONE)).collect();
        let mut joined = BytesMut::new();
        batches.iter().for_each(|batch| joined.put_slice(&batch.bytes));
        let joined = joined.freeze();
        prop_assert_eq!(Batch::split(joined.clone()), Ok(batches));
        for cut in 1..joined.len().min(200) {
            let whole = Batch::split(joined.slice(..joined.len() - cut));
            if let Ok(whole) = whole {
                let bytes: usize = whole.iter().map(|batch| batch.bytes.len()).sum();
                prop_assert_eq!(bytes, joined.len() - cut);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes: Vec<u8>, codec in support::compression()) {
        let bytes = Bytes::from(bytes);
        let _ = codec.decompress(&bytes, 1000).map(|out| assert!(out.len() <= 1000));
        for batch in Batch::split(bytes).into_iter().flatten() {
            let _ = batch.check(LIMIT);
        }
    }

    /// Garbage behind a header that fits it: what a hostile producer can make.
    #[test]
    fn arbitrary_records_do_no_harm(
        body in vec(any::<u8>(), 0..200),
        attributes in 0_u16..5,
        count in prop_oneof![0..40_u32, any::<u32>().prop_map(|n| n >> 1)],
    ) {
        let batch = forge(&body, |header| {
            header.attributes.0 = attributes;
            header.record_count = count;
            header.last_offset_delta = count.saturating_sub(1);
        });
        let checked = batch.check(LIMIT);
        if let Ok(records) = batch.records(1000) {
            let mut seen = 0;
            let all_well = records.inspect(|_| seen += 1).all(|record| record.is_ok());
            assert!(seen <= 1000);
            if attributes == 0 && count > 0 {
                assert_eq!(all_well, checked.is_ok());
            }
        }
    }

    #[test]
    fn a_stamp_changes_offset_and_epoch_only(
        inputs in vec(support::input(), 1..5),
        compression in support::compression(),
        offset in 0..u64::MAX >> 2,
        epoch: u64,
    ) {
        let batch = support::seal(&inputs, compression, Producer::NONE);
        let pieces = batch.stamp(Offset(offset), Epoch(epoch));
        let joined = Bytes::from(pieces.concat());
        let [stamped] = &Batch::split(joined).unwrap()[..] else { panic!("one batch") };
        stamped.verify_crc().unwrap();
        prop_assert_eq!(stamped.header.base_offset, Offset(offset));
        prop_assert_eq!(stamped.header.leader_epoch, i32::try_from(epoch).unwrap_or(i32::MAX));
        prop_assert_eq!(&stamped.bytes[Header::STAMPED_LEN..], &batch.bytes[Header::STAMPED_LEN..]);
        let last = stamped.records(LIMIT).unwrap().last().unwrap().unwrap();
        prop_assert_eq!(last.offset, stamped.header.last_offset());
        prop_assert_eq!(last.offset.next(), stamped.header.next_offset());
    }
}

/// A batch with a right length and checksum around these bytes.
#[track_caller]
fn forge(body: &[u8], change: impl FnOnce(&mut Header)) -> Batch {
    let mut builder = Builder::with_capacity(0);
    builder.append(0, None, None, NO_HEADERS).unwrap();
    let mut header = builder.seal(Compression::None, Producer::NONE).unwrap().header;
    header.batch_length = u32::try_from(Header::LEN - Header::LENGTH_END + body.len()).unwrap();
    change(&mut header);
    let mut bytes = [&header.encode()[..], body].concat();
    header.crc = crc32c::crc32c(&bytes[Header::CRC_FROM..]);
    bytes[..Header::LEN].copy_from_slice(&header.encode());
    let mut split = Batch::split(bytes.into()).unwrap();
    split.pop().unwrap()
}

fn valid() -> (Vec<u8>, Header) {
    let input = Input { timestamp_ms: 7, key: None, value: Some(b"value".to_vec()), headers: vec![] };
    let batch = support::seal(&[input.clone(), input], Compression::None, Producer::NONE);
    (batch.bytes[Header::LEN..].to_vec(), batch.header)
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Header), expected: BatchError, reason: ErrorReason) {
    let (body, good) = valid();
    let batch = forge(&body, |header| {
        *header = Header { batch_length: header.batch_length, ..good };
        change(header);
    });
    assert_eq!(batch.check(LIMIT), Err(expected.clone()));
    assert_eq!(expected.reason(), reason);
}

#[test]
fn a_header_that_lies_is_refused() {
    use BatchError as E;
    use ErrorReason::InvalidBatch;
    let counts = |count, last_delta| E::Counts { count, last_delta };
    refused(|h| h.base_offset = Offset(1), E::Field("base offset"), InvalidBatch);
    refused(|h| h.attributes.0 = 1 << 5, E::Control, InvalidBatch);
    refused(|h| h.attributes.0 = 5, E::Codec(5), InvalidBatch);
    refused(|h| h.attributes.0 = 7, E::Codec(7), InvalidBatch);
    refused(|h| h.attributes.0 = 1 << 3, E::Field("timestamp type"), InvalidBatch);
    refused(|h| h.attributes.0 = 1 << 6, E::Field("attributes"), InvalidBatch);
    refused(|h| h.attributes.0 = 1 << 15, E::Field("attributes"), InvalidBatch);
    refused(|h| h.last_offset_delta = 2, counts(2, 2), InvalidBatch);
    refused(|h| h.record_count = 1, counts(1, 1), InvalidBatch);
    refused(|h| h.record_count = 0, counts(0, 1), InvalidBatch);
    refused(|h| h.producer_id = -2, E::Field("producer id"), InvalidBatch);
    refused(|h| h.producer_id = 5, E::Field("producer epoch"), InvalidBatch);
    let no_sequence = |h: &mut Header| (h.producer_id, h.producer_epoch) = (5, 0);
    refused(no_sequence, E::Field("base sequence"), InvalidBatch);
    let one = |h: &mut Header| (h.record_count, h.last_offset_delta) = (1, 0);
    let left_over = "bytes are left over after the last record";
    refused(one, E::Record { index: 1, what: left_over }, InvalidBatch);
    let three = |h: &mut Header| (h.record_count, h.last_offset_delta) = (3, 2);
    refused(three, E::Record { index: 2, what: "its length is malformed" }, InvalidBatch);
    let four = |h: &mut Header| (h.record_count, h.last_offset_delta) = (4, 3);
    refused(four, counts(4, 3), InvalidBatch);
    refused(|h| h.max_timestamp_ms = 8, E::Field("max timestamp"), InvalidBatch);
    refused(|h| h.base_timestamp_ms = 8, E::Field("max timestamp"), InvalidBatch);
}

#[test]
fn a_batch_above_the_limit_is_refused_first() {
    let (body, _) = valid();
    let batch = forge(&body, |header| header.base_offset = Offset(5));
    let size = batch.bytes.len();
    assert_eq!(batch.check(size - 1), Err(BatchError::TooLarge { size, limit: size - 1 }));
    assert_eq!(batch.check(size), Err(BatchError::Field("base offset")));
}

#[track_caller]
fn unparsable(change: impl FnOnce(&mut Vec<u8>), expected: BatchError, reason: ErrorReason) {
    let (body, header) = valid();
    let mut bytes = [&header.encode()[..], &body].concat();
    change(&mut bytes);
    assert_eq!(Batch::split(bytes.into()), Err(expected.clone()));
    assert_eq!(expected.reason(), reason);
}

#[test]
fn bytes_that_are_no_batch_are_told_apart() {
    use BatchError as E;
    use ErrorReason::{CorruptBatch, InvalidBatch, UnsupportedBatchVersion};
    unparsable(|b| b.truncate(10), E::Short { need: 61, have: 10 }, CorruptBatch);
    unparsable(|b| b.truncate(60), E::Short { need: 61, have: 60 }, CorruptBatch);
    unparsable(|b| b.truncate(70), E::Short { need: 85, have: 70 }, CorruptBatch);
    unparsable(|b| b.push(0), E::Short { need: 61, have: 1 }, CorruptBatch);
    unparsable(|b| b[8..12].fill(0xff), E::Length(-1), CorruptBatch);
    unparsable(|b| b[8..12].copy_from_slice(&48_i32.to_be_bytes()), E::Length(48), CorruptBatch);
    unparsable(|b| b[16] = 1, E::Version(1), UnsupportedBatchVersion);
    unparsable(|b| b[16] = 0xff, E::Version(-1), UnsupportedBatchVersion);
    unparsable(|b| b[0] = 0xff, E::Field("base offset"), InvalidBatch);
    unparsable(|b| b[..8].copy_from_slice(&i64::MAX.to_be_bytes()), E::Field("base offset"), InvalidBatch);
    unparsable(|b| b[23] = 0xff, E::Field("last offset delta"), InvalidBatch);
    unparsable(|b| b[57] = 0xff, E::Field("record count"), InvalidBatch);
}

#[test]
fn a_records_lengths_stay_within_it() {
    // Body of a record: length, attributes, two deltas, key, value, headers.
    let cases: [(&[u8], &str); 9] = [
        (&[1, 0, 0, 0, 1, 1, 0], "its length is negative"),
        (&[60, 0, 0, 0, 1, 1, 0], "it is longer than the batch"),
        (&[12, 0, 0, 0, 9, 1, 0], "its key is malformed"),
        (&[12, 0, 0, 0, 3, 1, 0], "its key is malformed"),
        (&[12, 0, 0, 0, 1, 8, 0], "its value is malformed"),
        (&[12, 0, 0, 0, 1, 1, 2], "its header count is malformed"),
        (&[16, 0, 0, 0, 1, 1, 2, 9, 1], "a header is malformed"),
        (&[14, 0, 0, 0, 1, 1, 0, 0], "it is shorter than its length says"),
        (&[12, 0, 0, 2, 1, 1, 0], "its offset delta is not its place in the batch"),
    ];
    for (body, what) in cases {
        let batch = forge(body, |_| {});
        assert_eq!(batch.check(LIMIT), Err(BatchError::Record { index: 0, what }), "{body:?}");
    }
}

#[test]
fn decompression_stops_at_its_limit() {
    let zeros = Input { timestamp_ms: 0, key: None, value: Some(vec![0; 4 << 20]), headers: vec![] };
    for codec in &Compression::ALL[1..] {
        let batch = support::seal(std::slice::from_ref(&zeros), *codec, Producer::NONE);
        assert!(batch.bytes.len() < 1 << 20, "{codec}");
        let refused = batch.records(1 << 20).map(drop);
        assert_eq!(refused, Err(CodecError::TooLarge { limit: 1 << 20 }.into()), "{codec}");
        assert_eq!(batch.records(5 << 20).unwrap().count(), 1, "{codec}");
    }
}

#[test]
fn a_batch_that_does_not_shrink_is_left_as_it_is() {
    let input = Input { timestamp_ms: 0, key: None, value: Some(b"x".to_vec()), headers: vec![] };
    for codec in Compression::ALL {
        let batch = support::seal(std::slice::from_ref(&input), codec, Producer::NONE);
        assert_eq!(batch.header.attributes.compression(), Ok(Compression::None));
    }
}

#[test]
fn log_append_time_is_every_records_timestamp() {
    let inputs =
        [1, 5, 3].map(|timestamp_ms| Input { timestamp_ms, key: None, value: None, headers: vec![] });
    let batch = support::seal(&inputs, Compression::None, Producer::NONE).with_log_append_time(99);
    batch.verify_crc().unwrap();
    assert_eq!(Header::parse(&batch.bytes), Ok(batch.header));
    assert!(batch.header.attributes.is_log_append_time());
    assert_eq!(batch.header.max_timestamp_ms, 99);
    assert!(support::records(&batch).iter().all(|record| record.timestamp_ms == 99));
}

#[test]
fn another_producer_seals_the_same_records() {
    let inputs = [Input { timestamp_ms: 1, key: None, value: None, headers: vec![] }];
    let producer = Producer { id: 8, epoch: 1, base_sequence: 3 };
    let first = support::seal(&inputs, Compression::None, Producer { id: 7, epoch: 0, base_sequence: 40 });
    let shared = first.clone();
    assert_eq!(first.with_producer(producer), support::seal(&inputs, Compression::None, producer));
    shared.check(LIMIT).unwrap();
    assert_eq!(shared.header.producer_id, 7);
}

#[test]
fn a_builder_is_empty_after_sealing() {
    let mut builder = Builder::with_capacity(100);
    assert_eq!(builder.seal(Compression::None, Producer::NONE), None);
    for round in 0..5 {
        for _ in 0..=round {
            builder.append(round, None, Some(b"value"), NO_HEADERS).unwrap();
        }
        let batch = builder.seal(Compression::None, Producer::NONE).unwrap();
        batch.check(LIMIT).unwrap();
        assert_eq!(i64::from(batch.header.record_count), round + 1);
        assert_eq!(batch.header.base_timestamp_ms, round);
    }
}
