//! What a request becomes once it is decoded, told from its bytes as they arrive.
//! Thousands of empty messages take a hundred times the bytes that they have on the
//! wire.

use std::mem::size_of;

use quire_proto::v1;

/// A field of messages, each of which becomes a value, or of text.
#[derive(Debug)]
pub struct Field {
    number: u32,
    /// What an element takes beside its bytes. A vector grows by doubling: it may
    /// be twice as large as what is in it.
    bytes: usize,
    fields: &'static [Self],
}

const fn field<T>(number: u32, fields: &'static [Field]) -> Field {
    Field { number, bytes: 2 * size_of::<T>(), fields }
}

const PARTITIONS: Field = field::<v1::FetchPartition>(1, &[]);

pub static PRODUCE: &[Field] =
    &[field::<v1::ProducePartition>(5, &[field::<v1::Message>(4, &[field::<v1::Header>(3, &[])])])];
pub static FETCH: &[Field] = &[field::<v1::FetchPartition>(6, &[])];
pub static SUBSCRIBE: &[Field] = &[field::<v1::SubscribeStart>(1, &[PARTITIONS])];
pub static LIST_OFFSETS: &[Field] = &[field::<v1::ListOffsetsPartition>(1, &[])];
pub static METADATA: &[Field] = &[field::<String>(1, &[])];
pub static CREATE_TOPIC: &[Field] = &[field::<[String; 2]>(5, &[])];
/// Of those that have no elements.
pub static NONE: &[Field] = &[];

/// Greatest depth of fields in fields above.
const DEPTH: usize = 4;

/// Weighs one message, or one after another.
#[derive(Debug)]
pub struct Weight {
    bytes: usize,
    /// The fields of the message that is read, and how much of it is left; around
    /// it, the same of those that it is in.
    levels: [(&'static [Field], usize); DEPTH],
    depth: usize,
    reads: Reads,
}

#[derive(Clone, Copy, Debug)]
enum Reads {
    Key {
        so_far: u64,
        shift: u32,
    },
    /// Of a number, of which the last byte is below 128.
    Varint,
    Length {
        number: u32,
        so_far: u64,
        shift: u32,
    },
    Skips(usize),
}

const KEY: Reads = Reads::Key { so_far: 0, shift: 0 };

impl Weight {
    /// Of a message with these fields.
    #[must_use]
    pub const fn new(fields: &'static [Field]) -> Self {
        Self { bytes: 0, levels: [(fields, usize::MAX); DEPTH], depth: 0, reads: KEY }
    }

    /// What was read so far becomes, beside its bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The next message begins.
    pub const fn restart(&mut self) {
        *self = Self::new(self.levels[0].0);
    }

    /// Reads the next bytes of the message. What is malformed, which is refused when
    /// it is decoded, weighs what came before it, at least.
    pub fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match self.reads {
                Reads::Skips(left) => {
                    let skipped = left.min(bytes.len());
                    self.reads = if skipped == left { KEY } else { Reads::Skips(left - skipped) };
                    skipped
                }
                _ => {
                    self.read_byte(bytes[0]);
                    1
                }
            };
            bytes = &bytes[taken..];
            self.leave(taken);
        }
    }

    /// So much of each message around was read.
    fn leave(&mut self, taken: usize) {
        for (_, left) in &mut self.levels[1..=self.depth] {
            *left = left.saturating_sub(taken);
        }
        while self.depth > 0 && self.levels[self.depth].1 == 0 {
            self.depth -= 1;
            self.reads = KEY;
        }
    }

    fn read_byte(&mut self, byte: u8) {
        let (ends, low) = (byte < 0x80, u64::from(byte & 0x7f));
        let add = |so_far: u64, shift: u32| so_far | low.checked_shl(shift).unwrap_or(0);
        self.reads = match self.reads {
            Reads::Key { so_far, shift } if !ends => {
                Reads::Key { so_far: add(so_far, shift), shift: shift + 7 }
            }
            Reads::Key { so_far, shift } => {
                let key = add(so_far, shift);
                match key & 7 {
                    0 => Reads::Varint,
                    1 => Reads::Skips(8),
                    2 => Reads::Length { number: u32::try_from(key >> 3).unwrap_or(0), so_far: 0, shift: 0 },
                    5 => Reads::Skips(4),
                    // A group's begin and end, or nothing that there is.
                    _ => KEY,
                }
            }
            Reads::Varint => {
                if ends {
                    KEY
                } else {
                    Reads::Varint
                }
            }
            Reads::Length { number, so_far, shift } if !ends => {
                Reads::Length { number, so_far: add(so_far, shift), shift: shift + 7 }
            }
            Reads::Length { number, so_far, shift } => self.begin(number, add(so_far, shift)),
            skips @ Reads::Skips(_) => skips,
        };
    }

