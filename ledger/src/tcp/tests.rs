//! Frames and messages, whole, in pieces and damaged.

use bytes::{Buf, Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Nonce};
use tokio_util::codec::Decoder;
use uuid::Uuid;

use super::codec::{CallId, Hello, Message};
use super::frame::{FRAME_MAX, FrameDecoder, FrameError, Pieces};
use crate::message::{Append, AppendEvent, Read, Refusal, ReplicaState, Request, Response};
use crate::record::{self, Header, PAYLOAD_MAX, Payload, Record};

fn record(ledger: u64, entry: u64, payload: Vec<u8>) -> Record {
    let payload = Payload::from(Bytes::from(payload));
    let payload_len = u32::try_from(payload.len()).unwrap();
    let header = Header {
        kind: record::Kind::Append,
        ledger: LedgerId(ledger),
        own_epoch: Epoch(3),
        epoch: Epoch(4),
        entry: EntryId(entry),
        committed: EntryId(entry / 2),
        prefix_len: payload_len / 2,
        payload_len,
        payload_crc: payload.crc(),
    };
    Record { header, payload }
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let one = (any::<u64>(), any::<u64>(), vec(any::<u8>(), 0..9_000));
    vec(one.prop_map(|(ledger, entry, payload)| record(ledger, entry, payload)), 1..8)
}

fn refusals() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        any::<u64>().prop_map(|epoch| Refusal::Fenced(Epoch(epoch))),
        any::<u64>().prop_map(|ledger| Refusal::Marked(LedgerId(ledger))),
        any::<u64>().prop_map(|entry| Refusal::Differs(EntryId(entry))),
        Just(Refusal::NotCreated),
        Just(Refusal::OtherCreator),
        Just(Refusal::Deleted),
        Just(Refusal::Importing),
        Just(Refusal::Corrupt),
        Just(Refusal::ReadOnly),
    ]
}

fn requests() -> impl Strategy<Value = Request> {
    let ledgers = || any::<u64>().prop_map(LedgerId);
    let entries = || any::<u64>().prop_map(EntryId);
    prop_oneof![
        (ledgers(), any::<u128>()).prop_map(|(ledger, nonce)| {
            Request::Create { ledger, creator: Nonce(Uuid::from_u128(nonce)) }
        }),
        (ledgers(), any::<u64>()).prop_map(|(ledger, epoch)| Request::Fence { ledger, epoch: Epoch(epoch) }),
        ledgers().prop_map(|ledger| Request::State { ledger }),
        (ledgers(), entries(), any::<u32>(), any::<u32>(), any::<bool>()).prop_map(
            |(ledger, from, max_entries, max_bytes, prefix)| {
                Request::Read(Read { ledger, from, max_entries, max_bytes, prefix })
            }
        ),
        (ledgers(), entries()).prop_map(|(ledger, end)| Request::Import { ledger, end }),
        (ledgers(), ledgers()).prop_map(|(first, last)| Request::Delete { first, last }),
    ]
}

fn responses() -> impl Strategy<Value = Response> {
    let states = || {
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
            |(fence, durable, committed, certain)| ReplicaState {
                fence: Epoch(fence),
                durable: EntryId(durable),
                committed: EntryId(committed),
                certain,
            },
        )
    };
    prop_oneof![
        Just(Response::Created),
        Just(Response::Absent),
        Just(Response::Imported),
        Just(Response::Deleted),
        refusals().prop_map(Response::Refused),
        states().prop_map(Response::Fenced),
        states().prop_map(Response::State),
        "\\PC{0,40}".prop_map(Response::Unknown),
        records().prop_map(Response::Entries),
    ]
}

fn messages() -> impl Strategy<Value = Message> {
    let hellos = (any::<u32>(), any::<u128>(), any::<u128>()).prop_map(|(version, cluster, bookie)| Hello {
        version,
        cluster: Uuid::from_u128(cluster),
        bookie: BookieId(Uuid::from_u128(bookie)),
    });
    let lengths = vec((any::<u64>(), any::<u64>()), 1..40).prop_map(|lengths| {
        let lengths = lengths.into_iter().map(|(ledger, durable)| (LedgerId(ledger), EntryId(durable)));
        Message::Event(AppendEvent::Durable(lengths.collect()))
    });
    prop_oneof![
        hellos.prop_map(Message::Hello),
        Just(Message::Welcome),
        Just(Message::Ping),
        Just(Message::Pong),
        "\\PC{0,40}".prop_map(Message::Goodbye),
        (records(), any::<u32>()).prop_map(|(records, attempt)| {
            Message::Append(records.into_iter().map(|record| Append { attempt, record }).collect())
        }),
        (any::<u64>(), requests()).prop_map(|(id, request)| Message::Request(CallId(id), request)),
        (any::<u64>(), responses()).prop_map(|(id, response)| Message::Response(CallId(id), response)),
        lengths,
        (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(ledger, attempt, accepted)| {
            let (ledger, accepted) = (LedgerId(ledger), EntryId(accepted));
            Message::Event(AppendEvent::Gap { ledger, attempt, accepted })
        }),
        (any::<u64>(), any::<u32>(), refusals()).prop_map(|(ledger, attempt, reason)| {
            Message::Event(AppendEvent::Refused { ledger: LedgerId(ledger), attempt, reason })
        }),
    ]
}

