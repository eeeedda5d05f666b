use std::sync::Arc;

use bytes::Bytes;
use quire_proto::batch::{Batches, Header};
use quire_proto::id::Offset;
use tokio::time::Instant;

use crate::Error;
use crate::backoff::Backoff;

/// A partition that is read.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) topic: Arc<str>,
    pub(super) topic_id: Bytes,
    pub(super) partition: u32,
    /// The next record to deliver.
    pub(super) position: Offset,
    /// Reading stops here.
    pub(super) end: Option<Offset>,
    /// Records before the first with this timestamp are not wanted.
    pub(super) since_ms: Option<i64>,
    /// What was read before a seek is not delivered after it.
    pub(super) generation: u64,
    /// The stream that reads it, if one does.
    pub(super) stream: Option<u64>,
    /// Answers that wait to be delivered.
    pub(super) queued: usize,
    /// Its leader may be another by now.
    pub(super) suspect: bool,
    /// Its leader cannot be reached: any broker forwards.
    pub(super) detour: bool,
    pub(super) trouble: Option<Trouble>,
}

/// A partition that is not served.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) since: Instant,
    pub(super) not_before: Instant,
    attempt: u32,
    pub(super) error: Error,
}

/// An answer for one partition that waits to be delivered.
#[derive(Debug)]
pub(super) struct Ready {
    /// Its partition's place among the assigned.
    pub(super) at: usize,
    pub(super) generation: u64,
    pub(super) stream: u64,
    pub(super) batches: Batches,
    pub(super) bytes: usize,
    pub(super) latest: Offset,
    pub(super) next: Offset,
}

impl Assigned {
    pub(super) const fn new(topic: Arc<str>, topic_id: Bytes, partition: u32, generation: u64) -> Self {
        Self {
            topic,
            topic_id,
            partition,
            position: Offset(0),
            end: None,
            since_ms: None,
            generation,
            stream: None,
            queued: 0,
            suspect: false,
            detour: false,
            trouble: None,
        }
    }

    /// Whether all that is wanted has been delivered.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.position >= end)
    }

    /// Whether it is to be read and no stream does. What is still queued comes
    /// first: it says where to go on.
    pub(super) fn is_idle(&self) -> bool {
        self.stream.is_none() && self.queued == 0 && !self.is_over()
    }

    /// The records up to here are dealt with.
    pub(super) fn advance(&mut self, next: Offset) {
        let next = self.end.map_or(next, |end| next.min(end));
        self.position = self.position.max(next);
    }

    /// Whether a batch has nothing that is wanted.
    pub(super) fn has_no_use_for(&self, header: &Header) -> bool {
        header.attributes.is_control()
            || header.next_offset() <= self.position
            || self.end.is_some_and(|end| header.base_offset >= end)
    }

    /// It is not served, for this reason: try again a little later.
    pub(super) fn fail(&mut self, error: Error, backoff: Backoff, now: Instant) {
        self.stream = None;
        let (since, attempt) =
            self.trouble.as_ref().map_or((now, 0), |trouble| (trouble.since, trouble.attempt));
        let not_before = now + backoff.wait(attempt + 1);
        self.trouble = Some(Trouble { since, not_before, attempt: attempt + 1, error });
    }
}
