//! The memory of answers that may be large: taken once it is known how large they
//! are, held until the client has them. One connection may hold a part of it.
//! Whoever does not take what it asked for, while others wait for memory, is
//! disconnected. The same measures what requests name, as long as it is looked
//! for.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use quire_proto::v1::ErrorReason;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Response, Status};

use crate::failure::Failure;
use crate::memory::{Memory, SMALL};
use crate::service::connection::Peer;

/// Answers are sent in pieces of at most this many bytes, so that it is seen how
/// fast a client takes them.
const PIECE_BYTES: usize = 64 << 10;

/// How often within the patience it is looked who stands still.
const LOOKS: u32 = 6;

/// Once somebody has waited for as long as one may stand still, one may for this
/// part of it, until nobody has been disconnected for so many times as long.
const HURRY: u32 = 6;
const CALM: u32 = 4;

/// Who takes so many bytes of its answers does not stand still.
const PROGRESS: usize = 192 << 10;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Answers with records.
    Records,
    /// All other answers but those to producers.
    Replies,
    /// Answers to producers.
    Acknowledgements,
    /// What is fetched or looked up, until it is found.
    Fetches,
    /// What is subscribed to.
    Subscriptions,
}

/// Answers of one kind that are read or sent, of all clients, or what they are
/// asked for.
#[derive(Debug)]
pub struct Answers {
    kind: Kind,
    free: Arc<Semaphore>,
    limit: usize,
    /// How long a client may take next to nothing of an answer. Who waits for
    /// memory waits twice as long, so that it outlasts who stands still. None at
    /// all: nobody waits.
    patience: Duration,
    next: AtomicU64,
    under_way: Mutex<HashMap<u64, UnderWay>>,
    /// Since when those wait that wait for others, not for themselves.
    waiting: Mutex<BTreeMap<u64, Instant>>,
}

/// An answer that is being sent.
#[derive(Debug)]
struct UnderWay {
    peer: Peer,
    since: Instant,
    /// Whether its pieces are of records that are charged.
    pins_records: bool,
    part: Arc<Part>,
}

/// What one connection may hold of it.
#[derive(Debug)]
pub struct Part {
    free: Arc<Semaphore>,
    /// The right of one request to wait for what the connection holds itself.
    turn: Semaphore,
    taken: Mutex<Taken>,
}

/// What the client took of its answers of this kind.
#[derive(Debug)]
struct Taken {
    bytes: usize,
    /// When they last were [`PROGRESS`], from which they count anew.
    at: Instant,
}

/// Memory for one answer.
#[derive(Debug)]
pub struct Room {
    answers: Arc<Answers>,
    permit: OwnedSemaphorePermit,
    /// Of the connection's part.
    own: Option<OwnedSemaphorePermit>,
}

/// One that waits, as long as it does.
struct Waiting<'a> {
    answers: &'a Answers,
    id: u64,
}

/// An answer that is being sent, until its last piece is.
#[derive(Debug)]
pub struct Sending {
    answers: Arc<Answers>,
    id: u64,
    part: Arc<Part>,
    permit: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

/// A piece of it.
struct Piece {
    bytes: Bytes,
    sending: Arc<Sending>,
}

impl Answers {
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

    /// Bytes that one connection may hold. An answer that is larger takes all of
    /// it.
    #[must_use]
    pub const fn part(&self) -> usize {
        self.limit / self.kind.parts()
    }

    /// Takes this many bytes for this client, unless they are few, if there are so
    /// many.
    #[must_use]
    pub fn room_now(self: &Arc<Self>, bytes: usize, peer: Option<&Peer>) -> Option<Room> {
        let permits = self.permits(bytes);
        let own = match self.part_of(peer, permits) {
            Some((part, permits)) => Some(Arc::clone(&part.free).try_acquire_many_owned(permits).ok()?),
            None => None,
        };
        let permit = Arc::clone(&self.free).try_acquire_many_owned(permits).ok()?;
        Some(Room { answers: Arc::clone(self), permit, own })
    }

