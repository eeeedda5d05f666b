use std::sync::Arc;

use quire_proto::batch::{BatchError, Record, RecordView, Records};
use quire_proto::id::Offset;

use crate::Error;

/// Records of one partition, in order: iterate over it, or, without counting
/// references, call [`FetchedBatch::next_view`]. Only records within what was
/// asked for come out.
#[derive(Debug)]
pub struct FetchedBatch {
    pub(super) topic: Arc<str>,
    pub(super) partition: u32,
    pub(super) latest: Offset,
    /// The offset after the batch.
    pub(super) next: Offset,
    pub(super) records: Records,
    pub(super) span: Span,
}

/// Which records of a batch were asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Records below are not.
    pub(super) from: Offset,
    /// Nor are records from here on.
    pub(super) end: Option<Offset>,
    /// Nor are records before the first with this timestamp or a later one.
    pub(super) since_ms: Option<i64>,
}

enum Verdict {
    Wanted,
    NotYet,
    Over,
}

impl Span {
    fn judge(&mut self, offset: Offset, timestamp_ms: i64) -> Verdict {
        if self.end.is_some_and(|end| offset >= end) {
            return Verdict::Over;
        }
        if offset < self.from || self.since_ms.is_some_and(|since_ms| timestamp_ms < since_ms) {
            return Verdict::NotYet;
        }
        self.since_ms = None;
        Verdict::Wanted
    }
}

impl FetchedBatch {
    /// The topic.
    #[must_use]
    pub const fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// The partition.
    #[must_use]
    pub const fn partition(&self) -> u32 {
        self.partition
    }

    /// The partition's next offset, as the broker knew it when it sent this.
    #[must_use]
    pub const fn latest_offset(&self) -> Offset {
        self.latest
    }

    /// The next record, borrowed. None after the last.
    ///
    /// # Errors
    /// `Damaged` when the record is malformed; there is no further one then.
    pub fn next_view(&mut self) -> Result<Option<RecordView<'_>>, Error> {
        let Self { topic, partition, next, records, span, .. } = self;
        for view in records.views() {
            let view = view.map_err(|error| damaged(topic, *partition, span.from, Some(*next), error))?;
            match span.judge(view.offset, view.timestamp_ms) {
                Verdict::Over => break,
                Verdict::NotYet => {}
                Verdict::Wanted => return Ok(Some(view)),
            }
        }
        Ok(None)
    }
}

impl IntoIterator for FetchedBatch {
    type Item = Result<Record, Error>;
    type IntoIter = FetchedRecords;

    fn into_iter(self) -> FetchedRecords {
        FetchedRecords(self)
    }
}

/// The records of a [`FetchedBatch`]. An error is the last item.
#[derive(Debug)]
pub struct FetchedRecords(FetchedBatch);

impl Iterator for FetchedRecords {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_record()
    }
}

impl FetchedBatch {
    fn next_record(&mut self) -> Option<Result<Record, Error>> {
        loop {
            let record = match self.records.next()? {
                Ok(record) => record,
                Err(error) => {
                    return Some(Err(damaged(
                        &self.topic,
                        self.partition,
                        self.span.from,
                        Some(self.next),
                        error,
                    )));
                }
            };
            match self.span.judge(record.offset, record.timestamp_ms) {
                Verdict::Over => return None,
                Verdict::NotYet => {}
                Verdict::Wanted => return Some(Ok(record)),
            }
        }
    }
}

pub(super) fn damaged(
    topic: &Arc<str>,
    partition: u32,
    at: Offset,
    next: Option<Offset>,
    error: BatchError,
) -> Error {
    let next = next.map(|next| next.0);
    Error::Damaged { topic: topic.to_string(), partition, offset: at.0, next, error }
}
