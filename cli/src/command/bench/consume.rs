//! `quire bench consume`

use std::time::Instant;

use quire_client::{Client, ConsumerOptions, ProducerOptions, Start};

use super::load::Load;
use super::{CpuMeter, Latencies, Report, ensure_topic, failure, stored_records};
use crate::cli::BenchConsume;
use crate::failure::Failure;
use crate::output;

pub(super) async fn run(arguments: &BenchConsume, client: &Client) -> Result<Report, Failure> {
    let topic = &arguments.topic;
    let partitions = ensure_topic(&client.admin(), topic).await?;
    fill(arguments, client, partitions).await?;

    let cpu = CpuMeter::start(topic).await?;
    let progress = output::progress(true, Some(topic.records));
    let mut latencies = Latencies::new()?;
    let (mut records, mut bytes) = (0, 0);
    let start = Instant::now();
    let mut consumer = client.consumer(ConsumerOptions::default()).map_err(failure)?;
    consumer.assign_topic(&topic.name, Start::Earliest).await.map_err(failure)?;
    while records < topic.records {
        let asked = Instant::now();
        let Some(mut batch) = consumer.next_batch().await.map_err(failure)? else { break };
        latencies.record(asked.elapsed());
        while let Some(record) = batch.next_view().map_err(failure)? {
            records += 1;
            bytes += record.value.map_or(0, |value| value.len() as u64);
        }
        progress.set_position(records);
    }
    let elapsed = start.elapsed();
    progress.finish_and_clear();
    Ok(Report::new(records, bytes, elapsed, &latencies, cpu.spent().await?))
}

/// Writes what the topic lacks, outside the measurement.
async fn fill(arguments: &BenchConsume, client: &Client, partitions: u32) -> Result<(), Failure> {
    let topic = &arguments.topic;
    let stored = stored_records(client, &topic.name, partitions).await?;
    let Some(missing) = topic.records.checked_sub(stored).filter(|&missing| missing > 0) else {
        return Ok(());
    };
    output::note(format_args!("the topic holds {stored} records: writing {missing} more first"));
    let load = Load {
        topic: topic.name.clone(),
        records: missing,
        size: arguments.size.len(),
        entropy: 8,
        rate: None,
        options: ProducerOptions { completions: true, ..ProducerOptions::default() },
    };
    let producer = client.producer(load.options.clone()).map_err(failure)?;
    load.write(producer, Instant::now(), |_, _| {}).await?;
    Ok(())
}
