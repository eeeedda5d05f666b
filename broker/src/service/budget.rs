//! Memory that all clients share, each kind by itself: for requests, for answers,
//! for what is asked for. It is taken once it is known how much is wanted, in the
//! order of asking. One connection may hold a part of it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quire_proto::v1::ErrorReason;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::failure::Failure;
use crate::memory::SMALL;
use crate::service::answers::{Taken, UnderWay};
use crate::service::connection::Peer;

/// What a small answer takes beside its bytes.
const ANSWER_BYTES: usize = 512;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Produce requests that arrive.
    Produces,
    /// What these become once they are decoded, beside their bytes.
    DecodedProduces,
    /// All other requests that arrive.
    Questions,
    /// What these become.
    DecodedQuestions,
    /// Answers with records.
    Records,
    /// All other answers but those to producers.
    Replies,
    /// Produce requests that are not answered, and their answers.
    Acknowledgements,
    /// What is fetched or looked up, until it is found.
    Fetches,
    /// What is subscribed to.
    Subscriptions,
}

/// Memory of one kind.
#[derive(Debug)]
pub struct Budget {
    kind: Kind,
    free: Arc<Semaphore>,
    limit: usize,
    /// How long a client may take next to nothing of an answer, and how long a
    /// connection waits for what it holds itself. Who waits for others waits twice
    /// as long, so that it outlasts who stands still. None at all: nobody waits.
    pub(super) patience: Duration,
    next: AtomicU64,
    /// Answers that hold some of it.
    under_way: Mutex<HashMap<u64, UnderWay>>,
    /// Since when those wait that wait for others, not for themselves.
    waiting: Mutex<BTreeMap<u64, Instant>>,
}

/// What one connection may hold of it.
#[derive(Debug)]
pub struct Part {
    free: Arc<Semaphore>,
    /// How many wait for what the connection holds itself.
    waiting: AtomicUsize,
    /// What the client took of its answers of this kind.
    pub(super) taken: Mutex<Taken>,
}

/// Memory that was taken.
#[derive(Debug)]
pub struct Room {
    pub(super) budget: Arc<Budget>,
    permit: OwnedSemaphorePermit,
    /// Of the connection's part.
    own: Option<OwnedSemaphorePermit>,
}

/// One that waits for others, as long as it does.
struct Waiting<'a> {
    budget: &'a Budget,
    id: u64,
}

/// One that waits for its own connection, as long as it does.
struct WaitingForItself<'a>(&'a Part);

impl Budget {
    /// For this many bytes at once.
    #[must_use]
    pub fn new(kind: Kind, limit: usize, patience: Duration) -> Arc<Self> {
        let limit = limit.clamp(1 << 20, u32::MAX as usize);
        Arc::new(Self {
            kind,
            free: Arc::new(Semaphore::new(limit)),
            limit,
            patience,
            next: AtomicU64::new(0),
            under_way: Mutex::default(),
            waiting: Mutex::default(),
        })
    }

    /// Bytes that are taken.
    #[must_use]
    pub fn used(&self) -> usize {
        self.limit - self.free.available_permits().min(self.limit)
    }

    /// Bytes that one connection may hold. What is larger takes all of it.
    #[must_use]
    pub const fn part(&self) -> usize {
        self.limit / self.kind.parts()
    }

    /// Takes this many bytes for this client, unless they are few, if there are so
    /// many.
    #[must_use]
    pub fn room_now(self: &Arc<Self>, bytes: usize, peer: Option<&Peer>) -> Option<Room> {
        let own = match self.own(bytes, peer) {
            Some((part, permits)) => Some(Arc::clone(&part.free).try_acquire_many_owned(permits).ok()?),
            None => None,
        };
        let permit = Arc::clone(&self.free).try_acquire_many_owned(self.permits(bytes)).ok()?;
        Some(Room { budget: Arc::clone(self), permit, own })
    }

