//! What clients do, step by step, and who assigns partitions to brokers.

use quire_metadata::partition::Partition;
use quire_metadata::typed::Versioned;
use quire_proto::v1::ErrorReason;

use super::client::{Acks, Connection, Flight, Produce, Produced, Producer, ProducerNumber, Reader};
use super::history::PartitionNumber;
use super::inspector::Shown;
use super::plan::Trouble;
use super::reading::{Fetch, Fetched, ReadAnswer};
use super::scheduler::Micros;
use super::violation::Checked;
use super::world::{Happening, World, note};

/// How often partitions without a leader are looked for.
const ASSIGN_EVERY: Micros = 30_000;

/// A broker that does nothing for this long is taken for dead.
const SUSPICION: Micros = 100_000;

impl World {
    /// The producers and readers of the plan.
    pub fn add_clients(&mut self) {
        for number in 0..self.plan.producers {
            let partition = number % self.plan.partitions;
            let acks = match self.random.index(8) {
                0 if number > 0 => Acks::Leader,
                1 if number > 0 => Acks::None,
                _ => Acks::All,
            };
            let id = self.next_producer_id();
            let broker = self.random.index(self.plan.brokers);
            self.producers.push(Producer::new(partition, acks, id, broker));
        }
        for number in 0..self.plan.readers {
            let broker = self.random.index(self.plan.brokers);
            self.readers.push(Reader::new(number % self.plan.partitions, broker));
        }
    }

    fn next_producer_id(&mut self) -> i64 {
        self.producer_ids += 1;
        self.producer_ids
    }

