use bytes::Bytes;

use super::{Batch, BatchError, Header, varint};
use crate::id::Offset;

/// A record has at least this many bytes: length, attributes, two deltas, two
/// lengths and a header count.
pub(super) const RECORD_LEAST: usize = 7;

/// A header has at least this many bytes: two lengths.
const HEADER_LEAST: usize = 2;

/// One record. Its fields are slices of the batch when that is not compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its offset in the partition.
    pub offset: Offset,
    /// Milliseconds since the epoch.
    pub timestamp_ms: i64,
    /// None is null, which is not the same as empty.
    pub key: Option<Bytes>,
    /// None is null, which is not the same as empty.
    pub value: Option<Bytes>,
    /// Its headers, in the order they were sent. Keys may repeat.
    pub headers: Headers,
}

/// One record, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Its offset in the partition.
    pub offset: Offset,
    /// Milliseconds since the epoch.
    pub timestamp_ms: i64,
    /// None is null, which is not the same as empty.
    pub key: Option<&'a [u8]>,
    /// None is null, which is not the same as empty.
    pub value: Option<&'a [u8]>,
    headers: &'a [u8],
    header_count: usize,
}

impl<'a> RecordView<'a> {
    /// Its headers: key and value, in the order they were sent.
    #[must_use]
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        ViewHeaders { rest: self.headers, left: self.header_count }
    }
}

struct ViewHeaders<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for ViewHeaders<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        take_header(&mut self.rest)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ViewHeaders<'_> {}

/// The headers of a record. They are checked when the record is taken and cut
/// apart when they are looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    bytes: Bytes,
    count: usize,
}

/// One header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its key: text by convention, which nothing enforces.
    pub key: Bytes,
    /// None is null.
    pub value: Option<Bytes>,
}

impl Headers {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One by one, in the order they were sent.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RecordHeader> + use<'_> {
        ViewHeaders { rest: &self.bytes, left: self.count }.map(|(key, value)| RecordHeader {
            key: self.bytes.slice_ref(key),
            value: value.map(|value| self.bytes.slice_ref(value)),
        })
    }
}

/// The records of a batch, in order. An error is the last item.
#[derive(Clone, Debug)]
pub struct Records {
    header: Header,
    bytes: Bytes,
    cursor: Cursor,
    failed: bool,
}

impl Records {
    pub(super) fn new(header: Header, bytes: Bytes) -> Self {
        Self { header, bytes, cursor: Cursor::default(), failed: false }
    }

    /// The next record, borrowed: no reference is counted. None after the last.
    ///
    /// # Errors
    /// When the record is malformed, or when bytes are left over after the last;
    /// there is no further record then.
    pub fn next_view(&mut self) -> Result<Option<RecordView<'_>>, BatchError> {
        self.views().next().transpose()
    }

    /// The records that are left, borrowed. What is taken from here is taken from
    /// the records themselves.
    pub const fn views(&mut self) -> Views<'_> {
        let Self { header, bytes, cursor, failed } = self;
        Views { header, bytes, cursor, failed }
    }
}

/// The records of a batch, borrowed. An error is the last item.
#[derive(Debug)]
pub struct Views<'a> {
    header: &'a Header,
    bytes: &'a Bytes,
    cursor: &'a mut Cursor,
    failed: &'a mut bool,
}

impl<'a> Iterator for Views<'a> {
    type Item = Result<RecordView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if *self.failed {
            return None;
        }
        let step = self.cursor.step(self.header, self.bytes);
        *self.failed = step.is_err();
        step.transpose()
    }
}

/// How far the records are taken.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    at: usize,
    taken: u32,
    last_delta: Option<u32>,
}

impl Cursor {
    fn step<'a>(&mut self, header: &Header, bytes: &'a [u8]) -> Result<Option<RecordView<'a>>, BatchError> {
        let mut rest = &bytes[self.at..];
        let malformed = |what| BatchError::Record { index: self.taken, what };
        if self.taken == header.record_count {
            return if rest.is_empty() { Ok(None) } else { Err(malformed(LEFT_OVER)) };
        }
        let raw = take_record(&mut rest).map_err(malformed)?;
        let in_order = self.last_delta.is_none_or(|last| raw.offset_delta > last);
        if !in_order || raw.offset_delta > header.last_offset_delta {
            return Err(malformed("its offset is out of order"));
        }
        self.at = bytes.len() - rest.len();
        self.taken += 1;
        self.last_delta = Some(raw.offset_delta);
        Ok(Some(RecordView {
            offset: Offset(header.base_offset.0 + u64::from(raw.offset_delta)),
            timestamp_ms: timestamp(header, raw.timestamp_delta),
            key: raw.key,
            value: raw.value,
            headers: raw.headers,
            header_count: raw.header_count,
        }))
    }
}