    /// A field of this length begins.
    fn begin(&mut self, number: u32, length: u64) -> Reads {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(field) = self.levels[self.depth].0.iter().find(|field| field.number == number) else {
            return if length == 0 { KEY } else { Reads::Skips(length) };
        };
        self.bytes = self.bytes.saturating_add(field.bytes);
        if length == 0 {
            return KEY;
        }
        if field.fields.is_empty() {
            return Reads::Skips(length);
        }
        self.depth += 1;
        // The last byte of its length is taken from it as well.
        self.levels[self.depth] = (field.fields, length.saturating_add(1));
        KEY
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn weighed(fields: &'static [Field], encoded: &[u8], pieces: usize) -> usize {
        let mut weight = Weight::new(fields);
        encoded.chunks(pieces.max(1)).for_each(|piece| weight.read(piece));
        weight.bytes()
    }

    fn produce(parts: &[Vec<usize>]) -> (v1::ProduceRequest, usize) {
        let message = |headers: &usize| v1::Message {
            key: Some(Bytes::from_static(b"\x0a\x22\x2a\x1a")),
            value: headers.is_multiple_of(2).then(|| vec![0x2a; headers * 100].into()),
            headers: vec![v1::Header { key: "*\u{1a}".to_owned(), value: Some(Bytes::new()) }; *headers],
            timestamp_ms: Some(-1),
        };
        let part = |headers: &Vec<usize>| v1::ProducePartition {
            topic: "****".to_owned(),
            partition: 300,
            messages: headers.iter().map(message).collect(),
            ..Default::default()
        };
        let partitions: Vec<_> = parts.iter().map(part).collect();
        let expected = parts.len() * 2 * size_of::<v1::ProducePartition>()
            + parts.iter().map(Vec::len).sum::<usize>() * 2 * size_of::<v1::Message>()
            + parts.iter().flatten().sum::<usize>() * 2 * size_of::<v1::Header>();
        (
            v1::ProduceRequest { correlation_id: u64::MAX, timeout_ms: 7, partitions, ..Default::default() },
            expected,
        )
    }

    #[test]
    fn what_is_empty_weighs_more_than_its_bytes() {
        let part =
            v1::ProducePartition { messages: vec![v1::Message::default(); 1_000], ..Default::default() };
        let request = v1::ProduceRequest { partitions: vec![part], ..Default::default() };
        let encoded = request.encode_to_vec();
        assert!(encoded.len() < 2_010);
        assert!(weighed(PRODUCE, &encoded, usize::MAX) > 1_000 * size_of::<v1::Message>());
        assert!(weighed(NONE, &encoded, usize::MAX) == 0);
    }

    #[test]
    fn every_request_with_elements_is_weighed() {
        let partition = v1::FetchPartition { topic: "t".to_owned(), ..Default::default() };
        let partitions = vec![partition; 3];
        let fetch = v1::FetchRequest { partitions: partitions.clone(), plain: true, ..Default::default() };
        let each = 2 * size_of::<v1::FetchPartition>();
        assert_eq!(weighed(FETCH, &fetch.encode_to_vec(), 3), 3 * each);
        let start = v1::SubscribeStart { partitions, credit_bytes: 7, ..Default::default() };
        let start = v1::SubscribeRequest { request: Some(v1::subscribe_request::Request::Start(start)) };
        let around = 2 * size_of::<v1::SubscribeStart>();
        assert_eq!(weighed(SUBSCRIBE, &start.encode_to_vec(), 3), around + 3 * each);
        let offsets = v1::ListOffsetsRequest { partitions: vec![v1::ListOffsetsPartition::default(); 3] };
        assert_eq!(
            weighed(LIST_OFFSETS, &offsets.encode_to_vec(), 1),
            6 * size_of::<v1::ListOffsetsPartition>()
        );
        let metadata = v1::MetadataRequest { topics: vec!["a".to_owned(), String::new()] };
        assert_eq!(weighed(METADATA, &metadata.encode_to_vec(), 1), 4 * size_of::<String>());
        let config = [("a".to_owned(), "b".to_owned())].into();
        let create =
            v1::CreateTopicRequest { name: "t".to_owned(), partitions: 3, config, ..Default::default() };
        assert_eq!(weighed(CREATE_TOPIC, &create.encode_to_vec(), 1), 4 * size_of::<String>());
    }

    proptest! {
        /// However it is cut, whatever its bytes look like.
        #[test]
        fn a_request_weighs_what_it_is_decoded_to(
            parts in proptest::collection::vec(proptest::collection::vec(0..4_usize, 0..5), 0..5),
            pieces in 1..300_usize,
        ) {
            let (request, expected) = produce(&parts);
            prop_assert_eq!(weighed(PRODUCE, &request.encode_to_vec(), pieces), expected);
        }

        /// No input makes it fail, or weigh less than its elements.
        #[test]
        fn garbage_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..300), pieces in 1..20_usize) {
            let weight = weighed(PRODUCE, &bytes, pieces);
            if let Ok(request) = v1::ProduceRequest::decode(&bytes[..]) {
                let messages: usize = request.partitions.iter().map(|part| part.messages.len()).sum();
                let least = request.partitions.len() * size_of::<v1::ProducePartition>()
                    + messages * size_of::<v1::Message>();
                prop_assert!(weight >= least);
            }
        }
    }
}
