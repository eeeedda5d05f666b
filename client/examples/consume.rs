//! Prints the records of a topic, from the first to where it ends now.
//!
//! ```text
//! cargo run --release -p quire-client --example consume -- numbers
//! ```
//!
//! Brokers are named by `QUIRE_BROKER`, `host:port` separated by commas;
//! 127.0.0.1:9650 without it.

use std::error::Error;
use std::io::{self, Write};

use quire_client::{Client, ConsumerOptions, Start, Until};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let topic = std::env::args().nth(1).ok_or("usage: consume TOPIC")?;
    let brokers = std::env::var("QUIRE_BROKER").unwrap_or_else(|_| "127.0.0.1:9650".to_owned());
    let client = Client::connect(brokers.split(',')).await?;

    let options = ConsumerOptions { until: Until::End, ..ConsumerOptions::default() };
    let mut consumer = client.consumer(options)?;
    consumer.assign_topic(&topic, Start::Earliest).await?;
    let mut out = io::stdout().lock();
    while let Some(mut batch) = consumer.next_batch().await? {
        while let Some(record) = batch.next_view()? {
            out.write_all(record.value.unwrap_or_default())?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}
