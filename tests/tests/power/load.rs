//! Clients at work, on a runtime that the power does not touch: producers by
//! the shipped client, single batches without a second try, and topics.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quire_client::admin::NewTopic;
use quire_client::{Client, ClientOptions, Error, ProducerOptions, Record};
use quire_proto::batch::{Builder, NO_HEADERS, Producer};
use quire_proto::codec::Compression;
use quire_proto::error::Failure;
use quire_proto::v1;
use quire_proto::v1::log_service_client::LogServiceClient;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::book::{Book, Fate, Place, Told, Topic, value};
use crate::node::PATIENCE;
use crate::reading::{Reader, channel};

/// Records of one producer that are under way at once.
const UNDER_WAY: usize = 8;

/// Topics that stay.
const KEPT: u32 = 6;

/// The clients.
pub(crate) struct Load {
    runtime: Runtime,
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    book: Mutex<Book>,
    senders: AtomicU32,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Load {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("clients")
            .enable_all()
            .build()
            .unwrap();
        let shared = Shared {
            address,
            book: Mutex::default(),
            senders: AtomicU32::new(0),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        Self { runtime, shared: Arc::new(shared) }
    }

    /// Makes the first topic, on a node that is up, and begins.
    pub(crate) fn begin(&self, random: &mut StdRng) {
        let shared = &self.shared;
        self.runtime.block_on(async {
            let client = shared.client().await;
            shared.create(&client, "first", 3).await;
            assert_eq!(shared.book().told().places().len(), 3);
        });
        let mut seed = || StdRng::seed_from_u64(random.random());
        for _ in 0..2 {
            self.spawn(Arc::clone(shared).produce(seed()));
        }
        self.spawn(Arc::clone(shared).produce_singly(seed()));
        self.spawn(Arc::clone(shared).administer(seed()));
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.shared.tasks.spawn_on(task, self.runtime.handle());
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.shared.book()
    }

    pub(crate) fn told(&self) -> Told {
        self.shared.book().told()
    }

    /// Sends no more and waits for all outcomes.
    pub(crate) fn finish(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.runtime.block_on(async {
            tokio::time::timeout(PATIENCE, self.shared.tasks.wait()).await.expect("the clients end");
        });
    }

    /// Reads everything and compares it with the book.
    pub(crate) fn check(&self) {
        // Told before it is read: what is acknowledged meanwhile is left out.
        let told = self.told();
        self.runtime.block_on(async {
            let mut reader = Reader::new(self.shared.address);
            told.check_topics(&reader.topics().await);
            for place in told.places() {
                let read = reader.read_all(&place).await;
                told.check_partition(&place, &read);
            }
        });
    }

    /// As [`Load::check`], when topics that were made last may be gone: those
    /// that have no records.
    pub(crate) fn check_what_is_left(&self) {
        let told = self.told();
        self.run(async |mut reader| {
            let topics = reader.topics().await;
            for place in told.places() {
                if topics.contains_key(&place.0) {
                    let read = reader.read_all(&place).await;
                    told.check_partition(&place, &read);
                } else {
                    assert!(told.acked(&place).is_empty(), "{place:?} is gone with its records");
                }
            }
        });
    }

    /// Runs this on the clients' runtime.
    pub(crate) fn run<T>(&self, read: impl AsyncFnOnce(Reader) -> T) -> T {
        self.runtime.block_on(async { read(Reader::new(self.shared.address)).await })
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn client(&self) -> Client {
        let options = ClientOptions {
            addresses: vec![self.address.to_string()],
            request_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(5),
            retry_backoff: Duration::from_millis(5),
            retry_backoff_max: Duration::from_millis(50),
            ..ClientOptions::default()
        };
        loop {
            // It is dark now and then.
            if let Ok(client) = Client::with_options(options.clone()).await {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn place(&self, random: &mut StdRng) -> Place {
        let places = self.book().places();
        places.choose(random).unwrap().clone()
    }

    /// One producer after another, some of them dropped with records under way.
    async fn produce(self: Arc<Self>, mut random: StdRng) {
        while !self.stop.is_cancelled() {
            let client = tokio::select! {
                client = self.client() => client,
                () = self.stop.cancelled() => return,
            };
            self.produce_some(&client, &mut random).await;
        }
    }

    async fn produce_some(self: &Arc<Self>, client: &Client, random: &mut StdRng) {
        let options = ProducerOptions {
            linger: Duration::from_millis(1),
            batch_bytes: 16 << 10,
            memory_bytes: 1 << 20,
            delivery_timeout: Duration::from_millis([150, 1_000, 15_000][random.random_range(0..3)]),
            retry_backoff: Duration::from_millis(5),
            retry_backoff_max: Duration::from_millis(50),
            ..ProducerOptions::default()
        };
        let producer = client.producer(options).unwrap();
        let sender = self.senders.fetch_add(1, Ordering::Relaxed);
        let room = Arc::new(Semaphore::new(UNDER_WAY));
        let mut place = self.place(random);
        for number in 0..random.random_range(100..3_000) {
            if random.random_bool(0.05) {
                place = self.place(random);
            }
            let permit = tokio::select! {
                permit = Arc::clone(&room).acquire_owned() => permit.unwrap(),
                () = self.stop.cancelled() => break,
            };
            let padding = if random.random_bool(0.02) { 8_000 } else { random.random_range(0..400) };
            let value = value(sender, number, padding);
            self.book().sent(sender, number, place.clone());
            let record = Record::new(&place.0).partition(place.1).value(value.as_bytes());
            match producer.send(record).await {
                Err(error) => self.settle(sender, number, &Err(error)),
                Ok(delivery) => {
                    let shared = Arc::clone(self);
                    self.tasks.spawn(async move {
                        let outcome = delivery.await.map(|placed| placed.offset.unwrap().0);
                        shared.settle(sender, number, &outcome);
                        drop(permit);
                    });
                }
            }
        }
        if random.random_bool(0.5) || self.stop.is_cancelled() {
            producer.close().await;
        }
    }

    fn settle(&self, sender: u32, number: u64, outcome: &Result<u64, Error>) {
        let fate = match outcome {
            Ok(offset) => Fate::Acked(*offset),
            Err(error) if error.is_determinate() => Fate::Refused,
            Err(_) => Fate::Unknown,
        };
        self.book().settle(sender, number, fate);
    }

    /// Batches of one record, tried once; some of them are to be refused.
    async fn produce_singly(self: Arc<Self>, mut random: StdRng) {
        let mut log = LogServiceClient::new(channel(self.address));
        let sender = self.senders.fetch_add(1, Ordering::Relaxed);
        for number in 0.. {
            if self.stop.is_cancelled() {
                return;
            }
            let place = self.place(&mut random);
            self.book().sent(sender, number, place.clone());
            let request = single(&mut random, &place, &value(sender, number, 50));
            let fate = match log.produce(request).await {
                Ok(response) => match response.into_inner().results.remove(0) {
                    v1::ProduceResult { error: None, base_offset, .. } => Fate::Acked(base_offset),
                    v1::ProduceResult { error: Some(error), .. } => fate(&error),
                },
                Err(status) => match Failure::from_status(&status) {
                    Some(failure) if failure.is_determinate() => Fate::Refused,
                    _ => Fate::Unknown,
                },
            };
            self.book().settle(sender, number, fate);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Makes topics, and deletes some.
    async fn administer(self: Arc<Self>, mut random: StdRng) {
        let client = self.client().await;
        let (mut kept, mut number) = (0, 0);
        while !self.stop.is_cancelled() {
            number += 1;
            if kept < KEPT && random.random_bool(0.3) {
                kept += 1;
                self.create(&client, &format!("kept-{number}"), random.random_range(1..3)).await;
            } else {
                self.create_and_delete(&client, &format!("doomed-{number}")).await;
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(5..60))).await;
        }
    }

    async fn create(&self, client: &Client, name: &str, partitions: u32) {
        self.book().topic(name, partitions, Topic::Asked);
        let topic = NewTopic { name: name.to_owned(), partitions, ..NewTopic::default() };
        let state = match client.admin().create_topic(topic).await {
            Ok(_) => Topic::Exists,
            Err(error) if error.is_determinate() => Topic::Refused,
            Err(_) => Topic::Asked,
        };
        self.book().topic(name, partitions, state);
    }

    async fn create_and_delete(&self, client: &Client, name: &str) {
        self.book().topic(name, 1, Topic::DeletionAsked);
        let topic = NewTopic { name: name.to_owned(), partitions: 1, ..NewTopic::default() };
        if client.admin().create_topic(topic).await.is_err() {
            return;
        }
        let mut log = LogServiceClient::new(channel(self.address));
        let place = (name.to_owned(), 0);
        // Something that a bookie has to delete; whether it is there is all one.
        _ = log.produce(request(&place, &record("doomed", Producer::NONE))).await;
        if client.admin().delete_topic(name).await.is_ok() {
            self.book().topic(name, 1, Topic::Deleted);
        }
    }
}

fn fate(error: &v1::Error) -> Fate {
    let failure = Failure::new(error.reason(), error.message.clone());
    if failure.is_determinate() { Fate::Refused } else { Fate::Unknown }
}

fn record(value: &str, producer: Producer) -> Vec<u8> {
    let mut builder = Builder::with_capacity(1024);
    builder.append(1_000, None, Some(value.as_bytes()), NO_HEADERS).unwrap();
    builder.seal(Compression::None, producer).unwrap().bytes.to_vec()
}

fn request((topic, partition): &Place, batch: &[u8]) -> v1::ProduceRequest {
    let partition = v1::ProducePartition {
        topic: topic.clone(),
        partition: *partition,
        batches: batch.to_vec().into(),
        ..v1::ProducePartition::default()
    };
    v1::ProduceRequest { partitions: vec![partition], ..v1::ProduceRequest::default() }
}

fn single(random: &mut StdRng, place: &Place, value: &str) -> v1::ProduceRequest {
    let none = Producer::NONE;
    let mut batch = match random.random_range(0..10) {
        // A sequence that does not continue another.
        0 => {
            record(value, Producer { id: random.random_range(1 << 40..1 << 41), epoch: 0, base_sequence: 7 })
        }
        _ => record(value, none),
    };
    if random.random_bool(0.1) {
        // A bit that the CRC covers.
        *batch.last_mut().unwrap() ^= 1;
    }
    request(place, &batch)
}
