//! Produce: checks a request's batches, hands them to the shards, and puts the
//! outcomes together.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use quire_ledger::clock::Millis;
use quire_metadata::topic::TOPIC_NAME_MAX;
use quire_proto::batch::{Batch, Builder, Header, Producer, UNRESOLVED_MAX};
use quire_proto::codec::Compression;
use quire_proto::v1::{self, ErrorReason};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::call::{Call, Outcome, Reply};
use crate::clock::wall_ms;
use crate::failure::{self, Failure};
use crate::log::PartitionLog;
use crate::memory::Charge;
use crate::service::budget::Room;
use crate::service::connection::Peer;
use crate::service::{Door, check_count};
use crate::shard::Inbox;
use crate::shard::piece::{Acks, Piece};
use crate::topic::TopicConfig;

/// How much longer than its deadline a request is waited for: the shards answer
/// pieces that they did not append themselves.
const GRACE: Duration = Duration::from_millis(250);

/// What a request takes until it is answered, and each part of it, beside the name
/// of its topic.
const REQUEST_BYTES: usize = 1 << 10;
const RESULT_BYTES: usize = 384;

/// What a plain message takes beside its bytes.
const MESSAGE_BYTES: usize = 64;

/// A request may ask for at most this much time.
const TIMEOUT_MAX: Duration = Duration::from_secs(300);

/// A request that was handed to the shards.
#[derive(Debug)]
pub struct Submitted {
    correlation_id: u64,
    parts: Vec<Part>,
    call: Arc<Call>,
    outcomes: oneshot::Receiver<Vec<Outcome>>,
    began: Instant,
    deadline: Instant,
}

/// What its answer says of a partition's part.
#[derive(Debug)]
struct Part {
    topic: String,
    partition: u32,
    log: Option<Arc<PartitionLog>>,
    log_append_time_ms: Option<i64>,
}

/// A part whose batches are good.
struct Prepared {
    log: Arc<PartitionLog>,
    batches: SmallVec<[Batch; 1]>,
}

impl Door {
    /// Checks a request and hands it to the shards. What is submitted after it
    /// comes after it in each partition.
    ///
    /// # Errors
    /// When the request as a whole is wrong, or there is no memory for it;
    /// failures of partitions are in the outcomes.
    pub async fn submit(
        &self,
        request: v1::ProduceRequest,
        peer: Option<&Peer>,
    ) -> Result<Submitted, Failure> {
        check_count(request.partitions.len())?;
        let began = Instant::now();
        let deadline = began + self.timeout(request.timeout_ms);
        let acks = acks_of(request.acks);
        let bytes = request.encoded_len();
        let v1::ProduceRequest { correlation_id, partitions, .. } = request;
        metrics::counter!("quire_broker_produce_requests_total").increment(1);
        metrics::counter!("quire_broker_produce_bytes_total").increment(bytes as u64);

        let messages: usize = partitions.iter().map(|part| part.messages.len()).sum();
        // A part that fails says so with the name once more.
        let results: usize = partitions.iter().map(|part| RESULT_BYTES + 2 * part.topic.len()).sum();
        // Those before it, which end at their deadlines, free theirs.
        let until = deadline + 2 * GRACE;
        let room = self.acknowledgements.room(REQUEST_BYTES + results, peer, Some(until)).await?;
        let (call, replies, outcomes) = Call::new(partitions.len(), room);
        let parts = partitions.iter().map(Part::of).collect();
        let mut submitted = Submitted { correlation_id, parts, call, outcomes, began, deadline };
        let charge = match self.admit(bytes + messages * MESSAGE_BYTES, deadline).await {
            Ok(charge) => charge,
            Err(failure) => {
                replies.into_iter().for_each(|reply| reply.end(Err(failure.clone())));
                return Ok(submitted);
            }
        };
        let pieces = self.pieces(partitions, replies, acks, &charge, &mut submitted);
        // From here on the batches themselves hold the charge.
        drop(charge);
        self.hand_over(pieces, deadline).await;
        Ok(submitted)
    }

    fn timeout(&self, timeout_ms: u32) -> Duration {
        match timeout_ms {
            0 => self.context.options.produce_timeout,
            ms => Duration::from_millis(u64::from(ms)).min(TIMEOUT_MAX),
        }
    }

    /// Waits for memory for records, at most until the deadline.
    async fn admit(&self, bytes: usize, deadline: Instant) -> Result<Charge, Failure> {
        self.check_open()?;
        let memory = &self.context.memory;
        let charged = memory.charge(bytes, || self.context.tails.evict_oldest());
        tokio::time::timeout_at(deadline, charged).await.map_err(|_elapsed| {
            metrics::counter!("quire_broker_overloaded_total").increment(1);
            Failure::new(
                ErrorReason::Overloaded,
                format!(
                    "the broker's memory for records ({} bytes) is in use: bookies or readers are slower \
                     than producers; try again, or raise memory_bytes",
                    memory.limit()
                ),
            )
        })
    }

