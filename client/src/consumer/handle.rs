use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quire_proto::batch::{Batch, BatchError, Batches};
use quire_proto::error::Failure;
use quire_proto::id::Offset;
use quire_proto::v1::{ErrorReason, FetchResult};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::assigned::{Assigned, Ready};
use super::batch::{Span, damaged};
use super::stream::{Event, News, Plan, Reading, Stream};
use super::{ConsumerOptions, FetchedBatch, Start, Until};
use crate::Error;
use crate::client::Shared;
use crate::metadata::{TopicAnswer, TopicView, recreated};

/// Answers that wait to be looked at; streams wait when there are more. Their
/// bytes are bounded by credit.
const EVENTS_MAX: usize = 64;

/// A stream has at least this much credit, however many there are.
const CREDIT_MIN: u32 = 64 << 10;

/// With nothing to wait for, look again after this long.
const IDLE: Duration = Duration::from_secs(3600);

/// Topics by name, with the id that each had when it was assigned first.
type TopicIds = HashMap<Arc<str>, Bytes>;

/// Reads the partitions that it is assigned.
pub struct Consumer {
    shared: Arc<Shared>,
    options: ConsumerOptions,
    /// Of the topics that were ever assigned.
    topics: TopicIds,
    assigned: Vec<Assigned>,
    streams: HashMap<u64, Stream>,
    ready: VecDeque<Ready>,
    /// Not passing by themselves, and not told yet: at most one a partition.
    failures: VecDeque<Error>,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
    tasks: JoinSet<()>,
    /// The metadata that is being asked for.
    refresh: JoinSet<Result<Vec<TopicAnswer>, Error>>,
    next_number: u64,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("assigned", &self.assigned).finish_non_exhaustive()
    }
}

impl Consumer {
    pub(crate) fn new(shared: Arc<Shared>, options: ConsumerOptions) -> Result<Self, Error> {
        options.check()?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        Ok(Self {
            shared,
            options,
            topics: TopicIds::new(),
            assigned: Vec::new(),
            streams: HashMap::new(),
            ready: VecDeque::new(),
            failures: VecDeque::new(),
            events,
            sender,
            tasks: JoinSet::new(),
            refresh: JoinSet::new(),
            next_number: 0,
        })
    }

    /// Reads these partitions, and no others any more, from where each is to
    /// begin. With [`Until::End`] the ends are looked up now. A topic that is
    /// deleted and created again under the same name is another one: for as long
    /// as the consumer lives, reading it fails with `UnknownTopic`.
    ///
    /// # Errors
    /// `Broker` with `UnknownTopic`, `UnknownPartition` or, with [`Until::End`],
    /// `OffsetOutOfRange` for an offset beyond the end, and those of asking a
    /// broker. What was assigned before stays then.
    ///
    /// Cancel-safe: a call that is dropped has changed nothing.
    pub async fn assign<'a>(
        &mut self,
        partitions: impl IntoIterator<Item = (&'a str, u32, Start)>,
    ) -> Result<(), Error> {
        let partitions: Vec<_> = partitions.into_iter().collect();
        let mut views: HashMap<&str, Arc<TopicView>> = HashMap::new();
        let mut topics = self.topics.clone();
        for &(topic, partition, _) in &partitions {
            let view = match views.get(topic) {
                Some(view) => view,
                // What is known may be old, and the consumer holds to the id.
                None => views.entry(topic).or_insert(self.shared.refresh_topic(topic).await?),
            };
            if *topics.entry(Arc::from(topic)).or_insert_with(|| view.id.clone()) != view.id {
                return Err(recreated(topic));
            }
            if partition >= view.partitions() {
                return Err(unknown_partition(topic, partition, view.partitions()));
            }
        }
        let places = self.locate(&topics, &partitions).await?;
        let generation = self.number();
        let assigned = partitions.iter().zip(places).filter_map(|(&(topic, partition, _), place)| {
            let (name, id) = topics.get_key_value(topic)?;
            let mut assigned = Assigned::new(Arc::clone(name), id.clone(), partition, generation);
            place.apply(&mut assigned);
            Some(assigned)
        });
        self.assigned = assigned.collect();
        self.topics = topics;
        self.forget_streams();
        self.ready.clear();
        self.failures.clear();
        Ok(())
    }