    /// The same, as soon as there are so many, in the order of asking, at most until
    /// the deadline. Who holds its part waits for itself first. Cancel-safe.
    ///
    /// # Errors
    /// `OVERLOADED` when there are not so many for too long.
    pub async fn room(
        self: &Arc<Self>,
        bytes: usize,
        peer: Option<&Peer>,
        deadline: Option<Instant>,
    ) -> Result<Room, Failure> {
        let until = |patience| {
            let patient = Instant::now() + patience;
            deadline.map_or(patient, |deadline| deadline.min(patient))
        };
        let mut own = None;
        if let Some((part, permits)) = self.own(bytes, peer) {
            own = Arc::clone(&part.free).try_acquire_many_owned(permits).ok();
            if own.is_none() {
                let _waiting = WaitingForItself::new(&part);
                let acquired = Arc::clone(&part.free).acquire_many_owned(permits);
                let acquired = tokio::time::timeout_at(until(self.patience), acquired).await;
                own = Some(acquired.ok().and_then(Result::ok).ok_or_else(|| self.part_is_used())?);
            }
        }
        let free = Arc::clone(&self.free);
        let permits = self.permits(bytes);
        if let Ok(permit) = Arc::clone(&free).try_acquire_many_owned(permits) {
            return Ok(Room { budget: Arc::clone(self), permit, own });
        }
        let _waiting = self.wait();
        match tokio::time::timeout_at(until(2 * self.patience), free.acquire_many_owned(permits)).await {
            Ok(Ok(permit)) => Ok(Room { budget: Arc::clone(self), permit, own }),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(self.overloaded()),
        }
    }

    /// Why this client does not get any at once.
    pub fn refused(&self, peer: Option<&Peer>) -> Failure {
        match peer.map(|peer| self.part_of(peer)) {
            Some(part) if part.is_waited_for() => self.part_is_used(),
            _ => self.overloaded(),
        }
    }

    fn overloaded(&self) -> Failure {
        metrics::counter!("quire_broker_overloaded_total").increment(1);
        let Self { kind, limit, .. } = self;
        let message = format!(
            "the broker's memory for {kind} ({limit} bytes) is in use: try again once others are done, or raise {}",
            kind.option()
        );
        Failure::new(ErrorReason::Overloaded, message)
    }

    fn part_is_used(&self) -> Failure {
        metrics::counter!("quire_broker_overloaded_total").increment(1);
        let Self { kind, .. } = self;
        let message = format!(
            "one connection may hold {} bytes of the broker's memory for {kind}, and this one does: {}, or raise {}",
            self.part(),
            kind.remedy(),
            kind.option()
        );
        Failure::new(ErrorReason::Overloaded, message)
    }

    fn permits(&self, bytes: usize) -> u32 {
        let bytes = if bytes < SMALL { 0 } else { bytes.min(self.limit) };
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// The part of a client's connection, and how much of that this much takes.
    fn own(&self, bytes: usize, peer: Option<&Peer>) -> Option<(Arc<Part>, u32)> {
        let bytes = if self.kind.counts_small() { bytes } else { self.permits(bytes) as usize };
        let peer = peer.filter(|_| bytes > 0)?;
        Some((self.part_of(peer), u32::try_from(bytes.min(self.part())).unwrap_or(u32::MAX)))
    }

    /// The part of a client's connection.
    pub(super) fn part_of(&self, peer: &Peer) -> Arc<Part> {
        peer.part(self.kind, || Part {
            free: Arc::new(Semaphore::new(self.part())),
            waiting: AtomicUsize::new(0),
            taken: Mutex::new(Taken::nothing()),
        })
    }

    fn wait(&self) -> Waiting<'_> {
        let id = self.number();
        self.waiting().insert(id, Instant::now());
        Waiting { budget: self, id }
    }

