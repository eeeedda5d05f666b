use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quire_proto::id::Offset;

use crate::Error;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMetadata {
    /// Its partition.
    pub partition: u32,
    /// Its offset; None with `Acks::None`, where the broker does not say.
    pub offset: Option<Offset>,
}

/// What becomes of one record: a future of its place, or of why it failed.
/// May be dropped; the record is sent all the same.
#[derive(Debug)]
#[must_use = "a delivery may fail: await it, or drop it on purpose"]
pub struct Delivery {
    _private: (),
}

impl Future for Delivery {
    type Output = Result<RecordMetadata, Error>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        unimplemented!()
    }
}

/// What became of the tagged records of one batch.
#[derive(Debug)]
pub struct Completion {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: u32,
    /// Offset of the batch's first record (None with `Acks::None`), or why the
    /// whole batch failed.
    pub outcome: Result<Option<Offset>, Error>,
    pub(crate) tags: Vec<(u32, u64)>,
}

impl Completion {
    /// Tag and offset of each record, in the order they were sent. The offset is
    /// None when the batch failed, and with `Acks::None`.
    pub fn records(&self) -> impl ExactSizeIterator<Item = (u64, Option<Offset>)> + use<'_> {
        let base = self.outcome.as_ref().ok().copied().flatten();
        let offset = move |place: u32| base.map(|base| Offset(base.0 + u64::from(place)));
        self.tags.iter().map(move |&(place, tag)| (tag, offset(place)))
    }
}
