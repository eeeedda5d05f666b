use std::sync::Arc;

use quire_proto::id::Offset;

use super::{ConsumerOptions, FetchedBatch, Start};
use crate::Error;
use crate::client::Shared;

/// Reads the partitions that it is assigned.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    options: ConsumerOptions,
}

impl Consumer {
    pub(crate) fn new(shared: Arc<Shared>, options: ConsumerOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(Self { shared, options })
    }

    /// Reads these partitions, and no others any more, from where each is to
    /// begin. With [`Until::End`](super::Until::End) the ends are looked up now.
    ///
    /// # Errors
    /// `Broker` with `UnknownTopic`, `UnknownPartition` or `OffsetOutOfRange`, and
    /// those of asking a broker. What was assigned before stays then.
    ///
    /// Cancel-safe: a call that is dropped has changed nothing.
    pub async fn assign<'a>(
        &mut self,
        partitions: impl IntoIterator<Item = (&'a str, u32, Start)>,
    ) -> Result<(), Error> {
        let _ = partitions.into_iter().count();
        unimplemented!()
    }

    /// Reads all partitions of a topic, from `start`.
    ///
    /// # Errors
    /// As [`Consumer::assign`].
    pub async fn assign_topic(&mut self, topic: &str, start: Start) -> Result<(), Error> {
        let partitions = self.shared.topic(topic).await?.partitions();
        self.assign((0..partitions).map(|partition| (topic, partition, start))).await
    }

    /// Goes on in an assigned partition from another place. What was read ahead
    /// is dropped.
    ///
    /// # Errors
    /// `Invalid` when the partition is not assigned; else as
    /// [`Consumer::assign`].
    ///
    /// Cancel-safe: a call that is dropped has changed nothing.
    pub async fn seek(&mut self, topic: &str, partition: u32, to: Start) -> Result<(), Error> {
        let _ = (topic, partition, to);
        unimplemented!()
    }

    /// Offset of the next record that [`Consumer::next_batch`] will return of a
    /// partition, if it is assigned.
    #[must_use]
    pub fn position(&self, topic: &str, partition: u32) -> Option<Offset> {
        let _ = (topic, partition, &self.options);
        unimplemented!()
    }

    /// The next records of any assigned partition; waits for them. In order for
    /// each partition. None when reading has ended, which it does only with
    /// [`Until::End`](super::Until::End).
    ///
    /// # Errors
    /// `Damaged`, `Broker` with a reason that trying again does not mend, or
    /// `Timeout` when a partition was without a broker for `stall_timeout`.
    /// Trouble that passes is waited out without an error. After an error the
    /// call may be made again: it goes on where it was.
    ///
    /// Cancel-safe: nothing is lost.
    pub async fn next_batch(&mut self) -> Result<Option<FetchedBatch>, Error> {
        unimplemented!()
    }
}
