use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

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

/// What became of a whole batch: offset of its first record, or why it failed.
pub(crate) type Outcome = Result<Option<Offset>, Error>;

/// What becomes of one batch, shared by the deliveries of its records.
#[derive(Debug)]
pub(crate) struct Ack {
    partition: u32,
    outcome: OnceLock<Outcome>,
    wakers: Mutex<Vec<Waker>>,
}

impl Ack {
    pub(crate) fn new(partition: u32) -> Arc<Self> {
        Arc::new(Self { partition, outcome: OnceLock::new(), wakers: Mutex::default() })
    }

    /// Says what became of the batch. The first word counts.
    pub(crate) fn resolve(&self, outcome: Outcome) {
        if self.outcome.set(outcome).is_ok() {
            let wakers = std::mem::take(&mut *self.lock());
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn record(&self, place: u32) -> Option<Result<RecordMetadata, Error>> {
        let partition = self.partition;
        self.outcome.get().map(|outcome| match outcome {
            Ok(base) => {
                let offset = base.map(|base| Offset(base.0 + u64::from(place)));
                Ok(RecordMetadata { partition, offset })
            }
            Err(error) => Err(error.clone()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What becomes of one record: a future of its place, or of why it failed.
/// May be dropped; the record is sent all the same.
#[derive(Debug)]
#[must_use = "a delivery may fail: await it, or drop it on purpose"]
pub struct Delivery {
    ack: Arc<Ack>,
    place: u32,
    /// Where in the batch's list its waker is.
    waker: Option<usize>,
}

impl Delivery {
    pub(crate) const fn new(ack: Arc<Ack>, place: u32) -> Self {
        Self { ack, place, waker: None }
    }
}

impl Future for Delivery {
    type Output = Result<RecordMetadata, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(outcome) = this.ack.record(this.place) {
            return Poll::Ready(outcome);
        }
        let mut wakers = this.ack.lock();
        // The outcome is set before the list is taken: seen unset here, under
        // the lock, the list is still to be taken.
        if let Some(outcome) = this.ack.record(this.place) {
            return Poll::Ready(outcome);
        }
        match this.waker.and_then(|at| wakers.get_mut(at)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => {
                this.waker = Some(wakers.len());
                wakers.push(context.waker().clone());
            }
        }
        Poll::Pending
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
    pub(crate) tags: Vec<Tag>,
}

/// A tagged record of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    /// Its place in the batch.
    pub(crate) place: u32,
    pub(crate) tag: u64,
}

impl Completion {
    /// Tag and offset of each record, in the order they were sent. The offset is
    /// None when the batch failed, and with `Acks::None`.
    pub fn records(&self) -> impl ExactSizeIterator<Item = (u64, Option<Offset>)> + use<'_> {
        let base = self.outcome.as_ref().ok().copied().flatten();
        let offset = move |place: u32| base.map(|base| Offset(base.0 + u64::from(place)));
        self.tags.iter().map(move |tagged| (tagged.tag, offset(tagged.place)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn every_record_of_a_batch_learns_its_offset() {
        let ack = Ack::new(3);
        let deliveries = join_all((0..100).map(|place| Delivery::new(Arc::clone(&ack), place)));
        let resolve = async { ack.resolve(Ok(Some(Offset(40)))) };
        let (outcomes, ()) = tokio::join!(deliveries, resolve);
        for (place, outcome) in (0..).zip(outcomes) {
            let expected = RecordMetadata { partition: 3, offset: Some(Offset(40 + place)) };
            assert_eq!(outcome.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn the_first_outcome_counts() {
        let ack = Ack::new(0);
        ack.resolve(Err(Error::Closed));
        ack.resolve(Ok(Some(Offset(1))));
        assert!(matches!(Delivery::new(ack, 0).await, Err(Error::Closed)));
    }
}
