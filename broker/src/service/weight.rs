//! What a request becomes once it is decoded, told from its bytes as they arrive.
//! Thousands of empty messages take a hundred times the bytes that they have on the
//! wire.

use std::mem::size_of;

use quire_proto::v1;

/// A field of messages, each of which becomes a value, or of text.
#[derive(Debug)]
pub struct Field {
    number: u32,
    /// What an element takes beside its bytes.
    bytes: usize,
    fields: &'static [Self],
}

/// A vector begins with room for so many, and grows by doubling.
const FIRST: usize = 4;

/// What text takes beside its bytes.
const TEXT: usize = 32;

const fn field<T>(number: u32, fields: &'static [Field]) -> Field {
    Field { number, bytes: size_of::<T>() + TEXT, fields }
}

const PARTITIONS: Field = field::<v1::FetchPartition>(1, &[]);

/// The fields of a request to this path.
#[must_use]
pub fn fields_of(path: &str) -> &'static [Field] {
    match path {
        "/quire.v1.LogService/Produce" | "/quire.v1.LogService/ProduceStream" => PRODUCE,
        "/quire.v1.LogService/Fetch" => FETCH,
        "/quire.v1.LogService/Subscribe" => SUBSCRIBE,
        "/quire.v1.LogService/ListOffsets" => LIST_OFFSETS,
        "/quire.v1.LogService/Metadata" => METADATA,
        "/quire.v1.TopicService/CreateTopic" => CREATE_TOPIC,
        _ => &[],
    }
}

static PRODUCE: &[Field] =
    &[field::<v1::ProducePartition>(5, &[field::<v1::Message>(4, &[field::<v1::Header>(3, &[])])])];
static FETCH: &[Field] = &[field::<v1::FetchPartition>(6, &[])];
static SUBSCRIBE: &[Field] = &[field::<v1::SubscribeStart>(1, &[PARTITIONS])];
static LIST_OFFSETS: &[Field] = &[field::<v1::ListOffsetsPartition>(1, &[])];
static METADATA: &[Field] = &[field::<String>(1, &[])];
static CREATE_TOPIC: &[Field] = &[field::<[String; 2]>(5, &[])];

/// Greatest depth of fields in fields above.
const DEPTH: usize = 4;

/// Weighs one message, or one after another.
#[derive(Debug)]
pub struct Weight {
    bytes: usize,
    /// The message that is read; around it, those that it is in.
    levels: [Level; DEPTH],
    depth: usize,
    reads: Reads,
}