    /// The good parts as pieces, by shard. Bad parts end here.
    fn pieces(
        &self,
        partitions: Vec<v1::ProducePartition>,
        replies: Vec<Reply>,
        acks: Result<Acks, Failure>,
        charge: &Charge,
        submitted: &mut Submitted,
    ) -> Vec<(Arc<Inbox>, Vec<Piece>)> {
        let deadline = self.deadline(submitted.deadline);
        let mut by_shard: Vec<(Arc<Inbox>, Vec<Piece>)> = Vec::new();
        for ((partition, reply), part) in partitions.into_iter().zip(replies).zip(&mut submitted.parts) {
            let prepared = acks.clone().and_then(|acks| {
                Ok((acks, self.prepare(partition, acks, charge, &mut part.log_append_time_ms)?))
            });
            let (acks, Prepared { log, batches }) = match prepared {
                Ok(prepared) => prepared,
                Err(failure) => {
                    reply.end(Err(failure));
                    continue;
                }
            };
            part.log = Some(Arc::clone(&log));
            let inbox = self.manager.shard(log.id);
            let piece = Piece { partition: log.id, batches, acks, deadline, reply };
            match by_shard.iter_mut().find(|(other, _)| Arc::ptr_eq(other, inbox)) {
                Some((_, pieces)) => pieces.push(piece),
                None => by_shard.push((Arc::clone(inbox), vec![piece])),
            }
        }
        by_shard
    }

    async fn hand_over(&self, by_shard: Vec<(Arc<Inbox>, Vec<Piece>)>, deadline: Instant) {
        for (inbox, pieces) in by_shard {
            match tokio::time::timeout_at(deadline, inbox.room()).await {
                Ok(room) => inbox.produce(pieces, room),
                Err(_elapsed) => pieces.into_iter().for_each(|piece| {
                    let message = "the queue of the partition's shard is full, try again";
                    piece.reply.end(Err(Failure::new(ErrorReason::Overloaded, message)));
                }),
            }
        }
    }

    fn deadline(&self, deadline: Instant) -> Millis {
        let left = deadline.saturating_duration_since(Instant::now());
        self.context.clock.millis() + u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
    }

    fn prepare(
        &self,
        part: v1::ProducePartition,
        acks: Acks,
        charge: &Charge,
        log_append_time_ms: &mut Option<i64>,
    ) -> Result<Prepared, Failure> {
        let (entry, log) = self.partition(&part.topic, &part.topic_id, part.partition)?;
        log.check_led()?;
        let config = &entry.topic.config;
        let mut batches = match (part.batches.is_empty(), part.messages.is_empty()) {
            (false, true) => checked(charge, part.batches, config)?,
            (true, false) => [sealed(charge, &part.messages, config)?].into_iter().collect(),
            (true, true) => return Err(failure::invalid(format!("{}: there are no records", log.name()))),
            (false, false) => {
                return Err(failure::invalid(format!("{}: give batches or messages, not both", log.name())));
            }
        };
        let records = batches.iter().map(|batch| u64::from(batch.header.record_count)).sum();
        metrics::counter!("quire_broker_produce_records_total").increment(records);
        check_producer(&batches, acks)
            .map_err(|cause| failure::invalid(format!("{}: {cause}", log.name())))?;
        if config.log_append_time {
            let now_ms = wall_ms();
            *log_append_time_ms = Some(now_ms);
            batches = batches.into_iter().map(|batch| restamped(charge, batch, now_ms)).collect();
        }
        Ok(Prepared { log, batches })
    }
}

impl Submitted {
    /// Waits for the outcomes. Parts that are not settled in time are unknown:
    /// they may yet be written. The answer comes with its memory.
    pub async fn finish(self) -> (v1::ProduceResponse, Option<Room>) {
        let Self { correlation_id, parts, call, mut outcomes, began, deadline } = self;
        if parts.is_empty() {
            return (v1::ProduceResponse { correlation_id, results: Vec::new() }, call.take_room());
        }
        let in_time = tokio::time::timeout_at(deadline + GRACE, &mut outcomes).await;
        let settled = match in_time {
            Ok(settled) => settled,
            Err(_elapsed) => {
                call.give_up(|part| parts[part].late());
                outcomes.await
            }
        };
        metrics::histogram!("quire_broker_produce_seconds").record(began.elapsed().as_secs_f64());
        let settled = settled.unwrap_or_default().into_iter().map(Some).chain(std::iter::repeat(None));
        let results = parts.into_iter().zip(settled).map(|(part, outcome)| part.result(outcome)).collect();
        (v1::ProduceResponse { correlation_id, results }, call.take_room())
    }
}