fn bytes_of(messages: &[Message]) -> Bytes {
    let mut pieces = Pieces::default();
    messages.iter().for_each(|message| message.encode(&mut pieces));
    let len = pieces.remaining();
    pieces.copy_to_bytes(len)
}

/// Everything that can be read out of these bytes, and how it ended.
fn read(bytes: &[u8]) -> (Vec<Message>, Result<usize, FrameError>) {
    let mut buffer = BytesMut::from(bytes);
    let mut messages = Vec::new();
    loop {
        let message = match FrameDecoder::default().decode(&mut buffer) {
            Ok(Some(frame)) => Message::decode(&frame),
            Ok(None) => return (messages, Ok(buffer.len())),
            Err(error) => return (messages, Err(error)),
        };
        match message {
            Ok(message) => messages.push(message),
            Err(error) => return (messages, Err(error)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_said_is_heard_however_the_stream_is_cut(
        said in vec(messages(), 1..6),
        cuts in vec(1_usize..5_000, 1..40),
    ) {
        let bytes = bytes_of(&said);
        let mut buffer = BytesMut::new();
        let mut heard = Vec::new();
        let mut rest = &bytes[..];
        let mut cuts = cuts.into_iter().cycle();
        while !rest.is_empty() {
            let (some, others) = rest.split_at(cuts.next().unwrap().min(rest.len()));
            buffer.extend_from_slice(some);
            rest = others;
            while let Some(frame) = FrameDecoder::default().decode(&mut buffer).unwrap() {
                heard.push(Message::decode(&frame).unwrap());
            }
        }
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(heard, said);
    }

    #[test]
    fn garbage_is_an_error_or_nothing_yet(bytes in vec(any::<u8>(), 0..300)) {
        let (messages, end) = read(&bytes);
        prop_assert!(messages.is_empty());
        prop_assert!(end.is_err() || bytes.len() < 12);
    }

    #[test]
    fn a_message_with_a_flipped_bit_is_not_heard(said in messages(), at in any::<prop::sample::Index>()) {
        let mut bytes = bytes_of(std::slice::from_ref(&said)).to_vec();
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (heard, end) = read(&bytes);
        match heard.first() {
            // Only the payload of a record may differ, and its own CRC tells.
            Some(Message::Append(appends)) => {
                prop_assert!(appends.iter().any(|append| append.record.verify().is_err()));
            }
            Some(Message::Response(_, Response::Entries(records))) => {
                prop_assert!(records.iter().any(|record| record.verify().is_err()));
            }
            Some(other) => prop_assert!(false, "heard {:?}", other),
            None => prop_assert!(!matches!(end, Ok(0)), "swallowed"),
        }
    }

    #[test]
    fn a_message_that_is_cut_short_is_not_heard(said in messages(), at in any::<prop::sample::Index>()) {
        let bytes = bytes_of(std::slice::from_ref(&said));
        let (heard, end) = read(&bytes[..at.index(bytes.len())]);
        prop_assert!(heard.is_empty());
        prop_assert!(end.is_ok());
    }
}

#[test]
fn appends_share_frames_of_at_most_one_mebibyte_and_a_larger_one_goes_alone() {
    for (sizes, frames) in [
        (vec![100; 50], 1),
        (vec![300 << 10; 7], 3),
        (vec![10, PAYLOAD_MAX, 10], 3),
        (vec![PAYLOAD_MAX; 2], 2),
    ] {
        let records = (0..).zip(&sizes).map(|(entry, &size)| record(1, entry, vec![7; size]));
        let appends: Vec<Append> = records.map(|record| Append { attempt: 0, record }).collect();
        let (heard, end) = read(&bytes_of(&[Message::Append(appends.clone())]));
        assert_eq!(end.unwrap(), 0);
        assert_eq!(heard.len(), frames, "{sizes:?}");
        let mut all = Vec::new();
        for message in heard {
            let Message::Append(some) = message else { panic!("{message:?}") };
            let bytes: usize = some.iter().map(|append| append.record.payload.len()).sum();
            assert!(some.len() == 1 || bytes < FRAME_MAX);
            all.extend(some);
        }
        assert_eq!(all, appends);
    }
}

#[test]
fn entries_that_do_not_fit_a_frame_are_left_for_the_next_read() {
    let records: Vec<Record> = (0..4).map(|entry| record(1, entry, vec![1; 400 << 10])).collect();
    let (heard, end) = read(&bytes_of(&[Message::Response(CallId(9), Response::Entries(records.clone()))]));
    assert_eq!(end.unwrap(), 0);
    assert_eq!(heard, [Message::Response(CallId(9), Response::Entries(records[..2].to_vec()))]);
}

#[test]
fn who_has_not_greeted_gets_no_memory() {
    let bytes =
        bytes_of(&[Message::Append(vec![Append { attempt: 0, record: record(1, 0, vec![0; 4_000]) }])]);
    let mut buffer = BytesMut::from(&bytes[..12]);
    let error = FrameDecoder::greeting().decode(&mut buffer).unwrap_err();
    assert!(matches!(error, FrameError::TooLarge(_)), "{error}");
}
