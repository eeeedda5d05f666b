//! Messages as bodies of frames. Numbers are little-endian.

use bytes::{Buf, BufMut, Bytes};
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Nonce};
use uuid::Uuid;

use super::ClusterId;
use super::frame::{FRAME_MAX, Frame, FrameError, Kind, Pieces, TRAILER_LEN};
use crate::message::{Append, AppendEvent, Read, Refusal, ReplicaState, Request, Response};
use crate::record::{HEADER_LEN, Header, Payload, Record};

/// What stands before each record: two numbers and its header.
const ITEM_LEN: usize = 8 + HEADER_LEN;

/// A text has at most this many bytes; longer ones are cut.
const TEXT_MAX: usize = 1 << 10;

/// The number of a request, by which its response finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// The first thing that a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What it speaks.
    pub version: u32,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// The bookie that it means.
    pub bookie: BookieId,
}

/// Everything that is said on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Hello(Hello),
    Welcome,
    Goodbye(String),
    Append(Vec<Append>),
    Request(CallId, Request),
    Response(CallId, Response),
    Event(AppendEvent),
    Ping,
    Pong,
}

impl Message {
    /// Reads a frame's body.
    ///
    /// # Errors
    /// When the body is damaged or no message.
    pub fn decode(frame: &Frame) -> Result<Self, FrameError> {
        match frame.kind {
            Kind::Append => return Ok(Self::Append(decode_appends(frame)?)),
            Kind::Entries => return decode_entries(frame),
            _ => {}
        }
        if crc32c::crc32c(&frame.body) != frame.crc {
            return Err(FrameError::Checksum);
        }
        let mut body = &frame.body[..];
        let message = match frame.kind {
            Kind::Hello => Self::Hello(Hello {
                version: body.try_get_u32_le()?,
                cluster: get_uuid(&mut body)?,
                bookie: BookieId(get_uuid(&mut body)?),
            }),
            Kind::Welcome => Self::Welcome,
            Kind::Goodbye => Self::Goodbye(get_text(&mut body)?),
            Kind::Request => Self::Request(CallId(body.try_get_u64_le()?), get_request(&mut body)?),
            Kind::Response => Self::Response(CallId(body.try_get_u64_le()?), get_response(&mut body)?),
            Kind::Durable => Self::Event(AppendEvent::Durable(get_lengths(&mut body)?)),
            Kind::Gap => Self::Event(AppendEvent::Gap {
                ledger: LedgerId(body.try_get_u64_le()?),
                attempt: body.try_get_u32_le()?,
                accepted: EntryId(body.try_get_u64_le()?),
            }),
            Kind::Refused => Self::Event(AppendEvent::Refused {
                ledger: LedgerId(body.try_get_u64_le()?),
                attempt: body.try_get_u32_le()?,
                reason: get_refusal(&mut body)?,
            }),
            Kind::Ping => Self::Ping,
            Kind::Pong => Self::Pong,
            Kind::Append | Kind::Entries => return Err(FrameError::Malformed("its kind")),
        };
        if body.is_empty() { Ok(message) } else { Err(FrameError::Malformed("it has bytes left over")) }
    }

    /// Writes the message as a frame.
    pub(super) fn encode(&self, to: &mut Pieces) {
        match self {
            Self::Hello(hello) => {
                let mut body = Vec::with_capacity(36);
                body.put_u32_le(hello.version);
                body.put_slice(hello.cluster.as_bytes());
                body.put_slice(hello.bookie.0.as_bytes());
                to.frame(Kind::Hello, &body);
            }
            Self::Welcome => to.frame(Kind::Welcome, &[]),
            Self::Ping => to.frame(Kind::Ping, &[]),
            Self::Pong => to.frame(Kind::Pong, &[]),
            Self::Goodbye(why) => {
                let mut body = Vec::new();
                put_text(&mut body, why);
                to.frame(Kind::Goodbye, &body);
            }
            Self::Append(appends) => encode_appends(appends, to),
            Self::Request(id, request) => {
                let mut body = Vec::with_capacity(48);
                body.put_u64_le(id.0);
                put_request(&mut body, request);
                to.frame(Kind::Request, &body);
            }
            Self::Response(id, Response::Entries(records)) => encode_entries(*id, records, to),
            Self::Response(id, response) => {
                let mut body = Vec::with_capacity(48);
                body.put_u64_le(id.0);
                put_response(&mut body, response);
                to.frame(Kind::Response, &body);
            }
            Self::Event(event) => encode_event(event, to),
        }
    }
}

