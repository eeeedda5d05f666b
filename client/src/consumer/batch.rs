use std::sync::Arc;

use quire_proto::batch::{BatchError, Record, RecordView, Records};
use quire_proto::id::Offset;

use crate::Error;

/// Records of one partition, in order: an iterator, or, without counting
/// references, [`FetchedBatch::next_view`]. Only records within what was asked
/// for come out.
#[derive(Debug)]
pub struct FetchedBatch {
    topic: Arc<str>,
    partition: u32,
    latest: Offset,
    records: Records,
    from: Offset,
    end: Option<Offset>,
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
        unimplemented!()
    }

    fn damaged(&self, error: BatchError) -> Error {
        let (topic, partition, offset) = (self.topic.to_string(), self.partition, self.from.0);
        Error::Damaged { topic, partition, offset, error }
    }
}

impl Iterator for FetchedBatch {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let record = match self.records.next()? {
                Ok(record) => record,
                Err(error) => return Some(Err(self.damaged(error))),
            };
            if self.end.is_some_and(|end| record.offset >= end) {
                return None;
            }
            if record.offset >= self.from {
                return Some(Ok(record));
            }
        }
    }
}