/// A message that is read.
#[derive(Clone, Copy, Debug)]
struct Level {
    fields: &'static [Field],
    /// Bytes that it still has.
    left: usize,
    /// Whether it has an element.
    has_element: bool,
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
        let level = Level { fields, left: usize::MAX, has_element: false };
        Self { bytes: 0, levels: [level; DEPTH], depth: 0, reads: KEY }
    }

    /// What was read so far becomes, beside its bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The next message begins.
    pub const fn restart(&mut self) {
        *self = Self::new(self.levels[0].fields);
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
        for level in &mut self.levels[1..=self.depth] {
            level.left = level.left.saturating_sub(taken);
        }
        while self.depth > 0 && self.levels[self.depth].left == 0 {
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
                    // Groups, which nobody sends, would be passed over as a whole.
                    _ => {
                        self.bytes = usize::MAX;
                        KEY
                    }
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
        let level = &mut self.levels[self.depth];
        let Some(field) = level.fields.iter().find(|field| field.number == number) else {
            return if length == 0 { KEY } else { Reads::Skips(length) };
        };
        let elements = if level.has_element { 2 } else { FIRST };
        level.has_element = true;
        self.bytes = self.bytes.saturating_add(elements * field.bytes);
        if length == 0 {
            return KEY;
        }
        if field.fields.is_empty() {
            return Reads::Skips(length);
        }
        self.depth += 1;
        // The last byte of its length is taken from it as well.
        self.levels[self.depth] =
            Level { fields: field.fields, left: length.saturating_add(1), has_element: false };
        KEY
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bytes::Bytes;
    use proptest::prelude::*;
    use prost::Message;
    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{DescriptorProto, FileDescriptorSet};

    use super::*;

    fn weighed(fields: &'static [Field], encoded: &[u8], pieces: usize) -> usize {
        let mut weight = Weight::new(fields);
        encoded.chunks(pieces.max(1)).for_each(|piece| weight.read(piece));
        weight.bytes()
    }

    /// With so many partitions, messages in them, headers of those.
    fn produce(parts: &[Vec<usize>]) -> v1::ProduceRequest {
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
        let partitions = parts.iter().map(part).collect();
        v1::ProduceRequest { correlation_id: u64::MAX, timeout_ms: 7, partitions, ..Default::default() }
    }

    /// What its vectors and texts hold.
    fn held(request: &v1::ProduceRequest) -> usize {
        let of_message = |message: &v1::Message| {
            message.headers.capacity() * size_of::<v1::Header>()
                + message.headers.iter().map(|header| header.key.capacity()).sum::<usize>()
        };
        let of_part = |part: &v1::ProducePartition| {
            let messages = part.messages.iter().map(of_message).sum::<usize>();
            part.messages.capacity() * size_of::<v1::Message>() + messages + part.topic.capacity()
        };
        request.partitions.capacity() * size_of::<v1::ProducePartition>()
            + request.partitions.iter().map(of_part).sum::<usize>()
    }

    /// The fields of these messages that have elements, as they are written in the
    /// schema: the number and the elements' own.
    #[derive(Debug, PartialEq, Eq)]
    struct Elements(Vec<(u32, Elements)>);

    fn in_schema(messages: &HashMap<String, DescriptorProto>, name: &str) -> Elements {
        let of_field = |field: &prost_types::FieldDescriptorProto| {
            let within = match field.r#type() {
                Type::Message => in_schema(messages, field.type_name()),
                _ => Elements(Vec::new()),
            };
            let is_repeated = field.label() == Label::Repeated;
            (is_repeated || !within.0.is_empty()).then(|| (u32::try_from(field.number()).unwrap(), within))
        };
        Elements(messages[name].field.iter().filter_map(of_field).collect())
    }

    fn in_table(fields: &[Field]) -> Elements {
        Elements(fields.iter().map(|field| (field.number, in_table(field.fields))).collect())
    }

    #[test]
    fn what_is_weighed_are_the_repeated_fields_of_the_schema() {
        let files = FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).unwrap().file;
        let file = files.iter().find(|file| file.package() == "quire.v1").unwrap();
        let mut messages = HashMap::new();
        for message in &file.message_type {
            let name = format!(".quire.v1.{}", message.name());
            for nested in &message.nested_type {
                // A map's entry: key and value are no elements of their own.
                messages.insert(format!("{name}.{}", nested.name()), DescriptorProto::default());
            }
            messages.insert(name, message.clone());
        }
        for service in &file.service {
            for method in &service.method {
                let path = format!("/quire.v1.{}/{}", service.name(), method.name());
                assert_eq!(in_table(fields_of(&path)), in_schema(&messages, method.input_type()), "{path}");
            }
        }
    }

    #[test]
    fn what_is_empty_weighs_more_than_its_bytes() {
        let part =
            v1::ProducePartition { messages: vec![v1::Message::default(); 1_000], ..Default::default() };
        let request = v1::ProduceRequest { partitions: vec![part], ..Default::default() };
        let encoded = request.encode_to_vec();
        assert!(encoded.len() < 2_010);
        assert!(weighed(PRODUCE, &encoded, usize::MAX) > 1_000 * size_of::<v1::Message>());
        assert!(weighed(&[], &encoded, usize::MAX) == 0);
    }

    #[test]
    fn a_group_which_is_passed_over_when_it_is_decoded_hides_nothing() {
        let hidden = [0x2a, 0x08, 0x22, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20];
        let part =
            v1::ProducePartition { messages: vec![v1::Message::default(); 1_000], ..Default::default() };
        let request = v1::ProduceRequest { partitions: vec![part], ..Default::default() };
        let encoded = [&[0x7b][..], &hidden, &[0x7c], &request.encode_to_vec()].concat();
        assert_eq!(v1::ProduceRequest::decode(&*encoded).unwrap(), request);
        assert_eq!(weighed(PRODUCE, &encoded, 7), usize::MAX);
    }

    /// A field as it is on the wire: of any number and kind, with a length that may
    /// be wrong.
    fn wire() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            Just(Vec::new()),
            Just(vec![0x08, 0x80, 0x80, 0x01]),
            Just(vec![0x22, 0x00]),
            Just(vec![0x2a, 0x00]),
            proptest::collection::vec(any::<u8>(), 0..8),
        ];
        leaf.prop_recursive(5, 60, 8, |inner| {
            let number = prop_oneof![4 => Just(5_u64), 4 => Just(4_u64), 2 => Just(3_u64), 1 => 1..200_u64];
            let kind = prop_oneof![12 => Just(2_u64), 1 => 0..8_u64];
            let wrong = prop_oneof![12 => Just(0_usize), 1 => 0..300_usize];
            let fields = proptest::collection::vec((number, kind, inner, wrong), 0..8);
            fields.prop_map(|fields| {
                let mut bytes = Vec::new();
                for (number, kind, body, wrong) in fields {
                    prost::encoding::encode_varint(number << 3 | kind, &mut bytes);
                    prost::encoding::encode_varint((body.len() + wrong) as u64, &mut bytes);
                    bytes.extend(body);
                }
                bytes
            })
        })
    }

    proptest! {
        /// However it is cut, whatever its bytes look like.
        #[test]
        fn a_request_weighs_what_it_is_decoded_to(
            parts in proptest::collection::vec(proptest::collection::vec(0..9_usize, 0..12), 0..12),
            pieces in 1..300_usize,
        ) {
            let encoded = produce(&parts).encode_to_vec();
            let weight = weighed(PRODUCE, &encoded, pieces);
            let held = held(&v1::ProduceRequest::decode(&*encoded).unwrap());
            prop_assert!((held..=4 * held).contains(&weight), "{weight}, {held}");
        }

        /// No input makes it fail, or weigh less than what it is decoded to.
        #[test]
        fn what_can_be_decoded_weighs_enough(bytes in wire(), pieces in 1..20_usize) {
            let weight = weighed(PRODUCE, &bytes, pieces);
            if let Ok(request) = v1::ProduceRequest::decode(&*bytes) {
                prop_assert!(weight >= held(&request), "{weight}, {request:?}");
            }
        }
    }
}