    /// One step: a client does something, or trouble strikes.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn step(&mut self) -> Checked {
        let mut pause = self.random.delay(self.plan.pace_us, self.plan.pace_us * 20);
        if self.healed {
            pause = self.plan.pace_us;
        } else {
            self.operations += 1;
            let trouble = self.choose_trouble();
            if let Some(trouble) = trouble {
                self.scheduler.after(pause, Happening::Step);
                return self.strike(trouble);
            }
        }
        self.scheduler.after(pause, Happening::Step);
        match self.random.index(10) {
            0..6 if !self.healed => {
                let producer = self.random.index(self.producers.len());
                self.make_batch(producer);
            }
            6..9 => {
                let reader = self.random.index(self.readers.len());
                self.ask(reader);
            }
            _ => self.look_after_clients(),
        }
        Ok(())
    }

    fn choose_trouble(&mut self) -> Option<Trouble> {
        let index = self.random.index(1000 + self.plan.weights.len());
        let mut at = u32::try_from(index).unwrap_or(0);
        self.plan.weights.iter().find_map(|(trouble, weight)| {
            // A step is a client's most of the time, whatever is switched on.
            let weight = weight / 4;
            let here = at < weight;
            at = at.saturating_sub(weight);
            here.then_some(*trouble)
        })
    }

    /// A producer makes a batch and sends it.
    pub fn make_batch(&mut self, number: ProducerNumber) {
        let now = self.scheduler.now();
        if !self.producers[number].has_room() || now < self.idle_until {
            return;
        }
        let flight = self.producers[number].make(&mut self.history, now, &mut self.random);
        if !self.producers[number].backing_off {
            self.send_flight(number, &flight);
        }
    }

    fn send_flight(&mut self, number: ProducerNumber, flight: &Flight) {
        let producer = &mut self.producers[number];
        if let Some(own) = producer.flights.iter_mut().find(|own| own.batch == flight.batch) {
            own.sent += 1;
        }
        let broker = &self.brokers[producer.broker];
        let process = broker.number;
        let produce = Produce {
            producer: number,
            connection: producer.connection,
            flight: flight.clone(),
            partition: producer.partition,
            acks: producer.acks,
        };
        let delay = self.network.delay(&mut self.random);
        let producer = &mut self.producers[number];
        producer.last_arrival = producer.last_arrival.max(self.scheduler.now() + delay);
        self.scheduler.at(producer.last_arrival, Happening::Produce(process, produce));
    }

    /// Goes on over a new connection, and sends again what is under way. The
    /// old one may still deliver what it carries.
    fn reconnect(&mut self, number: ProducerNumber, broker: usize) {
        let now = self.scheduler.now();
        let producer = &mut self.producers[number];
        producer.reconnect(broker, now);
        producer.last_arrival = now;
        let flights: Vec<_> = producer.flights.iter().cloned().collect();
        self.hits.hit("a producer sent again");
        for flight in flights {
            self.send_flight(number, &flight);
        }
    }

    /// A producer's pause is over.
    pub fn retry(&mut self, number: ProducerNumber, connection: Connection) {
        if self.producers[number].connection == connection && self.producers[number].backing_off {
            let broker = self.guess(self.producers[number].partition);
            self.reconnect(number, broker);
        }
    }

    /// The broker that a client takes for the leader.
    fn guess(&mut self, partition: PartitionNumber) -> usize {
        match self.led_by(partition) {
            Some(broker) if self.random.chance(800) => broker,
            _ => self.random.index(self.brokers.len()),
        }
    }

    /// An answer reaches its producer.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn produced(&mut self, produced: Produced) -> Checked {
        let Produced { producer: number, connection, batch, result } = produced;
        let now = self.scheduler.now();
        let producer = &mut self.producers[number];
        match result {
            // True whatever connection it comes over.
            Ok(_) => {
                producer.acknowledged(batch, now);
                Ok(())
            }
            Err(_) if producer.connection != connection || producer.backing_off => Ok(()),
            Err(refused) => {
                let Some(flight) = producer.flights.iter().find(|flight| flight.batch == batch) else {
                    return Ok(());
                };
                let first = producer.flights.front().is_some_and(|first| first.batch == batch);
                let gives_up = first
                    && flight.sent == 1
                    && refused.determinate
                    && refused.reason != ErrorReason::OutOfOrderSequence
                    && self.random.chance(150);
                if producer.acks != Acks::All {
                    producer.flights.retain(|flight| flight.batch != batch);
                    return Ok(());
                }
                if gives_up {
                    self.hits.hit("a producer gave a batch up");
                    let id = self.next_producer_id();
                    self.producers[number].begin_anew(id);
                    return self.history.refused(batch);
                }
                producer.backing_off = true;
                let pause = self.random.between(5_000..=60_000);
                self.scheduler.after(pause, Happening::Retry(number, connection));
                Ok(())
            }
        }
    }

    /// A broker answers a producer: at this moment it must be true.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_acknowledged(&mut self, produce: &Produce, base: u64) -> Checked {
        let id = self.partition(produce.partition);
        if self.inspector.is_gone(id) {
            return Ok(());
        }
        if produce.acks == Acks::All {
            self.inspector.shown(id, produce.flight.batch, base, Shown::Producer)?;
        }
        self.history.acknowledged(produce.flight.batch, base)
    }

    /// Producers that wait too long connect anew; readers ask again.
    pub fn look_after_clients(&mut self) {
        let now = self.scheduler.now();
        for number in 0..self.producers.len() {
            if self.producers[number].is_out_of_patience(now) {
                if self.producers[number].acks != Acks::All {
                    self.producers[number].flights.clear();
                    continue;
                }
                let broker = self.guess(self.producers[number].partition);
                self.reconnect(number, broker);
            }
        }
        for number in 0..self.readers.len() {
            let late = self.readers[number].waiting_since.is_some_and(|since| now > since + 300_000);
            if late {
                self.readers[number].waiting_since = None;
                self.readers[number].broker = self.guess(self.readers[number].partition);
            }
        }
    }

    /// A reader asks for more, or for the latest offset.
    pub fn ask(&mut self, number: usize) {
        let now = self.scheduler.now();
        let reader = &mut self.readers[number];
        if reader.waiting_since.is_some() {
            return;
        }
        reader.waiting_since = Some(now);
        reader.question += 1;
        let offset = (!self.random.chance(150)).then_some(reader.offset);
        let fetch = Fetch { reader: number, question: reader.question, partition: reader.partition, offset };
        let process = self.brokers[reader.broker].number;
        let delay = self.network.delay(&mut self.random);
        self.scheduler.after(delay, Happening::Fetch(process, fetch));
    }

    /// An answer reaches its reader.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn fetched(&mut self, fetched: Fetched) -> Checked {
        let Fetched { reader: number, question, answer } = fetched;
        let reader = &mut self.readers[number];
        if reader.question != question {
            return Ok(());
        }
        reader.waiting_since = None;
        match answer {
            ReadAnswer::Batches(bytes) => {
                if let Some((base, records)) = super::batches::open(bytes)? {
                    let next = base + records.len() as u64;
                    reader.offset = reader.offset.max(next);
                }
                // From the start again, now and then: also old segments are read.
                if self.random.chance(30) {
                    self.readers[number].offset = 0;
                }
                Ok(())
            }
            ReadAnswer::End(_) => Ok(()),
            ReadAnswer::Latest(_) => Ok(()),
            ReadAnswer::Failed => {
                let partition = reader.partition;
                self.readers[number].broker = self.guess(partition);
                Ok(())
            }
        }
    }

    /// The broker whose process minted the partition's present epoch, if it
    /// still works on it.
    #[must_use]
    pub fn led_by(&self, number: PartitionNumber) -> Option<usize> {
        let key = self.keys.partition(self.partition(number));
        let found = Versioned::<Partition>::read_option(self.store.state().get(&key)).ok()??;
        let leader = found.value.leader?;
        self.brokers.iter().position(|broker| {
            let slot = broker.slots.get(&number);
            let works = slot.is_some_and(|slot| slot.epoch().is_none_or(|epoch| epoch == found.value.epoch));
            broker.alive && broker.process == leader && works
        })
    }

    /// Looks for partitions that nobody leads, and asks a broker to.
    pub fn assign(&mut self) {
        self.scheduler.after(ASSIGN_EVERY, Happening::Assign);
        let now = self.scheduler.now();
        for number in 0..self.plan.partitions {
            if self.inspector.is_gone(self.partition(number)) {
                continue;
            }
            let works = |at: usize| {
                self.brokers[at].paused_since.is_none_or(|since| now.saturating_sub(since) < SUSPICION)
            };
            let led = self.led_by(number).is_some_and(works);
            let tried = (0..self.brokers.len()).any(|at| {
                let slot = self.brokers[at].slots.get(&number);
                self.brokers[at].alive && works(at) && slot.is_some_and(|slot| slot.epoch().is_none())
            });
            if led || tried {
                continue;
            }
            let able: Vec<_> = (0..self.brokers.len())
                .filter(|at| self.brokers[*at].alive && self.brokers[*at].paused_since.is_none())
                .collect();
            if let Some(&at) = self.random.pick(&able) {
                note!(self, "partition {number} is to be led by broker {at}");
                let process = self.brokers[at].number;
                self.scheduler.after(500, Happening::TakeOver(process, number));
            }
        }
    }
}