const LEFT_OVER: &str = "bytes are left over after the last record";

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.bytes.clone();
        let view = match self.next_view().transpose()? {
            Ok(view) => view,
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(Record {
            offset: view.offset,
            timestamp_ms: view.timestamp_ms,
            key: view.key.map(|key| bytes.slice_ref(key)),
            value: view.value.map(|value| bytes.slice_ref(value)),
            headers: Headers {
                bytes: if view.header_count == 0 { Bytes::new() } else { bytes.slice_ref(view.headers) },
                count: view.header_count,
            },
        }))
    }
}

const fn timestamp(header: &Header, delta: i64) -> i64 {
    if header.attributes.is_log_append_time() {
        header.max_timestamp_ms
    } else {
        header.base_timestamp_ms.wrapping_add(delta)
    }
}

impl Batch {
    /// Walks uncompressed records: as many as the header says, one offset each,
    /// every length within the bytes, nothing left over.
    pub(super) fn walk(&self) -> Result<(), BatchError> {
        let mut rest = &self.bytes[Header::LEN..];
        let mut latest_ms = i64::MIN;
        for index in 0..self.header.record_count {
            let malformed = |what| BatchError::Record { index, what };
            let raw = take_record(&mut rest).map_err(malformed)?;
            if raw.offset_delta != index {
                return Err(malformed("its offset delta is not its place in the batch"));
            }
            // As it is read: a difference of more than 63 bits wraps.
            latest_ms = latest_ms.max(self.header.base_timestamp_ms.wrapping_add(raw.timestamp_delta));
        }
        if latest_ms != self.header.max_timestamp_ms {
            return Err(BatchError::Field("max timestamp"));
        }
        if !rest.is_empty() {
            let index = self.header.record_count;
            return Err(BatchError::Record { index, what: LEFT_OVER });
        }
        Ok(())
    }
}

struct RawRecord<'a> {
    timestamp_delta: i64,
    offset_delta: u32,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: &'a [u8],
    header_count: usize,
}

fn take_record<'a>(rest: &mut &'a [u8]) -> Result<RawRecord<'a>, &'static str> {
    let length = varint::take(rest).ok_or("its length is malformed")?;
    let length = usize::try_from(length).map_err(|_| "its length is negative")?;
    let (mut body, after) = rest.split_at_checked(length).ok_or("it is longer than the batch")?;
    *rest = after;
    let (_attributes, tail) = body.split_first().ok_or("it is empty")?;
    body = tail;
    let timestamp_delta = varint::take_long(&mut body).ok_or("its timestamp is malformed")?;
    let offset_delta = varint::take(&mut body)
        .and_then(|delta| u32::try_from(delta).ok())
        .ok_or("its offset delta is malformed")?;
    let key = take_nullable(&mut body).ok_or("its key is malformed")?;
    let value = take_nullable(&mut body).ok_or("its value is malformed")?;
    let header_count = varint::take(&mut body)
        .and_then(|count| usize::try_from(count).ok())
        .filter(|&count| count <= body.len() / HEADER_LEAST)
        .ok_or("its header count is malformed")?;
    let headers = body;
    for _ in 0..header_count {
        take_header(&mut body).ok_or("a header is malformed")?;
    }
    if !body.is_empty() {
        return Err("it is shorter than its length says");
    }
    Ok(RawRecord { timestamp_delta, offset_delta, key, value, headers, header_count })
}

fn take_header<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    let key = take_nullable(rest)??;
    Some((key, take_nullable(rest)?))
}

/// Bytes behind their length; a length of -1 is null.
fn take_nullable<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let length = varint::take(rest)?;
    if length == -1 {
        return Some(None);
    }
    let (field, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = after;
    Some(Some(field))
}
