//! Produces the lines of its standard input to a topic, which it creates where it
//! is missing, and says where the last one is.
//!
//! ```text
//! seq 1000 | cargo run --release -p quire-client --example produce -- numbers
//! ```
//!
//! Brokers are named by `QUIRE_BROKER`, `host:port` separated by commas;
//! 127.0.0.1:9650 without it.

#![allow(clippy::print_stdout)] // what it is for

use std::error::Error;
use std::io::{self, BufRead};

use quire_client::admin::NewTopic;
use quire_client::{Client, ErrorReason, ProducerOptions, Record};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let topic = std::env::args().nth(1).ok_or("usage: produce TOPIC < lines")?;
    let brokers = std::env::var("QUIRE_BROKER").unwrap_or_else(|_| "127.0.0.1:9650".to_owned());
    let client = Client::connect(brokers.split(',')).await?;

    let created = client
        .admin()
        .create_topic(NewTopic { name: topic.clone(), partitions: 1, ..NewTopic::default() })
        .await;
    match created {
        Err(error) if error.reason() != Some(ErrorReason::TopicAlreadyExists) => return Err(error.into()),
        _ => {}
    }

    let producer = client.producer(ProducerOptions::default())?;
    let mut deliveries = Vec::new();
    for line in io::stdin().lock().lines() {
        deliveries.push(producer.send(Record::new(&topic).value(line?.as_bytes())).await?);
    }
    producer.close().await;
    let (count, mut last) = (deliveries.len(), None);
    for delivery in deliveries {
        last = Some(delivery.await?);
    }
    match last.and_then(|last| last.offset.map(|offset| (last.partition, offset))) {
        Some((partition, offset)) => {
            println!("{count} records; the last one is at offset {offset} of partition {partition}");
        }
        None => println!("no records"),
    }
    Ok(())
}