    /// The same, as soon as there are so many, in the order of asking. Who holds its
    /// part waits for itself first. Cancel-safe.
    ///
    /// # Errors
    /// `OVERLOADED` when there are not so many for too long.
    pub async fn room(self: &Arc<Self>, bytes: usize, peer: Option<&Peer>) -> Result<Room, Failure> {
        self.wait_for_room(bytes, peer, None, false).await
    }

    /// The same for requests, which hold more than is counted: one of a connection
    /// waits for what that holds itself, at most until then.
    ///
    /// # Errors
    /// `OVERLOADED` when there are not so many for too long, or another waits.
    pub async fn room_in_turn(
        self: &Arc<Self>,
        bytes: usize,
        peer: Option<&Peer>,
        deadline: Option<Instant>,
    ) -> Result<Room, Failure> {
        self.wait_for_room(bytes, peer, deadline, true).await
    }

    async fn wait_for_room(
        self: &Arc<Self>,
        bytes: usize,
        peer: Option<&Peer>,
        deadline: Option<Instant>,
        in_turn: bool,
    ) -> Result<Room, Failure> {
        // Anew for either wait: who waits for others outlasts one of them that stands still.
        let until = || {
            let patient = Instant::now() + 2 * self.patience;
            deadline.map_or(patient, |deadline| deadline.min(patient))
        };
        let permits = self.permits(bytes);
        let mut own = None;
        if let Some((part, permits)) = self.part_of(peer, permits) {
            let free = Arc::clone(&part.free);
            own = free.try_acquire_many_owned(permits).ok();
            if own.is_none() {
                let turn = in_turn.then(|| part.turn.try_acquire()).transpose();
                let _turn = turn.map_err(|_| self.part_is_used())?;
                let acquired = Arc::clone(&part.free).acquire_many_owned(permits);
                let acquired = tokio::time::timeout_at(until(), acquired).await;
                own = Some(acquired.ok().and_then(Result::ok).ok_or_else(|| self.part_is_used())?);
            }
        }
        let free = Arc::clone(&self.free);
        if let Ok(permit) = Arc::clone(&free).try_acquire_many_owned(permits) {
            return Ok(Room { answers: Arc::clone(self), permit, own });
        }
        let _waiting = self.wait();
        match tokio::time::timeout_at(until(), free.acquire_many_owned(permits)).await {
            Ok(Ok(permit)) => Ok(Room { answers: Arc::clone(self), permit, own }),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(self.overloaded()),
        }
    }

    fn overloaded(&self) -> Failure {
        metrics::counter!("quire_broker_overloaded_total").increment(1);
        let Self { kind, limit, .. } = self;
        let message = format!(
            "the broker's memory for {kind} ({limit} bytes) is in use: try again once others are done, or raise \
             answer_bytes, of which it is a part"
        );
        Failure::new(ErrorReason::Overloaded, message)
    }

    fn part_is_used(&self) -> Failure {
        metrics::counter!("quire_broker_overloaded_total").increment(1);
        let (kind, part) = (self.kind, self.part());
        let message = format!(
            "one connection may hold {part} bytes of the broker's memory for {kind}, and this one does: try \
             again once what it asked for before is there and taken, ask for less at once or on more \
             connections, or raise answer_bytes"
        );
        Failure::new(ErrorReason::Overloaded, message)
    }

    fn permits(&self, bytes: usize) -> u32 {
        let bytes = if bytes < SMALL { 0 } else { bytes.min(self.limit) };
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// The part of a client's connection, and how much of that this much takes.
    fn part_of(&self, peer: Option<&Peer>, permits: u32) -> Option<(Arc<Part>, u32)> {
        let peer = peer.filter(|_| permits > 0)?;
        Some((self.part_held_by(peer), permits.min(u32::try_from(self.part()).unwrap_or(u32::MAX))))
    }

    fn part_held_by(&self, peer: &Peer) -> Arc<Part> {
        peer.part(self.kind, || Part {
            free: Arc::new(Semaphore::new(self.part())),
            turn: Semaphore::new(1),
            taken: Mutex::new(Taken { bytes: 0, at: Instant::now() }),
        })
    }

    fn wait(&self) -> Waiting<'_> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting().insert(id, Instant::now());
        Waiting { answers: self, id }
    }

