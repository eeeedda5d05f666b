//! The Rust client: produce, consume and administer over gRPC.
//!
//! - [`Client`]: the way in: addresses of brokers, what is known of topics.
//! - [`producer`]: [`Producer`] batches records and sends them.
//! - [`consumer`]: [`Consumer`] reads assigned partitions.
//! - [`admin`]: [`Admin`] makes and describes topics, segments and ledgers.
//! - [`error`]: [`Error`], which says whether to try again and what is known.
//!
//! ```no_run
//! use quire_client::{Client, ConsumerOptions, ProducerOptions, Record, Start};
//!
//! # async fn run() -> Result<(), quire_client::Error> {
//! let client = Client::connect(["127.0.0.1:9650"]).await?;
//!
//! let producer = client.producer(ProducerOptions::default())?;
//! let delivery = producer.send(Record::new("events").key(b"k").value(b"hello")).await?;
//! println!("offset {:?}", delivery.await?.offset);
//! producer.close().await;
//!
//! let mut consumer = client.consumer(ConsumerOptions::default())?;
//! consumer.assign([("events", 0, Start::Earliest)]).await?;
//! while let Some(batch) = consumer.next_batch().await? {
//!     for record in batch {
//!         println!("{:?}", record?.value);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub mod admin;
mod backoff;
mod client;
mod connections;
pub mod consumer;
mod directory;
pub mod error;
mod metadata;
pub mod producer;

pub use admin::Admin;
pub use client::{Client, ClientOptions};
pub use consumer::{Consumer, ConsumerOptions, FetchedBatch, Start, Until};
pub use error::Error;
pub use producer::{Acks, Completion, Delivery, Producer, ProducerOptions, Record, RecordMetadata};

pub use quire_proto::codec::Compression;
pub use quire_proto::id::{LedgerId, Offset};
pub use quire_proto::v1::ErrorReason;