    /// Since when somebody waits for others.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.waiting().first_key_value().map(|(_, since)| *since)
    }

    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn under_way(&self) -> MutexGuard<'_, HashMap<u64, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kind {
    /// One connection may hold one of so many parts of the memory, or else what is
    /// larger. What one client asks for in a few requests is much, and small beside
    /// the answers.
    const fn parts(self) -> usize {
        match self {
            Self::Records | Self::Replies | Self::Acknowledgements => 8,
            Self::Fetches | Self::Subscriptions => 4,
            Self::Produces | Self::DecodedProduces | Self::Questions | Self::DecodedQuestions => 2,
        }
    }

    /// Whether what is small counts for its connection. One stream of produce
    /// requests has many of them; elsewhere the stream that each is on costs about
    /// as much.
    const fn counts_small(self) -> bool {
        matches!(self, Self::Acknowledgements)
    }

    /// What sets how much there is.
    const fn option(self) -> &'static str {
        match self {
            Self::Produces | Self::DecodedProduces | Self::Questions | Self::DecodedQuestions => {
                "request_bytes"
            }
            Self::Records | Self::Replies | Self::Acknowledgements | Self::Fetches | Self::Subscriptions => {
                "answer_bytes"
            }
        }
    }

    /// What to do when one connection holds its part.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Subscriptions => "end others, use another connection",
            Self::Acknowledgements => "take the answers, send less at once or on more connections",
            Self::Produces | Self::DecodedProduces | Self::Questions | Self::DecodedQuestions => {
                "try again, send less at once or on more connections"
            }
            Self::Records | Self::Replies | Self::Fetches => {
                "try again once what it asked for before is there and taken, ask for less at once or on more \
                 connections"
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Produces => "produce requests",
            Self::DecodedProduces => "what is in produce requests",
            Self::Questions => "requests other than produce",
            Self::DecodedQuestions => "what is in requests other than produce",
            Self::Records => "answers with records",
            Self::Replies => "answers without records",
            Self::Acknowledgements => "produce requests that are not answered",
            Self::Fetches => "fetches",
            Self::Subscriptions => "subscriptions",
        })
    }
}

impl Part {
    /// Whether the connection waits for what it holds itself.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

impl Room {
    /// Whether it is as much as this many bytes take.
    #[must_use]
    pub fn covers(&self, bytes: usize) -> bool {
        self.permit.num_permits() >= self.budget.permits(bytes) as usize
    }

    /// Gives back what an answer of this many bytes does not take.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let bytes = if self.budget.kind.counts_small() { bytes + ANSWER_BYTES } else { bytes };
        drop(self.permit.split(self.permit.num_permits().saturating_sub(bytes)));
        if let Some(own) = &mut self.own {
            drop(own.split(own.num_permits().saturating_sub(bytes)));
        }
    }

    /// Bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.permit.num_permits().max(self.own.as_ref().map_or(0, OwnedSemaphorePermit::num_permits))
    }
}

impl<'a> WaitingForItself<'a> {
    fn new(part: &'a Part) -> Self {
        part.waiting.fetch_add(1, Ordering::Relaxed);
        Self(part)
    }
}

