//! `quire bench produce`

use std::time::Instant;

use quire_client::Client;

use super::load::Load;
use super::{CpuMeter, Report, ensure_topic, failure};
use crate::cli::BenchProduce;
use crate::failure::Failure;

pub(super) async fn run(arguments: &BenchProduce, client: &Client) -> Result<Report, Failure> {
    let topic = &arguments.topic;
    let load = Load::new(&topic.name, topic.records, &arguments.load, arguments.rate)?;
    ensure_topic(&client.admin(), topic).await?;
    let producer = client.producer(load.options.clone()).map_err(failure)?;
    // Asks where the partitions are before the clock starts.
    producer.partitions(&topic.name).await.map_err(failure)?;
    let cpu = CpuMeter::start(topic).await?;
    let written = load.write(producer, Instant::now(), |_, _| {}).await?;
    let bytes = topic.records * load.size as u64;
    Ok(Report::new(topic.records, bytes, written.elapsed, &written.latencies, cpu.spent().await?))
}
