use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use quire_proto::batch::{Batch, Producer};
use quire_proto::v1::ErrorReason;
use tokio::time::Instant;

use super::delivery::Outcome;
use crate::Error;
use crate::backoff::Backoff;

/// The sealed batches of one partition, from being sealed to its being known
/// what became of them. Without I/O: the driver tells what happens and asks what
/// to send.
///
/// What it holds to:
/// - Batches resolve once each, in the order in which they were taken.
/// - At most `window` are unresolved; a broker remembers as many, so that a
///   batch sent again is recognised.
/// - After a failure nothing is sent until all that is under way is answered or
///   its connection broken; then everything unresolved goes again, in order,
///   byte for byte.
/// - Until a broker has acknowledged something under an identity, one batch is
///   under way at a time: a broker takes an identity that it does not know at any
///   sequence, so the second batch must not get there when the first was refused.
///   The same after a long silence, in which the broker may have forgotten.
/// - A batch that fails for good leaves a gap in the sequences. What may have
///   been appended behind it is first cleared up under the old identity; only
///   what certainly was not is sealed anew, under a fresh one.
#[derive(Debug)]
pub(crate) struct Sequencer<T> {
    rules: Rules,
    identity: Option<Identity>,
    next_sequence: i32,
    batches: VecDeque<Unresolved<T>>,
    /// Token of the first of `batches`.
    first_token: u64,
    /// Sent and not answered.
    outstanding: usize,
    recovering: bool,
    gap: bool,
    /// When a broker last acknowledged something under this identity.
    acknowledged_at: Option<Instant>,
    attempt: u32,
    not_before: Option<Instant>,
    last_error: Option<Error>,
}

/// Brokers remember an identity for longer than this.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// How a partition is sent to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Batches unresolved at once, at least 1.
    pub(crate) window: usize,
    pub(crate) idempotent: bool,
    pub(crate) backoff: Backoff,
    pub(crate) delivery_timeout: Duration,
}

/// Who sends, as a broker gave it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

/// A batch, for as long as it is unresolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(u64);

#[derive(Debug)]
struct Unresolved<T> {
    batch: Batch,
    taken_at: Instant,
    state: State,
    /// Whether a try of it may have been appended without our knowing.
    maybe_appended: bool,
    payload: T,
}

#[derive(Debug)]
enum State {
    Waiting,
    Sent,
    Resolved(Outcome),
}

impl<T> Sequencer<T> {
    pub(crate) const fn new(rules: Rules) -> Self {
        Self {
            rules,
            identity: None,
            next_sequence: 0,
            batches: VecDeque::new(),
            first_token: 0,
            outstanding: 0,
            recovering: false,
            gap: false,
            acknowledged_at: None,
            attempt: 0,
            not_before: None,
            last_error: None,
        }
    }

    /// Whether it needs an identity, other than the one it has, to go on.
    pub(crate) fn wants_identity(&self) -> bool {
        let cleared = || {
            let mut unresolved = self.batches.iter().filter(|batch| !batch.is_resolved());
            self.outstanding == 0 && !unresolved.any(|batch| batch.maybe_appended)
        };
        self.rules.idempotent && (self.identity.is_none() || (self.gap && cleared()))
    }

    /// The identity in use.
    pub(crate) const fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Goes on under this identity, which this partition has not used before.
    pub(crate) fn identify(&mut self, identity: Identity) {
        self.identity = Some(identity);
        self.next_sequence = 0;
        self.gap = false;
        self.acknowledged_at = None;
        for index in 0..self.batches.len() {
            if !self.batches[index].is_resolved() {
                let producer = self.claim(self.batches[index].batch.header.record_count);
                let batch = &mut self.batches[index].batch;
                *batch = batch.clone().with_producer(producer);
            }
        }
    }

    /// How many more batches it takes now.
    pub(crate) fn room(&self) -> usize {
        let identified = !self.rules.idempotent || self.identity.is_some();
        if identified && !self.gap { self.rules.window.saturating_sub(self.batches.len()) } else { 0 }
    }

    /// Whether anything is sent and not answered.
    pub(crate) const fn is_under_way(&self) -> bool {
        self.outstanding > 0
    }

    /// The producer to seal the next batch of this many records with; the batch
    /// is then given to [`Sequencer::push`].
    pub(crate) const fn claim(&mut self, records: u32) -> Producer {
        match self.identity {
            Some(Identity { id, epoch }) if self.rules.idempotent => {
                let base_sequence = self.next_sequence;
                self.next_sequence = after(base_sequence, records);
                Producer { id, epoch, base_sequence }
            }
            _ => Producer::NONE,
        }
    }

    /// Takes a sealed batch. `taken_at` is when its first record was taken.
    pub(crate) fn push(&mut self, batch: Batch, taken_at: Instant, payload: T) {
        let state = State::Waiting;
        self.batches.push_back(Unresolved { batch, taken_at, state, maybe_appended: false, payload });
    }

