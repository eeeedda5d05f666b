//! Producers and readers of a run: what a client library does, without a
//! network stack.
//!
//! A producer keeps a few batches under way and sends them in order. When an
//! answer is late or bad it makes a new connection, perhaps to another broker,
//! and sends everything that is not acknowledged again, under the same
//! sequences. What it sent over the old connection may still arrive.

use std::collections::VecDeque;

use quire_proto::batch::{Producer as Stamp, UNRESOLVED_MAX};
use quire_proto::v1::ErrorReason;

use super::history::{BatchId, History, PartitionNumber, Sent};
use super::random::Random;
use super::scheduler::Micros;

/// Batches of a producer from the first that is not acknowledged on.
pub const WINDOW: u32 = 16;
const _: () = assert!(WINDOW as usize == UNRESOLVED_MAX);

/// A producer hears nothing for this long: it connects anew.
pub const PATIENCE: Micros = 600_000;

/// What a producer wants of its acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    All,
    Leader,
    None,
}

/// A producer of the run, by number.
pub type ProducerNumber = usize;

/// A connection of a producer: what it sends over one arrives in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection(pub u32);

/// A batch that is not acknowledged.
#[derive(Clone, Debug)]
pub struct Flight {
    pub batch: BatchId,
    pub records: u32,
    pub stamp: Stamp,
    /// How many its producer made before.
    number: u32,
    /// How often it was sent.
    pub sent: u32,
}

/// One producer.
#[derive(Debug)]
pub struct Producer {
    pub partition: PartitionNumber,
    pub acks: Acks,
    /// Unique in the run; another one after giving a batch up.
    id: i64,
    next_sequence: i32,
    made: u32,
    /// Whether a broker acknowledged something under this id. Until then one
    /// batch is under way at a time: a broker takes an id that it does not know
    /// at any sequence.
    is_known: bool,
    pub flights: VecDeque<Flight>,
    pub connection: Connection,
    /// When the last message of the connection arrives.
    pub last_arrival: Micros,
    /// The broker that it believes to lead.
    pub broker: usize,
    /// When it heard something last, or began to wait.
    pub heard: Micros,
    /// It waits before it tries again.
    pub backing_off: bool,
}

impl Producer {
    /// A producer that has sent nothing.
    #[must_use]
    pub fn new(partition: PartitionNumber, acks: Acks, id: i64, broker: usize) -> Self {
        Self {
            partition,
            acks,
            id,
            next_sequence: 0,
            made: 0,
            is_known: false,
            flights: VecDeque::new(),
            connection: Connection::default(),
            last_arrival: 0,
            broker,
            heard: 0,
            backing_off: false,
        }
    }

    /// Whether another batch may be under way.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let window = if self.is_known || self.acks != Acks::All { WINDOW } else { 1 };
        self.flights.front().is_none_or(|first| self.made - first.number < window)
    }

    /// Makes a batch.
    pub fn make(&mut self, history: &mut History, now: Micros, random: &mut Random) -> Flight {
        let records = 1 + u32::try_from(random.index(3)).unwrap_or(0);
        let idempotent = self.acks == Acks::All;
        let stamp = if idempotent {
            Stamp { id: self.id, epoch: 0, base_sequence: self.next_sequence }
        } else {
            Stamp::NONE
        };
        let batch = history.sent(Sent {
            partition: self.partition,
            sequence: idempotent.then_some((self.id.unsigned_abs(), stamp.base_sequence)),
            records,
            acks_all: self.acks == Acks::All,
        });
        self.next_sequence += i32::try_from(records).unwrap_or(0);
        if self.flights.is_empty() {
            self.heard = now;
        }
        let flight = Flight { batch, records, stamp, number: self.made, sent: 0 };
        self.made += 1;
        self.flights.push_back(flight.clone());
        flight
    }

    /// A batch is acknowledged: it is under way no longer.
    pub fn acknowledged(&mut self, batch: BatchId, now: Micros) {
        self.heard = now;
        self.is_known = true;
        self.flights.retain(|flight| flight.batch != batch);
    }

    /// Goes on over a new connection.
    pub fn reconnect(&mut self, broker: usize, now: Micros) {
        self.connection = Connection(self.connection.0 + 1);
        self.broker = broker;
        self.heard = now;
        self.backing_off = false;
    }

    /// Gives everything up that is under way, and begins anew under another id:
    /// what would follow a batch that is given up must not get in.
    pub fn begin_anew(&mut self, id: i64) -> VecDeque<Flight> {
        self.id = id;
        self.next_sequence = 0;
        self.is_known = false;
        std::mem::take(&mut self.flights)
    }

    /// Whether it waited too long.
    #[must_use]
    pub fn is_out_of_patience(&self, now: Micros) -> bool {
        !self.backing_off && !self.flights.is_empty() && now.saturating_sub(self.heard) >= PATIENCE
    }
}

/// A produce request.
#[derive(Clone, Debug)]
pub struct Produce {
    pub producer: ProducerNumber,
    pub connection: Connection,
    pub flight: Flight,
    pub partition: PartitionNumber,
    pub acks: Acks,
}

/// The answer to a produce request.
#[derive(Clone, Debug)]
pub struct Produced {
    pub producer: ProducerNumber,
    pub connection: Connection,
    pub batch: BatchId,
    pub result: Result<u64, Refused>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub reason: ErrorReason,
    /// Whether it is certain that nothing was written.
    pub determinate: bool,
}

/// One reader: it reads a partition from the start, again and again.
#[derive(Debug)]
pub struct Reader {
    pub partition: PartitionNumber,
    pub offset: u64,
    pub broker: usize,
    pub waiting_since: Option<Micros>,
    /// Answers to older questions are not looked at.
    pub question: u32,
}

impl Reader {
    /// A reader at the start.
    #[must_use]
    pub const fn new(partition: PartitionNumber, broker: usize) -> Self {
        Self { partition, offset: 0, broker, waiting_since: None, question: 0 }
    }
}