impl Drop for WaitingForItself<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.budget.waiting().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use quire_metadata::topic::TOPIC_NAME_MAX;

    use super::*;
    use crate::service::NAMES_MAX;
    use crate::service::fetch::ASKED_BYTES;
    use crate::testing::peer;

    const LIMIT: usize = 8 << 20;
    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_memory_is_told_why() {
        let answers = Budget::new(Kind::Records, LIMIT, PATIENCE);
        let _room = answers.room(LIMIT, None, None).await.unwrap();
        assert_eq!(answers.room(SMALL, None, None).await.unwrap_err().reason, ErrorReason::Overloaded);
    }

    #[tokio::test(start_paused = true)]
    async fn one_connection_holds_its_part() {
        let answers = Budget::new(Kind::Records, LIMIT, PATIENCE);
        let (greedy, other) = (peer(), peer());
        let part = answers.part();
        // An answer that is larger is served, alone.
        let larger = answers.room(2 * part, Some(&greedy), None).await.unwrap();
        assert_eq!(answers.used(), 2 * part);
        assert!(answers.room_now(SMALL, Some(&greedy)).is_none());
        let refused = answers.room(SMALL, Some(&greedy), None).await.unwrap_err();
        assert_eq!(refused.reason, ErrorReason::Overloaded);
        assert!(refused.message.contains("one connection"), "{}", refused.message);
        assert!(answers.room_now(part, Some(&other)).is_some());
        // It turned out to be small.
        let mut pieces = larger.hold([Bytes::from(vec![7; part / 2])].into(), greedy.clone(), false);
        let half = answers.room_now(part / 2, Some(&greedy)).unwrap();
        let mut waiting = Box::pin(answers.room(part / 4, Some(&greedy), None));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(answers.waits_since().is_none(), "it waits for itself only");
        pieces.clear();
        assert!(waiting.now_or_never().is_some_and(|room| room.is_ok()));
        drop(half);
        assert!(answers.room_now(part, Some(&greedy)).is_some());
        assert_eq!(answers.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_its_part_waits_for_itself_and_no_longer_than_it_may() {
        let replies = Budget::new(Kind::Replies, LIMIT, PATIENCE);
        let (greedy, other) = (peer(), peer());
        let part = replies.part();
        let all = replies.room_now(part, Some(&greedy)).unwrap();
        let is_waited_for = || replies.part_of(&greedy).is_waited_for();
        let mut waiting = [SMALL, SMALL].map(|bytes| Box::pin(replies.room(bytes, Some(&greedy), None)));
        assert!(waiting.iter_mut().all(|room| room.as_mut().now_or_never().is_none()));
        assert!(is_waited_for());
        assert!(replies.room(part, Some(&other), None).now_or_never().is_some_and(|room| room.is_ok()));
        drop(all);
        let rooms = waiting.map(|room| room.now_or_never().unwrap().unwrap());
        assert!(!is_waited_for());
        let wait = async |deadline| {
            let began = Instant::now();
            let late = replies.room(part, Some(&greedy), deadline).await.unwrap_err();
            assert_eq!(late.reason, ErrorReason::Overloaded);
            began.elapsed()
        };
        let second = Duration::from_secs(1);
        assert_eq!(wait(Some(Instant::now() + second)).await, second);
        assert_eq!(wait(Some(Instant::now() + 10 * PATIENCE)).await, PATIENCE);
        assert!(!is_waited_for());
        drop(rooms);
        assert!(replies.room_now(part, Some(&greedy)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn of_what_a_stream_has_many_the_small_counts_for_its_connection_only() {
        let requests = Budget::new(Kind::Acknowledgements, LIMIT, PATIENCE);
        let (greedy, other) = (peer(), peer());
        let bytes = SMALL - 1;
        let rooms: Vec<_> = std::iter::from_fn(|| requests.room_now(bytes, Some(&greedy))).collect();
        assert_eq!(rooms.len(), requests.part() / bytes);
        assert_eq!(requests.used(), 0);
        let _all = requests.room_now(LIMIT, None).unwrap();
        assert!(requests.room_now(bytes, Some(&other)).is_some());
        let sending = rooms.into_iter().filter_map(|room| room.sending(greedy.clone(), false));
        let sending: Vec<_> = sending.collect();
        assert!(requests.room_now(bytes, Some(&greedy)).is_none(), "until it is taken");
        drop(sending);
        assert!(requests.room_now(bytes, Some(&greedy)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_to_do_is_what_can_help() {
        let texts = [(Kind::Subscriptions, "end others"), (Kind::Fetches, "ask for less at once")].map(
            async |(kind, remedy)| {
                let (budget, peer) = (Budget::new(kind, LIMIT, Duration::ZERO), peer());
                let _all = budget.room_now(LIMIT, Some(&peer)).unwrap();
                let refused = budget.room(SMALL, Some(&peer), None).await.unwrap_err();
                assert!(refused.message.contains(remedy), "{}", refused.message);
            },
        );
        futures_util::future::join_all(texts).await;
        let requests = Budget::new(Kind::Produces, LIMIT, Duration::ZERO);
        assert!(requests.overloaded().message.contains("raise request_bytes"));
    }

    #[test]
    fn one_connection_may_ask_for_the_most_partitions_twice() {
        let all = crate::options::Options::default().answer_bytes;
        let most = NAMES_MAX * (ASKED_BYTES + TOPIC_NAME_MAX);
        for kind in [Kind::Fetches, Kind::Subscriptions] {
            assert!(Budget::new(kind, all / 8, PATIENCE).part() > 2 * most, "{kind}");
        }
    }

    #[tokio::test]
    async fn a_small_answer_takes_nothing_and_waits_for_nobody() {
        let answers = Budget::new(Kind::Records, LIMIT, PATIENCE);
        let all = answers.room(LIMIT, None, None).await.unwrap();
        let mut waiting = Box::pin(answers.room(SMALL, None, None));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(answers.room(SMALL - 1, None, None).now_or_never().is_some_and(|room| room.is_ok()));
        drop(all);
        assert!(waiting.await.is_ok());
    }
}