    /// The next batch to send, which counts as sent from now on.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(Token, Bytes)> {
        let alone = self.recovering || !self.is_known(now);
        if self.not_before.is_some_and(|at| at > now) || (alone && self.outstanding > 0) {
            return None;
        }
        self.recovering = false;
        let gap = self.gap;
        let due = |one: &Unresolved<T>| matches!(one.state, State::Waiting) && (!gap || one.maybe_appended);
        let index = self.batches.iter().position(due)?;
        self.batches[index].state = State::Sent;
        self.outstanding += 1;
        Some((Token(self.first_token + index as u64), self.batches[index].batch.bytes.clone()))
    }

    /// Whether the broker surely remembers this identity.
    fn is_known(&self, now: Instant) -> bool {
        !self.rules.idempotent || self.acknowledged_at.is_some_and(|at| now < at + REMEMBERED_FOR)
    }

    /// A broker answered for a batch.
    pub(crate) fn answered(&mut self, token: Token, outcome: Outcome, now: Instant) {
        self.outstanding = self.outstanding.saturating_sub(1);
        let index = token.0.checked_sub(self.first_token).and_then(|index| usize::try_from(index).ok());
        let Some(index) = index.filter(|&index| index < self.batches.len()) else { return };
        if !matches!(self.batches[index].state, State::Sent) {
            return;
        }
        match outcome {
            Ok(offset) => {
                self.batches[index].state = State::Resolved(Ok(offset));
                self.acknowledged_at = Some(now);
                self.attempt = 0;
                self.last_error = None;
            }
            Err(error) => self.refused(index, error, now),
        }
    }

    fn refused(&mut self, index: usize, error: Error, now: Instant) {
        let behind_a_gap = self.gap || self.batches.range(..index).any(|earlier| !earlier.is_acknowledged());
        if behind_a_gap && error.reason() == Some(ErrorReason::OutOfOrderSequence) {
            // It follows from what happened to an earlier one, and says for
            // certain that this one is not in the log.
            self.batches[index].maybe_appended = false;
            self.batches[index].state = State::Waiting;
            self.recovering = true;
        } else {
            self.set_back(index, &error);
            self.back_off(error, now);
        }
    }

    /// The connection broke: no answer will come for what is under way.
    pub(crate) fn disconnected(&mut self, error: &Error, now: Instant) {
        self.outstanding = 0;
        let mut any = false;
        for index in 0..self.batches.len() {
            if matches!(self.batches[index].state, State::Sent) {
                self.set_back(index, error);
                any = true;
            }
        }
        if any {
            self.back_off(error.clone(), now);
        }
    }

    /// A try failed: the batch waits for the next one, or has failed for good.
    fn set_back(&mut self, index: usize, error: &Error) {
        let batch = &mut self.batches[index];
        batch.maybe_appended |= !error.is_determinate();
        if error.is_retryable() {
            batch.state = State::Waiting;
        } else {
            let error = error.clone();
            batch.state = State::Resolved(Err(if batch.maybe_appended { error.uncertain() } else { error }));
            self.gap = self.rules.idempotent;
        }
    }

    fn back_off(&mut self, error: Error, now: Instant) {
        if !self.recovering {
            self.attempt += 1;
            self.not_before = Some(now + self.rules.backoff.wait(self.attempt));
        }
        self.recovering = true;
        self.last_error = Some(error);
    }

    /// Fails what has been taken too long ago.
    pub(crate) fn expire(&mut self, now: Instant) {
        let after = self.rules.delivery_timeout;
        for batch in &mut self.batches {
            if now < batch.taken_at + after {
                break;
            }
            if batch.is_resolved() {
                continue;
            }
            let determinate = !batch.maybe_appended && !matches!(batch.state, State::Sent);
            let last = self.last_error.clone().map(Box::new);
            let what = "delivering a record".to_owned();
            batch.state = State::Resolved(Err(Error::Timeout { what, after, last, determinate }));
            self.gap = self.rules.idempotent;
            self.recovering = true;
        }
    }

    /// Fails everything: `untouched` for what certainly is not in the log,
    /// `unknown` for the rest.
    pub(crate) fn abandon(&mut self, untouched: &Error, unknown: &Error) {
        for batch in &mut self.batches {
            if !batch.is_resolved() {
                let known = !batch.maybe_appended && !matches!(batch.state, State::Sent);
                batch.state = State::Resolved(Err(if known { untouched.clone() } else { unknown.clone() }));
            }
        }
    }

    /// The next batch of which it is known what became of it, in order.
    pub(crate) fn pop(&mut self) -> Option<(T, Outcome)> {
        if !self.batches.front()?.is_resolved() {
            return None;
        }
        let Unresolved { payload, state, .. } = self.batches.pop_front()?;
        self.first_token += 1;
        match state {
            State::Resolved(outcome) => Some((payload, outcome)),
            State::Waiting | State::Sent => None,
        }
    }

    /// Whether nothing is unresolved.
    pub(crate) fn is_idle(&self) -> bool {
        self.batches.is_empty()
    }

    /// When to call [`Sequencer::next`] or [`Sequencer::expire`] again, if
    /// nothing happens before.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        let expiry = self.batches.front()?.taken_at + self.rules.delivery_timeout;
        let pause = self.not_before.filter(|&at| at > now);
        Some(pause.map_or(expiry, |at| at.min(expiry)))
    }

    /// The last failure since something succeeded.
    pub(crate) const fn last_error(&self) -> Option<&Error> {
        self.last_error.as_ref()
    }
}

impl<T> Unresolved<T> {
    const fn is_resolved(&self) -> bool {
        matches!(self.state, State::Resolved(_))
    }

    const fn is_acknowledged(&self) -> bool {
        matches!(self.state, State::Resolved(Ok(_)))
    }
}

/// The sequence after `records` more: it wraps to 0 after `i32::MAX`.
const fn after(sequence: i32, records: u32) -> i32 {
    (sequence.cast_unsigned().wrapping_add(records) & i32::MAX.cast_unsigned()).cast_signed()
}

#[cfg(test)]
mod tests;