fn encode_event(event: &AppendEvent, to: &mut Pieces) {
    match event {
        AppendEvent::Durable(lengths) => {
            // As many frames as it takes.
            for some in lengths.chunks((FRAME_MAX - TRAILER_LEN) / 16) {
                let mut body = Vec::with_capacity(16 * some.len());
                for (ledger, durable) in some {
                    body.put_u64_le(ledger.0);
                    body.put_u64_le(durable.0);
                }
                to.frame(Kind::Durable, &body);
            }
        }
        AppendEvent::Gap { ledger, attempt, accepted } => {
            let mut body = Vec::with_capacity(20);
            body.put_u64_le(ledger.0);
            body.put_u32_le(*attempt);
            body.put_u64_le(accepted.0);
            to.frame(Kind::Gap, &body);
        }
        AppendEvent::Refused { ledger, attempt, reason } => {
            let mut body = Vec::with_capacity(21);
            body.put_u64_le(ledger.0);
            body.put_u32_le(*attempt);
            put_refusal(&mut body, *reason);
            to.frame(Kind::Refused, &body);
        }
    }
}

/// How many of these sizes fit a frame: at least one, for a single record may be
/// larger.
fn fitting(sizes: impl Iterator<Item = usize>, before: usize) -> (usize, usize) {
    let mut body = before;
    let mut count = 0;
    for size in sizes {
        if count > 0 && body + size + TRAILER_LEN > FRAME_MAX {
            break;
        }
        body += size;
        count += 1;
    }
    (count, body)
}

/// Bytes of an append on the wire, but for its share of the frame.
pub(super) fn append_len(append: &Append) -> usize {
    ITEM_LEN + append.record.payload.len()
}

/// As many frames as it takes.
pub(super) fn encode_appends(mut appends: &[Append], to: &mut Pieces) {
    while !appends.is_empty() {
        let (count, body) = fitting(appends.iter().map(append_len), 0);
        to.begin(Kind::Append, body);
        let mut crc = 0;
        let (some, rest) = appends.split_at(count);
        for append in some {
            crc = put_record(crc, append.attempt, &append.record, to);
        }
        to.put(&crc.to_le_bytes());
        appends = rest;
    }
}

/// One frame: the reader asks for what did not fit.
fn encode_entries(id: CallId, records: &[Record], to: &mut Pieces) {
    let sizes = records.iter().map(|record| ITEM_LEN + record.payload.len());
    let (count, body) = fitting(sizes, 8);
    to.begin(Kind::Entries, body);
    let id = id.0.to_le_bytes();
    to.put(&id);
    let mut crc = crc32c::crc32c(&id);
    for record in records.iter().take(count) {
        crc = put_record(crc, 0, record, to);
    }
    to.put(&crc.to_le_bytes());
}

/// Writes a record and returns the checksum over all but its payload.
fn put_record(crc: u32, attempt: u32, record: &Record, to: &mut Pieces) -> u32 {
    let mut item = [0; ITEM_LEN];
    let present = u32::try_from(record.payload.len()).unwrap_or(u32::MAX);
    item[..4].copy_from_slice(&attempt.to_le_bytes());
    item[4..8].copy_from_slice(&present.to_le_bytes());
    item[8..].copy_from_slice(&record.header.encode());
    to.put(&item);
    record.payload.pieces().iter().for_each(|piece| to.put_payload(piece));
    crc32c::crc32c_append(crc, &item)
}

fn decode_appends(frame: &Frame) -> Result<Vec<Append>, FrameError> {
    let (records, _) = decode_records(frame, 0)?;
    let whole = |(_, record): &(u32, Record)| record.payload.len() == record.header.payload_len as usize;
    if !records.iter().all(whole) {
        return Err(FrameError::Malformed("an append without all of its payload"));
    }
    Ok(records.into_iter().map(|(attempt, record)| Append { attempt, record }).collect())
}

fn decode_entries(frame: &Frame) -> Result<Message, FrameError> {
    let (records, mut before) = decode_records(frame, 8)?;
    if records.is_empty() {
        return Err(FrameError::Malformed("no entries"));
    }
    let id = CallId(before.try_get_u64_le()?);
    let records = records.into_iter().map(|(_, record)| record).collect();
    Ok(Message::Response(id, Response::Entries(records)))
}