    /// Reads all partitions of a topic, from `start`.
    ///
    /// # Errors
    /// As [`Consumer::assign`].
    pub async fn assign_topic(&mut self, topic: &str, start: Start) -> Result<(), Error> {
        let partitions = self.shared.refresh_topic(topic).await?.partitions();
        self.assign((0..partitions).map(|partition| (topic, partition, start))).await
    }

    /// Goes on in an assigned partition from another place. What was read ahead
    /// of it is dropped. With [`Until::End`] its end is looked up anew.
    ///
    /// # Errors
    /// `Invalid` when the partition is not assigned; else as
    /// [`Consumer::assign`].
    ///
    /// Cancel-safe: a call that is dropped has changed nothing.
    pub async fn seek(&mut self, topic: &str, partition: u32, to: Start) -> Result<(), Error> {
        let Some(at) = self.find(topic, partition) else {
            return Err(Error::Invalid(format!("partition {partition} of {topic:?} is not assigned")));
        };
        let places = self.locate(&self.topics, &[(topic, partition, to)]).await?;
        let generation = self.number();
        let assigned = &mut self.assigned[at];
        places.into_iter().for_each(|place| place.apply(assigned));
        assigned.generation = generation;
        assigned.trouble = None;
        assigned.queued = 0;
        // The stream goes, and with it what it would still bring for this
        // partition; its other partitions go on in another.
        if let Some(stream) = assigned.stream.take() {
            self.drop_stream(stream);
        }
        Ok(())
    }

    /// Offset of the next record that [`Consumer::next_batch`] will return of a
    /// partition, if it is assigned.
    #[must_use]
    pub fn position(&self, topic: &str, partition: u32) -> Option<Offset> {
        self.find(topic, partition).map(|at| self.assigned[at].position)
    }

    /// Where reading of a partition ends, if it is assigned and reading ends.
    #[must_use]
    pub fn end(&self, topic: &str, partition: u32) -> Option<Offset> {
        self.find(topic, partition).and_then(|at| self.assigned[at].end)
    }

    /// The next records of any assigned partition; waits for them. In order for
    /// each partition. None when reading has ended, which it does only with
    /// [`Until::End`].
    ///
    /// # Errors
    /// `Invalid` when nothing is assigned, `Damaged`, `Broker` with a reason that
    /// trying again does not mend (such as `OffsetOutOfRange`), or `Timeout` when
    /// a partition was without a broker that serves it for `stall_timeout`.
    /// Trouble that passes is waited out without an error. After an error the
    /// call may be made again: it goes on where it was.
    ///
    /// Cancel-safe: nothing is lost.
    pub async fn next_batch(&mut self) -> Result<Option<FetchedBatch>, Error> {
        if self.assigned.is_empty() {
            return Err(Error::Invalid("the consumer has no partition assigned".to_owned()));
        }
        loop {
            if let Some(batch) = self.take_ready()? {
                return Ok(Some(batch));
            }
            if let Some(failure) = self.failures.pop_front() {
                return Err(failure);
            }
            if self.assigned.iter().all(Assigned::is_over) {
                self.forget_streams();
                return Ok(None);
            }
            let now = Instant::now();
            self.complain(now)?;
            self.connect(now);
            self.streams.values_mut().for_each(Stream::grant);
            let wake_at = self.wake_at(now);
            tokio::select! {
                event = self.events.recv() => {
                    if let Some(event) = event {
                        self.take_event(event);
                    }
                }
                Some(answer) = self.refresh.join_next() => self.learn(answer.ok()),
                () = sleep_until(wake_at) => {}
            }
        }
    }

    fn find(&self, topic: &str, partition: u32) -> Option<usize> {
        self.assigned.iter().position(|one| *one.topic == *topic && one.partition == partition)
    }

    /// A number that was not used before, for generations and streams.
    const fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    // ------------------------------------------------------------ delivering

    /// The next batch of what is there that has something wanted.
    fn take_ready(&mut self) -> Result<Option<FetchedBatch>, Error> {
        while let Some(ready) = self.ready.front_mut() {
            let at = ready.at;
            let current = self.assigned.get(at).is_some_and(|one| one.generation == ready.generation);
            let next = if current { ready.batches.next() } else { None };
            match next {
                Some(batch) => match self.open(at, batch) {
                    Ok(None) => {}
                    Ok(Some(batch)) => return Ok(Some(batch)),
                    Err((next, error)) => {
                        self.retire(false);
                        self.part(at);
                        let Assigned { topic, partition, position, .. } = &self.assigned[at];
                        return Err(damaged(topic, *partition, *position, next, error));
                    }
                },
                None => self.retire(current),
            }
        }
        Ok(None)
    }

