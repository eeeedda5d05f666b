//! What recovery knows of one replica, and how the copy to it stands.

use quire_proto::id::{BookieId, EntryId};
use smallvec::SmallVec;

use super::report::Silence;
use crate::clock::Millis;
use crate::message::ReplicaState;

/// What a fenced replica answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Entries that it has durably: grows as copies arrive.
    pub length: EntryId,
    pub committed: EntryId,
    pub certain: bool,
}

/// How far the fence of a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fencing {
    Due,
    /// Asked, and what had come of it last time.
    Asked {
        last: Option<String>,
    },
    Silent {
        why: String,
        retry_at: Millis,
    },
    Answered(Answer),
}

/// How far the copy to a replica is (T5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    /// Nothing is under way.
    Idle,
    /// Entries from here on are read.
    Reading { source: BookieId, from: EntryId },
    /// Entries below this were sent, and it has not yet made them durable. At
    /// `retry_at` they are sent again.
    Sent { through: EntryId, retry_at: Millis },
    /// The replica does not take it now.
    Refused { retry_at: Millis },
}

/// One replica.
#[derive(Debug)]
pub(super) struct Replica {
    pub bookie: BookieId,
    pub fencing: Fencing,
    pub copy: Copy,
    /// The attempt of the copy's append stream (B3).
    pub attempt: u32,
    tries: u32,
    /// Sources that could not give what was asked, and why, since it last got
    /// something.
    tried: SmallVec<[Silence; 2]>,
}

impl Replica {
    pub(super) fn new(bookie: BookieId) -> Self {
        Self { bookie, fencing: Fencing::Due, copy: Copy::Idle, attempt: 0, tries: 0, tried: SmallVec::new() }
    }

    pub(super) const fn answer(&self) -> Option<&Answer> {
        match &self.fencing {
            Fencing::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// Whether it has neither answered nor failed to.
    pub(super) fn is_first_answer_awaited(&self) -> bool {
        self.tries == 0 && matches!(self.fencing, Fencing::Due | Fencing::Asked { .. })
    }

    pub(super) fn is_fence_due(&self, now: Millis) -> bool {
        match self.fencing {
            Fencing::Due => true,
            Fencing::Silent { retry_at, .. } => retry_at <= now,
            Fencing::Asked { .. } | Fencing::Answered(_) => false,
        }
    }

    /// When something is to be tried again.
    pub(super) const fn retry_at(&self) -> Option<Millis> {
        match (&self.fencing, self.copy) {
            (Fencing::Silent { retry_at, .. }, _) => Some(*retry_at),
            (Fencing::Answered(_), Copy::Refused { retry_at } | Copy::Sent { retry_at, .. }) => {
                Some(retry_at)
            }
            _ => None,
        }
    }

    /// The fence is on its way.
    pub(super) fn ask(&mut self) {
        self.fencing = match std::mem::replace(&mut self.fencing, Fencing::Due) {
            Fencing::Silent { why, .. } => Fencing::Asked { last: Some(why) },
            _ => Fencing::Asked { last: None },
        };
    }

    pub(super) const fn is_asked(&self) -> bool {
        matches!(self.fencing, Fencing::Asked { .. })
    }

    pub(super) fn answered(&mut self, state: ReplicaState) {
        let ReplicaState { durable, committed, certain, .. } = state;
        self.fencing = Fencing::Answered(Answer { length: durable, committed, certain });
        self.copy = Copy::Idle;
        self.tried.clear();
    }

    /// It gave no answer, or its answer turned out to be worth nothing: as if
    /// nothing had been heard. It is fenced again later and later.
    pub(super) fn silent(&mut self, why: String, now: Millis, retry_ms: u64, retry_max_ms: u64) {
        let delay = retry_ms.saturating_mul(1 << self.tries.min(16)).min(retry_max_ms);
        self.tries = self.tries.saturating_add(1);
        self.fencing = Fencing::Silent { why, retry_at: now + delay };
        self.copy = Copy::Idle;
        self.attempt += 1;
    }

    pub(super) fn retry_now(&mut self, now: Millis) {
        match (&mut self.fencing, &mut self.copy) {
            (Fencing::Silent { retry_at, .. }, _) | (_, Copy::Refused { retry_at }) => *retry_at = now,
            _ => {}
        }
    }

    /// Why it does not count as a certain answer, if so.
    pub(super) fn silence(&self) -> Option<Silence> {
        let why = match &self.fencing {
            Fencing::Due | Fencing::Asked { last: None } => "it has not answered yet".to_owned(),
            Fencing::Silent { why, .. } | Fencing::Asked { last: Some(why) } => why.clone(),
            Fencing::Answered(answer) if answer.certain => return None,
            Fencing::Answered(answer) => {
                format!(
                    "its length of {} is uncertain: it lost a tail of its log or never knew the ledger",
                    answer.length
                )
            }
        };
        Some(Silence { bookie: self.bookie, why })
    }

    /// Whether it has `[0, end)` durably.
    pub(super) fn holds(&self, end: EntryId) -> bool {
        self.answer().is_some_and(|answer| answer.length >= end)
    }

    /// Whether a copy to it is under way.
    pub(super) fn is_copying(&self, end: EntryId) -> bool {
        let under_way = matches!(self.copy, Copy::Reading { .. } | Copy::Sent { .. });
        under_way && self.answer().is_some_and(|answer| answer.length < end)
    }

    /// What was sent and is overdue goes again under the next attempt.
    pub(super) fn rewind_overdue(&mut self, now: Millis) {
        if matches!(self.copy, Copy::Sent { retry_at, .. } if retry_at <= now) {
            self.refused(now);
        }
    }

    /// Where the next piece of the copy to it begins, when one is due.
    pub(super) fn copy_from(&self, end: EntryId, now: Millis) -> Option<EntryId> {
        let due = match self.copy {
            Copy::Idle => true,
            Copy::Refused { retry_at } => retry_at <= now,
            Copy::Reading { .. } | Copy::Sent { .. } => false,
        };
        self.answer().filter(|answer| due && answer.length < end).map(|answer| answer.length)
    }

    pub(super) fn was_tried(&self, source: BookieId) -> bool {
        self.tried.iter().any(|tried| tried.bookie == source)
    }

    /// The sources that failed; they may be tried again afterwards.
    pub(super) fn take_tried(&mut self) -> SmallVec<[Silence; 2]> {
        std::mem::take(&mut self.tried)
    }

    pub(super) fn source_failed(&mut self, source: BookieId, why: String) {
        self.tried.push(Silence { bookie: source, why });
        self.copy = Copy::Idle;
    }

    pub(super) fn durable(&mut self, durable: EntryId) {
        let Fencing::Answered(answer) = &mut self.fencing else { return };
        if durable <= answer.length {
            return;
        }
        answer.length = durable;
        self.tried.clear();
        if matches!(self.copy, Copy::Sent { through, .. } if through <= durable) {
            self.copy = Copy::Idle;
        }
    }

    /// The copy's stream goes on under the next attempt, from what is durable.
    pub(super) fn refused(&mut self, retry_at: Millis) {
        self.attempt += 1;
        self.copy = Copy::Refused { retry_at };
    }
}
