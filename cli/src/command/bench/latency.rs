//! `quire bench latency`

use std::time::{Duration, Instant};

use quire_client::{Client, Consumer, ConsumerOptions, Start};

use super::load::{Load, Written};
use super::{CpuMeter, Latencies, Report, ensure_topic, failure};
use crate::cli::BenchLatency;
use crate::failure::{Exit, Failure};

/// Each value begins with the run's number and the time its record was due.
const STAMP: usize = 16;
/// How long the last records may be on their way once all are acknowledged.
const LATEST: Duration = Duration::from_secs(30);

pub(super) async fn run(arguments: &BenchLatency, client: &Client) -> Result<Report, Failure> {
    let topic = &arguments.topic;
    if arguments.load.size.len() < STAMP {
        return Err(Failure::usage(format!(
            "--size: a value holds its time here, and {STAMP} bytes at least"
        )));
    }
    let load = Load::new(&topic.name, topic.records, &arguments.load, Some(arguments.rate))?;
    ensure_topic(&client.admin(), topic).await?;
    let mut consumer = client.consumer(ConsumerOptions::default()).map_err(failure)?;
    consumer.assign_topic(&topic.name, Start::Latest).await.map_err(failure)?;
    let producer = client.producer(load.options.clone()).map_err(failure)?;
    producer.partitions(&topic.name).await.map_err(failure)?;

    let cpu = CpuMeter::start(topic).await?;
    let run: u64 = rand::random();
    let start = Instant::now();
    let reader = Reader { run, start, latencies: Latencies::new()?, seen: 0 };
    let writing = load.write(producer, start, |value, due| stamp(value, run, due));
    let reader = both(writing, reader.read(&mut consumer, topic.records)).await?;
    let elapsed = start.elapsed();
    let bytes = reader.seen * load.size as u64;
    Ok(Report::new(reader.seen, bytes, elapsed, &reader.latencies, cpu.spent().await?))
}

/// Reading ends with writing, or soon after.
async fn both(
    writing: impl Future<Output = Result<Written, Failure>>,
    reading: impl Future<Output = Result<Reader, Failure>>,
) -> Result<Reader, Failure> {
    tokio::pin!(writing, reading);
    tokio::select! {
        reader = &mut reading => {
            writing.await?;
            reader
        }
        written = &mut writing => {
            written?;
            let late = |_| {
                let cause = format_args!("not all acknowledged records arrived within {LATEST:?}");
                Failure::message(Exit::Unavailable, cause)
            };
            tokio::time::timeout(LATEST, reading).await.map_err(late)?
        }
    }
}

fn stamp(value: &mut [u8], run: u64, due: Duration) {
    let nanos = u64::try_from(due.as_nanos()).unwrap_or(u64::MAX);
    value[..8].copy_from_slice(&run.to_le_bytes());
    value[8..STAMP].copy_from_slice(&nanos.to_le_bytes());
}

/// When a record of this run was due; `None` of another's.
fn due(value: &[u8], run: u64) -> Option<Duration> {
    let (found, rest) = value.split_first_chunk()?;
    let (nanos, _) = rest.split_first_chunk()?;
    (u64::from_le_bytes(*found) == run).then(|| Duration::from_nanos(u64::from_le_bytes(*nanos)))
}

struct Reader {
    run: u64,
    start: Instant,
    latencies: Latencies,
    seen: u64,
}

impl Reader {
    async fn read(mut self, consumer: &mut Consumer, records: u64) -> Result<Self, Failure> {
        while self.seen < records {
            let Some(mut batch) = consumer.next_batch().await.map_err(failure)? else { break };
            let arrived = self.start.elapsed();
            while let Some(record) = batch.next_view().map_err(failure)? {
                if let Some(due) = record.value.and_then(|value| due(value, self.run)) {
                    self.latencies.record(arrived.saturating_sub(due));
                    self.seen += 1;
                }
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_when_it_was_due_and_of_which_run_it_is() {
        let mut value = vec![0; 32];
        stamp(&mut value, 7, Duration::from_micros(1500));
        assert_eq!(due(&value, 7), Some(Duration::from_micros(1500)));
        assert_eq!(due(&value, 8), None);
        assert_eq!(due(&value[..STAMP - 1], 7), None);
    }
}