    /// Checks a batch and opens it; None when nothing in it is wanted. An error
    /// comes with the offset after the batch, if that can be told.
    fn open(
        &mut self,
        at: usize,
        batch: Result<Batch, BatchError>,
    ) -> Result<Option<FetchedBatch>, (Option<Offset>, BatchError)> {
        let batch = batch.map_err(|error| (None, error))?;
        let next = batch.header.next_offset();
        let latest = self.ready.front().map_or(Offset(0), |ready| ready.latest);
        let assigned = &mut self.assigned[at];
        if assigned.has_no_use_for(&batch.header) {
            assigned.advance(next);
            return Ok(None);
        }
        batch.verify_crc().map_err(|error| (None, error))?;
        let records = batch.records(self.options.decompressed_max).map_err(|error| (Some(next), error))?;
        let span = Span { from: assigned.position, end: assigned.end, since_ms: assigned.since_ms };
        assigned.advance(next);
        assigned.since_ms.take_if(|since_ms| batch.header.max_timestamp_ms >= *since_ms);
        let (topic, partition) = (Arc::clone(&assigned.topic), assigned.partition);
        Ok(Some(FetchedBatch { topic, partition, latest, next, records, span }))
    }

    /// The first answer is dealt with: its bytes may be sent again.
    fn retire(&mut self, complete: bool) {
        let Some(ready) = self.ready.pop_front() else { return };
        if let Some(stream) = self.streams.get_mut(&ready.stream) {
            stream.consumed(ready.bytes);
        }
        if let Some(assigned) =
            self.assigned.get_mut(ready.at).filter(|one| one.generation == ready.generation)
        {
            assigned.queued = assigned.queued.saturating_sub(1);
            if complete {
                assigned.advance(ready.next);
            }
        }
    }

    /// Takes the partition from its stream, and drops what is queued of it: it
    /// is read again from its position.
    fn part(&mut self, at: usize) {
        let generation = self.number();
        let assigned = &mut self.assigned[at];
        assigned.generation = generation;
        assigned.queued = 0;
        if let Some(stream) = assigned.stream.take() {
            self.drop_stream(stream);
        }
    }

    // ------------------------------------------------------------- listening

    fn take_event(&mut self, event: Event) {
        let now = Instant::now();
        let Some(stream) = self.streams.get_mut(&event.stream) else { return };
        match event.news {
            News::Open => stream.opened(now),
            News::Results(results) => {
                stream.opened(now);
                results.into_iter().for_each(|result| self.take_result(event.stream, result, now));
            }
            News::Broken(error) => {
                debug!(%error, "a stream of records broke");
                for at in 0..self.assigned.len() {
                    if self.assigned[at].stream == Some(event.stream) {
                        self.assigned[at].detour |= matches!(error, Error::Connect { .. });
                        self.fail(at, error.clone(), now);
                    }
                }
                self.streams.remove(&event.stream);
            }
        }
    }

    fn take_result(&mut self, stream: u64, result: FetchResult, now: Instant) {
        let bytes = result.batches.len();
        let found = self.find(&result.topic, result.partition);
        let Some(at) = found.filter(|&at| self.assigned[at].stream == Some(stream)) else {
            if let Some(stream) = self.streams.get_mut(&stream) {
                stream.consumed(bytes);
            }
            return;
        };
        if let Some(error) = result.error {
            self.fail(at, Failure::from(error).into(), now);
            return;
        }
        let assigned = &mut self.assigned[at];
        assigned.trouble = None;
        assigned.queued += 1;
        self.ready.push_back(Ready {
            at,
            generation: assigned.generation,
            stream,
            batches: Batches::new(result.batches),
            bytes,
            latest: Offset(result.latest_offset),
            next: Offset(result.next_offset),
        });
    }

    /// A partition is not served: that passes, or the caller is told.
    fn fail(&mut self, at: usize, error: Error, now: Instant) {
        if !error.is_retryable() {
            self.failures.push_back(error.clone());
        }
        let assigned = &mut self.assigned[at];
        let stream = assigned.stream.and_then(|id| self.streams.get(&id));
        assigned.trouble.take_if(|_| stream.is_some_and(|stream| stream.is_settled(now)));
        assigned.suspect = true;
        assigned.fail(error, self.options.backoff(), now);
    }

