//! One produce request on its way: every partition's part ends once, whoever
//! ends it, and the last one answers.

use std::sync::{Arc, Mutex, PoisonError};

use quire_proto::id::Offset;
use tokio::sync::oneshot;

use crate::failure::{self, Failure};
use crate::service::budget::Room;

/// Where the records of one partition's part are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Of the first record.
    pub base_offset: Offset,
    /// Of the last record.
    pub last_offset: Offset,
}

/// How one part ended.
pub type Outcome = Result<Placed, Failure>;

#[derive(Debug)]
struct Parts {
    outcomes: Vec<Option<Outcome>>,
    open: usize,
    done: Option<oneshot::Sender<Vec<Outcome>>>,
    /// The request's memory, also when nobody waits for it any more.
    room: Option<Room>,
}

/// Collects the outcomes of one request.
#[derive(Debug)]
pub struct Call {
    parts: Mutex<Parts>,
}

/// The duty to end one part. Dropped without, the part ends as unknown.
#[derive(Debug)]
pub struct Reply {
    call: Arc<Call>,
    part: usize,
    ended: bool,
}

impl Call {
    /// A request of this many parts in this memory, a reply for each part, and where
    /// the outcomes come to, in order.
    #[must_use]
    pub fn new(
        parts: usize,
        room: impl Into<Option<Room>>,
    ) -> (Arc<Self>, Vec<Reply>, oneshot::Receiver<Vec<Outcome>>) {
        let (done, outcomes) = oneshot::channel();
        let state = Parts { outcomes: vec![None; parts], open: parts, done: Some(done), room: room.into() };
        let call = Arc::new(Self { parts: Mutex::new(state) });
        let replies = (0..parts).map(|part| Reply { call: Arc::clone(&call), part, ended: false }).collect();
        (call, replies, outcomes)
    }

    /// The memory, which is the answer's from now on.
    pub fn take_room(&self) -> Option<Room> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).room.take()
    }

    /// Time is up: parts that are still open end so.
    pub fn give_up(&self, failure: impl Fn(usize) -> Failure) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        for part in 0..parts.outcomes.len() {
            parts.end(part, || Err(failure(part)));
        }
    }
}

impl Parts {
    fn end(&mut self, part: usize, outcome: impl FnOnce() -> Outcome) {
        match self.outcomes.get_mut(part) {
            Some(slot @ None) => *slot = Some(outcome()),
            _ => return,
        }
        self.open -= 1;
        if self.open == 0
            && let Some(done) = self.done.take()
        {
            // Nobody may be waiting any more: the client has gone.
            let _ = done.send(self.outcomes.drain(..).flatten().collect());
        }
    }
}

impl Reply {
    /// Ends the part.
    pub fn end(mut self, outcome: Outcome) {
        self.ended = true;
        self.finish(outcome);
    }

    fn finish(&self, outcome: Outcome) {
        self.call.parts.lock().unwrap_or_else(PoisonError::into_inner).end(self.part, || outcome);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.ended {
            self.finish(Err(failure::unknown_outcome("this part", "the broker gave it up")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(offset: u64) -> Outcome {
        Ok(Placed { base_offset: Offset(offset), last_offset: Offset(offset) })
    }

    #[test]
    fn the_last_part_answers_in_order() {
        let (_call, mut replies, mut outcomes) = Call::new(2, None);
        let first = replies.remove(0);
        replies.remove(0).end(placed(2));
        assert!(outcomes.try_recv().is_err());
        first.end(placed(1));
        assert_eq!(outcomes.try_recv().unwrap(), [placed(1), placed(2)]);
    }

    #[test]
    fn a_dropped_reply_is_an_unknown_outcome() {
        let (_call, replies, mut outcomes) = Call::new(1, None);
        drop(replies);
        let outcome = outcomes.try_recv().unwrap().remove(0).unwrap_err();
        assert_eq!(outcome.reason, quire_proto::v1::ErrorReason::OutcomeUnknown);
    }

    #[test]
    fn what_ends_after_time_was_up_changes_nothing() {
        let (call, mut replies, mut outcomes) = Call::new(2, None);
        replies.remove(0).end(placed(1));
        call.give_up(|part| failure::internal(format!("part {part}")));
        replies.remove(0).end(placed(2));
        assert_eq!(outcomes.try_recv().unwrap(), [placed(1), Err(failure::internal("part 1"))]);
    }
}