/// The records behind the first `before` bytes of the body, and these bytes.
/// Payloads are slices of the body; their CRC is left to who stores them.
fn decode_records(frame: &Frame, before: usize) -> Result<(Vec<(u32, Record)>, Bytes), FrameError> {
    let mut body = frame.body.clone();
    if body.len() < before {
        return Err(FrameError::Malformed("it is cut short"));
    }
    let before = body.split_to(before);
    let mut crc = crc32c::crc32c(&before);
    let mut records = Vec::new();
    while !body.is_empty() {
        let Some(item) = body.first_chunk::<ITEM_LEN>() else {
            return Err(FrameError::Malformed("a record is cut short"));
        };
        crc = crc32c::crc32c_append(crc, item);
        let mut numbers = &item[..8];
        let (attempt, present) = (numbers.get_u32_le(), numbers.get_u32_le());
        let mut header = [0; HEADER_LEN];
        header.copy_from_slice(&item[8..]);
        let header = Header::decode(&header)?;
        body.advance(ITEM_LEN);
        if present > header.payload_len || present as usize > body.len() {
            return Err(FrameError::Malformed("a record's payload"));
        }
        let payload = Payload::from(body.split_to(present as usize));
        records.push((attempt, Record { header, payload }));
    }
    if crc != frame.crc {
        return Err(FrameError::Checksum);
    }
    if records.len() > 1 && frame.body.len() + TRAILER_LEN > FRAME_MAX {
        return Err(FrameError::TooLarge(frame.body.len()));
    }
    Ok((records, before))
}

fn get_uuid(from: &mut &[u8]) -> Result<Uuid, FrameError> {
    let (bytes, rest) = from.split_first_chunk().ok_or(FrameError::Malformed("a uuid"))?;
    *from = rest;
    Ok(Uuid::from_bytes(*bytes))
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    let cut = &text[..text.floor_char_boundary(TEXT_MAX)];
    to.put_u32_le(u32::try_from(cut.len()).unwrap_or_default());
    to.put_slice(cut.as_bytes());
}

fn get_text(from: &mut &[u8]) -> Result<String, FrameError> {
    let len = from.try_get_u32_le()? as usize;
    let (text, rest) = from.split_at_checked(len).ok_or(FrameError::Malformed("a text"))?;
    *from = rest;
    String::from_utf8(text.to_vec()).map_err(|_| FrameError::Malformed("a text"))
}

fn get_lengths(from: &mut &[u8]) -> Result<Vec<(LedgerId, EntryId)>, FrameError> {
    let mut lengths = Vec::with_capacity(from.len() / 16);
    while !from.is_empty() {
        lengths.push((LedgerId(from.try_get_u64_le()?), EntryId(from.try_get_u64_le()?)));
    }
    Ok(lengths)
}

fn put_request(to: &mut Vec<u8>, request: &Request) {
    match *request {
        Request::Create { ledger, creator } => {
            to.put_u8(1);
            to.put_u64_le(ledger.0);
            to.put_slice(creator.0.as_bytes());
        }
        Request::Fence { ledger, epoch } => {
            to.put_u8(2);
            to.put_u64_le(ledger.0);
            to.put_u64_le(epoch.0);
        }
        Request::State { ledger } => {
            to.put_u8(3);
            to.put_u64_le(ledger.0);
        }
        Request::Read(read) => {
            to.put_u8(4);
            to.put_u64_le(read.ledger.0);
            to.put_u64_le(read.from.0);
            to.put_u32_le(read.max_entries);
            to.put_u32_le(read.max_bytes);
            to.put_u8(u8::from(read.prefix));
        }
        Request::Import { ledger, end } => {
            to.put_u8(5);
            to.put_u64_le(ledger.0);
            to.put_u64_le(end.0);
        }
        Request::Delete { first, last } => {
            to.put_u8(6);
            to.put_u64_le(first.0);
            to.put_u64_le(last.0);
        }
    }
}