    /// Tells when a partition has been without a broker for too long.
    fn complain(&mut self, now: Instant) -> Result<(), Error> {
        let after = self.options.stall_timeout;
        for assigned in &mut self.assigned {
            let served = assigned.stream.and_then(|id| self.streams.get(&id)).is_some_and(Stream::is_open);
            let Some(trouble) = assigned.trouble.as_mut().filter(|_| !served) else { continue };
            if now >= trouble.since + after {
                trouble.since = now;
                let what = format!("reading partition {} of {}", assigned.partition, assigned.topic);
                let last = Some(Box::new(trouble.error.clone()));
                return Err(Error::Timeout { what, after, last, determinate: true });
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------ connecting

    /// Opens streams for partitions that are not read, or asks who leads them.
    fn connect(&mut self, now: Instant) {
        let due = |one: &Assigned| {
            one.is_idle() && one.trouble.as_ref().is_none_or(|trouble| now >= trouble.not_before)
        };
        let mut groups: BTreeMap<(Arc<str>, bool), Vec<usize>> = BTreeMap::new();
        let mut unknown: BTreeSet<String> = BTreeSet::new();
        for (at, one) in self.assigned.iter().enumerate().filter(|(_, one)| due(one)) {
            let view = self.shared.known_topic(&one.topic).filter(|_| !one.suspect);
            match view.as_deref().and_then(|view| view.leader(one.partition)) {
                None => drop(unknown.insert(one.topic.to_string())),
                Some(_) if one.detour => {
                    let address = self.shared.connections.directory.favourite();
                    groups.entry((address, false)).or_default().push(at);
                }
                Some(leader) => groups.entry((Arc::clone(leader), true)).or_default().push(at),
            }
        }
        let parts = u32::try_from(groups.len() + self.streams.len()).unwrap_or(u32::MAX).max(1);
        let credit = (self.options.prefetch_bytes / parts).max(CREDIT_MIN);
        for ((address, direct), members) in groups {
            self.open_stream(address, direct, credit, &members, now);
        }
        if !unknown.is_empty() && self.refresh.is_empty() {
            let shared = Arc::clone(&self.shared);
            let topics = unknown.into_iter().collect();
            self.refresh.spawn(async move { shared.refresh(topics).await });
        }
    }

    fn open_stream(&mut self, address: Arc<str>, direct: bool, credit: u32, members: &[usize], now: Instant) {
        let id = self.number();
        let reading = |&at: &usize| {
            let one = &self.assigned[at];
            Reading {
                topic: Arc::clone(&one.topic),
                topic_id: one.topic_id.clone(),
                partition: one.partition,
                from: one.position,
                end: one.end,
            }
        };
        let plan = Plan { id, address, direct, credit, partitions: members.iter().map(reading).collect() };
        let (connections, sender) = (&self.shared.connections, self.sender.clone());
        let opened = match self.options.until {
            Until::Forever => Stream::subscribe(plan, connections, sender, &mut self.tasks),
            Until::End => Stream::fetch(plan, connections, sender, &mut self.tasks),
        };
        // Tasks that have ended are let go.
        while self.tasks.try_join_next().is_some() {}
        match opened {
            Ok(stream) => {
                self.streams.insert(id, stream);
                members.iter().for_each(|&at| self.assigned[at].stream = Some(id));
            }
            Err(error) => members.iter().for_each(|&at| {
                self.assigned[at].detour = true;
                self.fail(at, error.clone(), now);
            }),
        }
    }

    /// Takes what a broker says of topics.
    fn learn(&mut self, answer: Option<Result<Vec<TopicAnswer>, Error>>) {
        let now = Instant::now();
        let answers = match answer {
            None => return,
            Some(Ok(answers)) => answers,
            Some(Err(error)) => {
                for at in 0..self.assigned.len() {
                    if self.assigned[at].is_idle() && self.assigned[at].suspect {
                        self.fail(at, error.clone(), now);
                    }
                }
                return;
            }
        };
        for (topic, view) in answers {
            for at in 0..self.assigned.len() {
                if *self.assigned[at].topic == *topic && self.assigned[at].is_idle() {
                    self.learn_partition(at, &view, now);
                }
            }
        }
    }

    fn learn_partition(&mut self, at: usize, view: &Result<Arc<TopicView>, Error>, now: Instant) {
        match view {
            Err(error) => self.fail(at, error.clone(), now),
            Ok(view) if view.id != self.assigned[at].topic_id => {
                self.fail(at, recreated(&self.assigned[at].topic), now);
            }
            Ok(view) if view.leader(self.assigned[at].partition).is_none() => {
                let what = format!("no broker leads partition {} yet", self.assigned[at].partition);
                self.fail(at, Failure::new(ErrorReason::NotReady, what).into(), now);
            }
            Ok(_) => self.assigned[at].suspect = false,
        }
    }

    /// Aborts a stream; its partitions are read by another.
    fn drop_stream(&mut self, id: u64) {
        self.streams.remove(&id);
        for one in self.assigned.iter_mut().filter(|one| one.stream == Some(id)) {
            one.stream = None;
        }
    }

    fn forget_streams(&mut self) {
        self.streams.clear();
        self.assigned.iter_mut().for_each(|one| one.stream = None);
    }

    /// When there is something to do though nothing happens.
    fn wake_at(&self, now: Instant) -> Instant {
        let troubles = self.assigned.iter().filter_map(|one| {
            let trouble = one.trouble.as_ref()?;
            let complaint = trouble.since + self.options.stall_timeout;
            let retry = Some(trouble.not_before).filter(|&at| one.is_idle() && at > now);
            Some(retry.map_or(complaint, |retry| retry.min(complaint)))
        });
        troubles.filter(|&at| at > now).min().unwrap_or(now + IDLE)
    }

    // ------------------------------------------------------------- locating

    /// Where reading these begins and, if it does, ends.
    async fn locate(
        &self,
        topics: &TopicIds,
        partitions: &[(&str, u32, Start)],
    ) -> Result<Vec<Place>, Error> {
        let asked = |start: Start| matches!(start, Start::Earliest | Start::Latest | Start::Time(_));
        let starts: Vec<_> = partitions.iter().copied().filter(|&(_, _, start)| asked(start)).collect();
        let mut found = self.list(topics, starts).await?.into_iter();
        let ends_wanted = self.options.until == Until::End;
        let latest_wanted =
            |(_, _, start): &(&str, u32, Start)| ends_wanted || matches!(start, Start::Time(_));
        let ends: Vec<_> = partitions.iter().copied().filter(latest_wanted).collect();
        let mut ends = self
            .list(topics, ends.iter().map(|&(topic, partition, _)| (topic, partition, Start::Latest)))
            .await?
            .into_iter();
        let places = partitions.iter().map(|one| {
            let start = if asked(one.2) { found.next().flatten() } else { None };
            let latest = if latest_wanted(one) { ends.next().flatten() } else { None };
            let since_ms = match one.2 {
                Start::Time(since_ms) if start.is_some() => Some(since_ms),
                _ => None,
            };
            let from = match one.2 {
                Start::Offset(offset) => offset,
                _ => start.or(latest).unwrap_or_default(),
            };
            match latest.filter(|_| ends_wanted) {
                Some(end) if from > end => Err(beyond_end(one.0, one.1, from, end)),
                end => Ok(Place { from, since_ms, end }),
            }
        });
        places.collect()
    }

    async fn list(
        &self,
        topics: &TopicIds,
        asked: impl IntoIterator<Item = (&str, u32, Start)>,
    ) -> Result<Vec<Option<Offset>>, Error> {
        let id = |topic| topics.get(topic).cloned().unwrap_or_default();
        let asked = asked.into_iter().map(|(topic, partition, at)| (topic, id(topic), partition, at));
        let mut asked = asked.peekable();
        if asked.peek().is_none() { Ok(Vec::new()) } else { self.shared.list_offsets(asked).await }
    }
}

/// Where reading a partition begins and ends.
struct Place {
    from: Offset,
    since_ms: Option<i64>,
    end: Option<Offset>,
}

impl Place {
    const fn apply(self, assigned: &mut Assigned) {
        assigned.position = self.from;
        assigned.since_ms = self.since_ms;
        assigned.end = self.end;
    }
}

fn beyond_end(topic: &str, partition: u32, from: Offset, end: Offset) -> Error {
    let message = format!(
        "offset {from} of partition {partition} of topic {topic:?} is out of range: it ends at {end}"
    );
    Failure::new(ErrorReason::OffsetOutOfRange, message).into()
}

fn unknown_partition(topic: &str, partition: u32, count: u32) -> Error {
    let message = format!("topic {topic:?} has no partition {partition}: it has {count}, counted from 0");
    Failure::new(ErrorReason::UnknownPartition, message).into()
}