    /// Disconnects who stands still while somebody waits for what it holds: for
    /// an answer's memory, or for that of records, whose pieces answers are, or
    /// itself with a request. Ends never.
    ///
    /// Those who come next may stand still as well: once somebody has waited for as
    /// long as one may, one may for a moment only, until they come no more.
    pub async fn watch(self: Arc<Self>, records: Arc<Memory>) {
        let mut every = tokio::time::interval(self.patience / LOOKS);
        let mut hurry_until = Instant::now();
        loop {
            every.tick().await;
            let now = Instant::now();
            let waits_since = self.waiting().first_key_value().map(|(_, since)| *since);
            let is_long = waits_since.is_some_and(|since| now >= since + self.patience);
            // Who waits for itself only harms nobody.
            let is_hurried = is_long || (waits_since.is_some() && now < hurry_until);
            let patience = if is_hurried { self.patience / HURRY } else { self.patience };
            let records_wait = records.is_pressed();
            let stands_still = |answer: &&UnderWay| {
                let is_waited_for = waits_since.is_some()
                    || (answer.pins_records && records_wait)
                    || answer.part.turn.available_permits() == 0;
                is_waited_for && now >= answer.since.max(answer.part.taken_at()) + patience
            };
            for UnderWay { peer, .. } in self.lock().values().filter(stands_still) {
                if !peer.is_cut() {
                    metrics::counter!("quire_broker_connections_cut_total").increment(1);
                    let address = peer.address;
                    tracing::warn!(%address, "a client that does not take its answers is disconnected");
                    peer.cut();
                    if is_hurried {
                        hurry_until = now + CALM * self.patience;
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kind {
    /// One connection may hold one of so many parts of the memory, or else one
    /// answer. What one client asks for in a few requests is much, and small beside
    /// the answers.
    const fn parts(self) -> usize {
        match self {
            Self::Records | Self::Replies | Self::Acknowledgements => 8,
            Self::Fetches | Self::Subscriptions => 4,
        }
    }
}

impl Part {
    /// The client took some of an answer.
    fn takes(&self, bytes: usize) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.bytes += bytes;
        if taken.bytes >= PROGRESS {
            *taken = Taken { bytes: 0, at: Instant::now() };
        }
    }

    /// When it last had taken enough of them.
    fn taken_at(&self) -> Instant {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).at
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Records => "answers with records",
            Self::Replies => "answers without records",
            Self::Acknowledgements => "answers to producers",
            Self::Fetches => "fetches",
            Self::Subscriptions => "subscriptions",
        })
    }
}

impl Room {
    /// Whether it is as much as this many bytes take.
    #[must_use]
    pub fn covers(&self, bytes: usize) -> bool {
        self.permit.num_permits() >= self.answers.permits(bytes) as usize
    }

    /// The pieces, which from now on hold the memory: it is freed with the last
    /// of them. `pins_records`: some are slices of records that are charged.
    #[must_use]
    pub fn hold(mut self, pieces: VecDeque<Bytes>, peer: Peer, pins_records: bool) -> VecDeque<Bytes> {
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        drop(self.permit.split(self.permit.num_permits().saturating_sub(bytes)));
        if let Some(own) = &mut self.own {
            drop(own.split(own.num_permits().saturating_sub(bytes)));
        }
        let Some(sending) = self.sending(peer, pins_records).map(Arc::new) else { return pieces };
        let held = |bytes: Bytes| Bytes::from_owner(Piece { bytes, sending: Arc::clone(&sending) });
        pieces.into_iter().flat_map(chop).map(held).collect()
    }

    /// An answer to this client is on its way, in this memory. `None`: it needs
    /// none.
    #[must_use]
    pub fn sending(self, peer: Peer, pins_records: bool) -> Option<Sending> {
        let Self { answers, permit, own } = self;
        if permit.num_permits() == 0 {
            return None;
        }
        let id = answers.next.fetch_add(1, Ordering::Relaxed);
        let part = answers.part_held_by(&peer);
        let under_way = UnderWay { peer, since: Instant::now(), pins_records, part: Arc::clone(&part) };
        answers.lock().insert(id, under_way);
        Some(Sending { answers, id, part, permit, _own: own })
    }

    /// A response, whose memory is held until its client has it. Needs [`keep`]
    /// around the service.
    #[must_use]
    pub fn response<M>(self, peer: Option<&Peer>, message: M) -> Response<M> {
        let mut response = Response::new(message);
        if let Some(peer) = peer {
            let kept = Kept(Arc::new(Mutex::new(Some((self, peer.clone())))));
            response.extensions_mut().insert(kept);
        }
        response
    }
}

impl Sending {
    /// The client has all of it.
    pub fn taken(self) {
        self.part.takes(self.permit.num_permits());
    }
}

fn chop(bytes: Bytes) -> impl Iterator<Item = Bytes> {
    (0..bytes.len()).step_by(PIECE_BYTES).map(move |at| bytes.slice(at..bytes.len().min(at + PIECE_BYTES)))
}

/// Memory of a response, among its extensions until [`keep`] finds it.
#[derive(Clone, Debug)]
struct Kept(Arc<Mutex<Option<(Room, Peer)>>>);

/// The body of a response, whose pieces hold its memory.
struct KeptBody {
    inner: Body,
    room: Option<(Room, Peer)>,
    pieces: VecDeque<Bytes>,
}

/// Has the body of a response of [`Room::response`] hold its memory.
#[must_use]
pub fn keep(mut response: http::Response<Body>) -> http::Response<Body> {
    let kept = response.extensions_mut().remove::<Kept>();
    let room = kept.and_then(|Kept(room)| room.lock().unwrap_or_else(PoisonError::into_inner).take());
    match room {
        Some(room) => {
            response.map(|inner| Body::new(KeptBody { inner, room: Some(room), pieces: VecDeque::new() }))
        }
        None => response,
    }
}

impl http_body::Body for KeptBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
            let data = match frame.map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Ok(Ok(data))) => data,
            };
            // A message comes in one frame.
            self.pieces = match self.room.take() {
                Some((room, peer)) => room.hold([data].into(), peer, false),
                None => [data].into(),
            };
        }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.sending.part.takes(self.bytes.len());
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.answers.waiting().remove(&self.id);
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.answers.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use prost::Message;
    use quire_metadata::topic::TOPIC_NAME_MAX;
    use quire_proto::v1;

    use super::*;
    use crate::service::NAMES_MAX;
    use crate::service::fetch::ASKED_BYTES;
    use crate::service::records::OFFSET_BYTES;

    const LIMIT: usize = 8 << 20;
    const PATIENCE: Duration = Duration::from_secs(30);

    fn peer() -> Peer {
        Peer::new(([127, 0, 0, 1], 1).into())
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_of_an_answer_is_held_by_its_last_piece() {
        let answers = Answers::new(Kind::Records, LIMIT, PATIENCE);
        let room = answers.room(LIMIT, None).await.unwrap();
        assert!(answers.room(SMALL, None).now_or_never().is_none());
        let mut pieces =
            room.hold([Bytes::from(vec![7; 3 << 20]), Bytes::from_static(b"end")].into(), peer(), false);
        assert_eq!(answers.used(), (3 << 20) + 3, "no more than it turned out to be");
        assert_eq!(pieces.iter().map(Bytes::len).max(), Some(PIECE_BYTES));
        let last = pieces.pop_back();
        drop(pieces);
        assert_eq!(answers.used(), (3 << 20) + 3);
        drop(last);
        assert_eq!((answers.used(), answers.lock().len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_memory_is_told_why() {
        let answers = Answers::new(Kind::Records, LIMIT, PATIENCE);
        let _room = answers.room(LIMIT, None).await.unwrap();
        assert_eq!(answers.room(SMALL, None).await.unwrap_err().reason, ErrorReason::Overloaded);
    }

    /// An answer of so many bytes, on its way to this client.
    async fn sent(answers: &Arc<Answers>, bytes: usize, peer: &Peer) -> VecDeque<Bytes> {
        let room = answers.room(bytes, None).await.unwrap();
        room.hold([Bytes::from(vec![7; bytes])].into(), peer.clone(), false)
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_still_is_disconnected_when_others_wait_and_who_is_slow_is_not() {
        let answers = Answers::new(Kind::Records, LIMIT, PATIENCE);
        let watch = tokio::spawn(Arc::clone(&answers).watch(Memory::new(1 << 20)));
        let (slow, creeps, still) = (peer(), peer(), peer());
        let mut slowly = sent(&answers, LIMIT / 2, &slow).await;
        // What a client has many of it cannot take all at once.
        let _behind = sent(&answers, LIMIT / 8, &slow).await;
        let never = sent(&answers, LIMIT / 8, &still).await;
        tokio::time::sleep(10 * PATIENCE).await;
        assert!(!still.is_cut(), "nobody waits");
        let mut taken_little = sent(&answers, LIMIT / 8, &creeps).await;
        let waiting = tokio::spawn({
            let answers = Arc::clone(&answers);
            async move { answers.room(LIMIT, None).await }
        });
        while !slowly.is_empty() {
            slowly.drain(..slowly.len().min(4));
            taken_little.pop_front();
            tokio::time::sleep(PATIENCE / LOOKS * 7 / 10).await;
        }
        assert!(creeps.is_cut(), "a piece now and then is no progress");
        assert!(still.is_cut());
        assert!(!slow.is_cut());
        drop(never);
        watch.abort();
        waiting.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn when_others_have_waited_for_long_who_stands_still_goes_sooner() {
        let answers = Answers::new(Kind::Records, LIMIT, PATIENCE);
        let watch = tokio::spawn(Arc::clone(&answers).watch(Memory::new(1 << 20)));
        let stalls = |peer: Peer| {
            let answers = Arc::clone(&answers);
            tokio::spawn(async move {
                let began = Instant::now();
                let _untaken = sent(&answers, LIMIT, &peer).await;
                while !peer.is_cut() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                began.elapsed()
            })
        };
        let [first, second, third] = [peer(), peer(), peer()].map(stalls);
        tokio::task::yield_now().await;
        assert!(answers.room(LIMIT, Some(&peer())).await.is_ok(), "it outlasts them");
        let look = PATIENCE / LOOKS;
        let lived = [first.await.unwrap(), second.await.unwrap(), third.await.unwrap()];
        let most = [PATIENCE + look, PATIENCE + 3 * look, PATIENCE + 5 * look];
        assert!(
            lived[0] >= PATIENCE && lived.iter().zip(most).all(|(lived, most)| *lived <= most),
            "{lived:?}"
        );
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_again_to_stand_still_goes_sooner_each_time() {
        let answers = Answers::new(Kind::Records, LIMIT, PATIENCE);
        let watch = tokio::spawn(Arc::clone(&answers).watch(Memory::new(1 << 20)));
        let mut waited = Vec::new();
        for _ in 0..4 {
            let still = peer();
            let untaken = sent(&answers, LIMIT, &still).await;
            let asked = Instant::now();
            let answers = Arc::clone(&answers);
            let waiting = tokio::spawn(async move { answers.room(LIMIT, Some(&peer())).await });
            while !still.is_cut() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            drop(untaken);
            assert!(waiting.await.unwrap().is_ok());
            waited.push(asked.elapsed());
        }
        assert!(waited[0] >= PATIENCE, "{waited:?}");
        assert!(waited[1..].iter().all(|waited| *waited <= PATIENCE / LOOKS * 2), "{waited:?}");
        // Who waits for itself only has its time.
        let blocked = peer();
        let part = answers.part();
        let room = answers.room_now(part, Some(&blocked)).unwrap();
        let untaken = room.hold([Bytes::from(vec![7; part])].into(), blocked.clone(), false);
        let waits = answers.room_in_turn(SMALL, Some(&blocked), None);
        assert!(tokio::time::timeout(PATIENCE / 2, waits).await.is_err());
        assert!(!blocked.is_cut());
        drop(untaken);
        // Nobody was disconnected for long: one may be slow again.
        tokio::time::sleep((CALM + 1) * PATIENCE).await;
        let slow = peer();
        let _untaken = sent(&answers, LIMIT, &slow).await;
        let other = peer();
        let waits = answers.room(LIMIT, Some(&other));
        assert!(tokio::time::timeout(PATIENCE / 2, waits).await.is_err());
        assert!(!slow.is_cut());
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn one_connection_holds_its_part() {
        let answers = Answers::new(Kind::Records, LIMIT, PATIENCE);
        let (greedy, other) = (peer(), peer());
        let part = answers.part();
        // An answer that is larger is served, alone.
        let larger = answers.room(2 * part, Some(&greedy)).await.unwrap();
        assert_eq!(answers.used(), 2 * part);
        assert!(answers.room_now(SMALL, Some(&greedy)).is_none());
        let refused = answers.room(SMALL, Some(&greedy)).await.unwrap_err();
        assert_eq!(refused.reason, ErrorReason::Overloaded);
        assert!(refused.message.contains("one connection"), "{}", refused.message);
        assert!(answers.room_now(part, Some(&other)).is_some());
        // It turned out to be small.
        let mut pieces = larger.hold([Bytes::from(vec![7; part / 2])].into(), greedy.clone(), false);
        let half = answers.room_now(part / 2, Some(&greedy)).unwrap();
        let mut waiting = Box::pin(answers.room(part / 4, Some(&greedy)));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(answers.waiting().is_empty(), "it waits for itself only");
        pieces.clear();
        assert!(waiting.now_or_never().is_some_and(|room| room.is_ok()));
        drop(half);
        assert!(answers.room_now(part, Some(&greedy)).is_some());
        assert_eq!(answers.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_of_a_connection_waits_in_turn_for_what_that_holds() {
        let answers = Answers::new(Kind::Replies, LIMIT, PATIENCE);
        let (greedy, other) = (peer(), peer());
        let part = answers.part();
        let all = answers.room_now(part, Some(&greedy)).unwrap();
        let mut first = Box::pin(answers.room_in_turn(SMALL, Some(&greedy), None));
        assert!(first.as_mut().now_or_never().is_none());
        let refused = answers.room_in_turn(SMALL, Some(&greedy), None).now_or_never().unwrap().unwrap_err();
        assert!(refused.message.contains("one connection"), "{}", refused.message);
        assert!(
            answers.room_in_turn(part, Some(&other), None).now_or_never().is_some_and(|room| room.is_ok())
        );
        drop(all);
        let room = first.now_or_never().unwrap().unwrap();
        // The turn is free again.
        let began = Instant::now();
        let deadline = began + Duration::from_secs(1);
        let late = answers.room_in_turn(part, Some(&greedy), Some(deadline)).await.unwrap_err();
        assert_eq!((late.reason, began.elapsed()), (ErrorReason::Overloaded, Duration::from_secs(1)));
        drop(room);
        assert!(
            answers.room_in_turn(part, Some(&greedy), None).now_or_never().is_some_and(|room| room.is_ok())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_itself_with_a_request_and_takes_nothing_is_disconnected() {
        let answers = Answers::new(Kind::Acknowledgements, LIMIT, PATIENCE);
        let watch = tokio::spawn(Arc::clone(&answers).watch(Memory::new(1 << 20)));
        let (blocked, still) = (peer(), peer());
        let part = answers.part();
        let hold = |peer: &Peer| {
            let room = answers.room_now(part, Some(peer)).unwrap();
            room.hold([Bytes::from(vec![7; part])].into(), peer.clone(), false)
        };
        let _untaken = [hold(&blocked), hold(&still)];
        tokio::time::sleep(3 * PATIENCE).await;
        assert!(!blocked.is_cut(), "nobody waits");
        let waits = answers.room_in_turn(SMALL, Some(&blocked), None);
        assert!(tokio::time::timeout(PATIENCE, waits).await.is_err());
        assert!(blocked.is_cut());
        assert!(!still.is_cut(), "nobody waits for what it holds");
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_other_answers_stands_still_with_these() {
        let answers = [Kind::Records, Kind::Replies].map(|kind| Answers::new(kind, LIMIT, PATIENCE));
        let watch = tokio::spawn(Arc::clone(&answers[0]).watch(Memory::new(1 << 20)));
        let (still, waits) = (peer(), peer());
        let _untaken = sent(&answers[0], LIMIT, &still).await;
        let waiting = answers[0].room(SMALL, Some(&waits));
        let taking = async {
            loop {
                drop(sent(&answers[1], PROGRESS, &still).await);
                tokio::time::sleep(PATIENCE / LOOKS).await;
            }
        };
        tokio::select! {
            _ = waiting => {}
            () = taking => {}
        }
        assert!(still.is_cut());
        watch.abort();
    }

    #[test]
    fn one_connection_may_ask_for_the_most_partitions_and_subscribe_to_them_three_times() {
        let all = crate::options::Options::default().answer_bytes;
        let most = NAMES_MAX * (OFFSET_BYTES + TOPIC_NAME_MAX).max(ASKED_BYTES);
        for kind in [Kind::Fetches, Kind::Subscriptions] {
            assert!(Answers::new(kind, all / 8, PATIENCE).part() > most, "{kind}");
        }
        assert!(Answers::new(Kind::Subscriptions, all / 8, PATIENCE).part() > 3 * NAMES_MAX * ASKED_BYTES);
    }

    #[tokio::test]
    async fn a_small_answer_takes_nothing_and_waits_for_nobody() {
        let answers = Answers::new(Kind::Records, LIMIT, PATIENCE);
        let all = answers.room(LIMIT, None).await.unwrap();
        let mut waiting = Box::pin(answers.room(SMALL, None));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(answers.room(SMALL - 1, None).now_or_never().is_some_and(|room| room.is_ok()));
        drop(all);
        assert!(waiting.await.is_ok());
    }

    #[tokio::test]
    async fn a_response_holds_its_memory() {
        let answers = Answers::new(Kind::Records, LIMIT, PATIENCE);
        let topic = v1::TopicMetadata { name: "x".repeat(100_000), ..v1::TopicMetadata::default() };
        let message = v1::MetadataResponse { topics: vec![topic], ..v1::MetadataResponse::default() };
        let bytes = message.encoded_len();
        let made = answers.room(bytes + 1, None).await.unwrap().response(Some(&peer()), message.clone());
        assert_eq!(answers.used(), bytes + 1);
        let encoded = Bytes::from(message.encode_to_vec());
        let body = Body::new(http_body_util::Full::new(encoded.clone()));
        let mut response = http::Response::new(body);
        *response.extensions_mut() = made.into_parts().2;
        let mut response = keep(response);
        let mut received = Vec::new();
        while let Some(frame) = response.body_mut().frame().await {
            assert_eq!(answers.used(), bytes);
            received.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        assert!(received == encoded);
        assert_eq!(answers.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_still_is_disconnected_for_what_it_holds_only() {
        let (answers, records) = (Answers::new(Kind::Records, LIMIT, PATIENCE), Memory::new(LIMIT));
        let watching = tokio::spawn(Arc::clone(&answers).watch(Arc::clone(&records)));
        let (pins, copied, small) = (peer(), peer(), peer());
        let _answers = [(&pins, 100_000, true), (&copied, 100_000, false), (&small, 100, true)].map(
            |(peer, bytes, pins_records)| {
                let room = answers.room(bytes, None).now_or_never().unwrap().unwrap();
                room.hold([Bytes::from(vec![1; bytes])].into(), peer.clone(), pins_records)
            },
        );
        let cut = || [&pins, &copied, &small].map(Peer::is_cut);
        tokio::time::sleep(PATIENCE * 3).await;
        assert_eq!(cut(), [false; 3], "nobody waits");

        let all = records.charge(LIMIT, || false).await;
        let waits = tokio::spawn(async move { records.charge(1, || false).await });
        tokio::time::sleep(PATIENCE).await;
        assert_eq!(cut(), [true, false, false], "memory of records is waited for");
        drop(all);
        drop(waits.await.unwrap());

        assert!(tokio::time::timeout(PATIENCE, answers.room(LIMIT, None)).await.is_err());
        assert_eq!(cut(), [true, true, false], "memory of answers is waited for");
        watching.abort();
    }
}