fn get_request(from: &mut &[u8]) -> Result<Request, FrameError> {
    let kind = from.try_get_u8()?;
    let ledger = LedgerId(from.try_get_u64_le()?);
    Ok(match kind {
        1 => Request::Create { ledger, creator: Nonce(get_uuid(from)?) },
        2 => Request::Fence { ledger, epoch: Epoch(from.try_get_u64_le()?) },
        3 => Request::State { ledger },
        4 => Request::Read(Read {
            ledger,
            from: EntryId(from.try_get_u64_le()?),
            max_entries: from.try_get_u32_le()?,
            max_bytes: from.try_get_u32_le()?,
            prefix: get_bool(from)?,
        }),
        5 => Request::Import { ledger, end: EntryId(from.try_get_u64_le()?) },
        6 => Request::Delete { first: ledger, last: LedgerId(from.try_get_u64_le()?) },
        _ => return Err(FrameError::Malformed("a request of an unknown kind")),
    })
}

fn put_response(to: &mut Vec<u8>, response: &Response) {
    match response {
        Response::Created => to.put_u8(1),
        Response::Refused(refusal) => {
            to.put_u8(2);
            put_refusal(to, *refusal);
        }
        Response::Fenced(state) => {
            to.put_u8(3);
            put_state(to, state);
        }
        Response::State(state) => {
            to.put_u8(4);
            put_state(to, state);
        }
        Response::Absent => to.put_u8(5),
        Response::Imported => to.put_u8(6),
        Response::Deleted => to.put_u8(7),
        Response::Unknown(why) => {
            to.put_u8(8);
            put_text(to, why);
        }
        // They have a frame of their own.
        Response::Entries(_) => {}
    }
}

fn get_response(from: &mut &[u8]) -> Result<Response, FrameError> {
    Ok(match from.try_get_u8()? {
        1 => Response::Created,
        2 => Response::Refused(get_refusal(from)?),
        3 => Response::Fenced(get_state(from)?),
        4 => Response::State(get_state(from)?),
        5 => Response::Absent,
        6 => Response::Imported,
        7 => Response::Deleted,
        8 => Response::Unknown(get_text(from)?),
        _ => return Err(FrameError::Malformed("a response of an unknown kind")),
    })
}

fn put_state(to: &mut Vec<u8>, state: &ReplicaState) {
    to.put_u64_le(state.fence.0);
    to.put_u64_le(state.durable.0);
    to.put_u64_le(state.committed.0);
    to.put_u8(u8::from(state.certain));
}

fn get_state(from: &mut &[u8]) -> Result<ReplicaState, FrameError> {
    Ok(ReplicaState {
        fence: Epoch(from.try_get_u64_le()?),
        durable: EntryId(from.try_get_u64_le()?),
        committed: EntryId(from.try_get_u64_le()?),
        certain: get_bool(from)?,
    })
}

fn get_bool(from: &mut &[u8]) -> Result<bool, FrameError> {
    match from.try_get_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(FrameError::Malformed("a flag")),
    }
}

fn put_refusal(to: &mut Vec<u8>, refusal: Refusal) {
    let (kind, number) = match refusal {
        Refusal::Fenced(epoch) => (1, epoch.0),
        Refusal::NotCreated => (2, 0),
        Refusal::OtherCreator => (3, 0),
        Refusal::Deleted => (4, 0),
        Refusal::Marked(ledger) => (5, ledger.0),
        Refusal::Differs(entry) => (6, entry.0),
        Refusal::Importing => (7, 0),
        Refusal::Corrupt => (8, 0),
        Refusal::ReadOnly => (9, 0),
        Refusal::Unreadable(entry) => (10, entry.0),
    };
    to.put_u8(kind);
    to.put_u64_le(number);
}

fn get_refusal(from: &mut &[u8]) -> Result<Refusal, FrameError> {
    let (kind, number) = (from.try_get_u8()?, from.try_get_u64_le()?);
    Ok(match (kind, number) {
        (1, epoch) => Refusal::Fenced(Epoch(epoch)),
        (2, 0) => Refusal::NotCreated,
        (3, 0) => Refusal::OtherCreator,
        (4, 0) => Refusal::Deleted,
        (5, ledger) => Refusal::Marked(LedgerId(ledger)),
        (6, entry) => Refusal::Differs(EntryId(entry)),
        (7, 0) => Refusal::Importing,
        (8, 0) => Refusal::Corrupt,
        (9, 0) => Refusal::ReadOnly,
        (10, entry) => Refusal::Unreadable(EntryId(entry)),
        _ => return Err(FrameError::Malformed("a refusal of an unknown kind")),
    })
}
