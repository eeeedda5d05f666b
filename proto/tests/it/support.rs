use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use quire_proto::batch::{Batch, Builder, Producer, Record};
use quire_proto::codec::Compression;

/// Enough for whatever a test decompresses.
pub(crate) const LIMIT: usize = 1 << 20;

/// What a producer hands over for one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub(crate) timestamp_ms: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Input {
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> + Clone {
        self.headers.iter().map(|(key, value)| (&key[..], value.as_deref()))
    }
}

impl From<Record> for Input {
    fn from(record: Record) -> Self {
        let headers = record.headers.iter();
        Self {
            timestamp_ms: record.timestamp_ms,
            key: record.key.map(Vec::from),
            value: record.value.map(Vec::from),
            headers: headers.map(|one| (one.key.into(), one.value.map(Vec::from))).collect(),
        }
    }
}

pub(crate) fn input() -> impl Strategy<Value = Input> {
    let field = || option::of(vec(any::<u8>(), 0..80));
    let headers = vec((vec(any::<u8>(), 0..8), option::of(vec(any::<u8>(), 0..8))), 0..4);
    let timestamp = prop_oneof![4 => 1_700_000_000_000_i64..1_700_000_100_000, 1 => any::<i64>()];
    (timestamp, field(), field(), headers).prop_map(|(timestamp_ms, key, value, headers)| Input {
        timestamp_ms,
        key,
        value,
        headers,
    })
}

pub(crate) fn compression() -> impl Strategy<Value = Compression> {
    proptest::sample::select(&Compression::ALL[..])
}

pub(crate) fn producer() -> impl Strategy<Value = Producer> {
    let known = (0_i64.., 0_i16.., 0_i32..).prop_map(|(id, epoch, base_sequence)| Producer {
        id,
        epoch,
        base_sequence,
    });
    prop_oneof![Just(Producer::NONE), known]
}

pub(crate) fn seal(inputs: &[Input], compression: Compression, producer: Producer) -> Batch {
    let mut builder = Builder::with_capacity(0);
    for input in inputs {
        builder
            .append(input.timestamp_ms, input.key.as_deref(), input.value.as_deref(), input.headers())
            .unwrap();
    }
    builder.seal(compression, producer).unwrap()
}

pub(crate) fn records(batch: &Batch) -> Vec<Input> {
    batch.records(LIMIT).unwrap().map(|record| record.unwrap().into()).collect()
}