impl Part {
    fn of(partition: &v1::ProducePartition) -> Self {
        // Of one that no topic can have, as much as there is room for.
        let name = &partition.topic[..partition.topic.floor_char_boundary(TOPIC_NAME_MAX)];
        Self { topic: name.to_owned(), partition: partition.partition, log: None, log_append_time_ms: None }
    }

    /// It was handed to its shard, which may yet write it.
    fn late(&self) -> Failure {
        let why = self.log.as_ref().and_then(|log| log.stuck());
        let cause = why.map_or_else(String::new, |why| format!(": {why}"));
        let name = format!("{}/{}", self.topic, self.partition);
        failure::unknown_outcome(&name, &format!("not committed in time{cause}"))
    }

    fn result(self, outcome: Option<Outcome>) -> v1::ProduceResult {
        let Self { topic, partition, log_append_time_ms, .. } = self;
        let outcome = outcome.unwrap_or_else(|| Err(failure::internal("the outcome was lost")));
        match outcome {
            Ok(placed) => v1::ProduceResult {
                topic,
                partition,
                error: None,
                base_offset: placed.base_offset.0,
                last_offset: placed.last_offset.0,
                log_append_time_ms,
            },
            Err(failure) => v1::ProduceResult {
                topic,
                partition,
                error: Some(failure.into()),
                ..v1::ProduceResult::default()
            },
        }
    }
}

fn acks_of(acks: i32) -> Result<Acks, Failure> {
    match v1::Acks::try_from(acks) {
        Ok(v1::Acks::Unspecified | v1::Acks::All) => Ok(Acks::All),
        Ok(v1::Acks::Leader) => Ok(Acks::Leader),
        Ok(v1::Acks::None) => Ok(Acks::None),
        Err(_) => Err(failure::invalid(format!("there is no acks level {acks}"))),
    }
}

fn checked(
    charge: &Charge,
    bytes: bytes::Bytes,
    config: &TopicConfig,
) -> Result<SmallVec<[Batch; 1]>, Failure> {
    let batches = Batch::split(charge.hold(bytes))?;
    for batch in &batches {
        batch.check(config.max_message_bytes as usize)?;
    }
    Ok(batches.into_iter().collect())
}

/// Plain messages as one batch.
fn sealed(charge: &Charge, messages: &[v1::Message], config: &TopicConfig) -> Result<Batch, Failure> {
    let now_ms = wall_ms();
    let limit = config.max_message_bytes as usize;
    let mut builder = Builder::with_capacity(Header::LEN);
    for message in messages {
        let headers = message.headers.iter().map(|header| (header.key.as_bytes(), header.value.as_deref()));
        let timestamp_ms = message.timestamp_ms.unwrap_or(now_ms);
        builder.append(timestamp_ms, message.key.as_deref(), message.value.as_deref(), headers)?;
        if builder.size() > limit {
            return Err(Failure::new(
                ErrorReason::BatchTooLarge,
                format!(
                    "the messages make a batch of more than {limit} bytes (max.message.bytes): send fewer at once"
                ),
            ));
        }
    }
    let batch = builder.seal(Compression::None, Producer::NONE);
    let batch = batch.ok_or_else(|| failure::invalid("there are no records"))?;
    Ok(Batch { bytes: charge.hold(batch.bytes), ..batch })
}

fn restamped(charge: &Charge, batch: Batch, now_ms: i64) -> Batch {
    let batch = batch.with_log_append_time(now_ms);
    Batch { bytes: charge.hold(batch.bytes), ..batch }
}

/// One partition's part is all of one idempotent producer, consecutive and
/// waiting for commit; or of none. So it is written as a whole or not at all.
fn check_producer(batches: &[Batch], acks: Acks) -> Result<(), &'static str> {
    let Some(first) = batches.first() else { return Err("there are no records") };
    if !first.header.is_idempotent() {
        let mixed = batches.iter().any(|batch| batch.header.is_idempotent());
        return if mixed { Err("batches with and without a producer id do not go together") } else { Ok(()) };
    }
    if acks != Acks::All {
        return Err("an idempotent producer needs acks=all");
    }
    let follows = |pair: &[Batch]| {
        let (one, next) = (&pair[0].header, &pair[1].header);
        let expected =
            (i64::from(one.base_sequence) + i64::from(one.record_count)) % (i64::from(i32::MAX) + 1);
        (one.producer_id, one.producer_epoch) == (next.producer_id, next.producer_epoch)
            && expected == i64::from(next.base_sequence)
    };
    if !batches.windows(2).all(follows) {
        return Err("the batches of one producer must continue one another");
    }
    // More could not be told from a gap when they are sent again.
    if batches.len() > UNRESOLVED_MAX {
        return Err("of one producer at most 16 batches can be sent at once");
    }
    Ok(())
}
