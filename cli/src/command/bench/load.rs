//! Writes records and takes the time of each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_client::{Error, Producer, ProducerOptions, Record};
use tokio_util::sync::CancellationToken;

use super::payload::Payloads;
use super::{Latencies, failure};
use crate::cli::BenchLoad;
use crate::command::batching;
use crate::command::pace::Pace;
use crate::failure::{Exit, Failure};
use crate::output;

/// After so many records others get a turn, who may have been interrupted: tiny
/// records can be sent for ever without a wait.
const TURN: u64 = 1_024;

/// What is written, to where and how fast.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) topic: String,
    pub(super) records: u64,
    pub(super) size: usize,
    pub(super) entropy: u8,
    /// Records a second; `None` is as many as the server takes.
    pub(super) rate: Option<u32>,
    pub(super) options: ProducerOptions,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) elapsed: Duration,
    /// From when a record was due to its acknowledgement.
    pub(super) latencies: Latencies,
}

impl Load {
    /// # Errors
    /// When options do not go together.
    pub(super) fn new(
        topic: &str,
        records: u64,
        load: &BenchLoad,
        rate: Option<u32>,
    ) -> Result<Self, Failure> {
        let options = batching::options(&load.batching)?;
        batching::warn(&options);
        let (size, entropy) = (load.size.len(), load.entropy);
        output::note(format_args!(
            "{records} records of {size} bytes with {entropy} random bits a byte, no keys, {}",
            rate.map_or("as fast as the server takes them".to_owned(), |rate| format!("{rate} a second"))
        ));
        Ok(Load { topic: topic.to_owned(), records, size, entropy, rate, options })
    }

    /// Writes all records and waits for their acknowledgements. `stamp` is given
    /// each value and when its record is due, since `start`.
    ///
    /// # Errors
    /// When a record is not acknowledged: there are no figures of a part.
    pub(super) async fn write(
        &self,
        producer: Producer,
        start: Instant,
        mut stamp: impl FnMut(&mut [u8], Duration),
    ) -> Result<Written, Failure> {
        let producer = Arc::new(producer);
        let stop = CancellationToken::new();
        let progress = output::progress(true, Some(self.records));
        let collector = tokio::spawn(collect(Arc::clone(&producer), start, stop.clone(), progress.clone()));
        let mut payloads = Payloads::new(self.size, self.entropy);
        let sending = async {
            let pace = self.rate.map(|rate| Pace::new(start, rate));
            for number in 0..self.records {
                if number % TURN == 0 {
                    tokio::task::yield_now().await;
                }
                let due = match &pace {
                    None => Instant::now(),
                    Some(pace) => {
                        let due = pace.due(number);
                        if due > Instant::now() {
                            tokio::time::sleep_until(due.into()).await;
                        }
                        due
                    }
                };
                let due = due - start;
                let value = payloads.get_mut(number);
                stamp(value, due);
                producer.send_with(Record::new(&self.topic).value(value), tag(due)).await?;
            }
            Ok::<(), Error>(())
        };
        let sent = tokio::select! {
            sent = sending => sent,
            () = stop.cancelled() => Ok(()),
        };
        producer.close().await;
        progress.finish_and_clear();
        let (elapsed, latencies) = collector.await.map_err(anyhow::Error::new)??;
        sent.map_err(failure)?;
        Ok(Written { elapsed, latencies })
    }
}

/// A record's tag is when it was due, so that no table of them is kept.
fn tag(due: Duration) -> u64 {
    u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)
}

async fn collect(
    producer: Arc<Producer>,
    start: Instant,
    stop: CancellationToken,
    progress: indicatif::ProgressBar,
) -> Result<(Duration, Latencies), Failure> {
    let mut latencies = Latencies::new()?;
    let mut elapsed = Duration::ZERO;
    let mut failed = None;
    while let Some(completion) = producer.completed().await {
        elapsed = start.elapsed();
        match &completion.outcome {
            Ok(_) => {
                for (due, _) in completion.records() {
                    latencies.record(elapsed.saturating_sub(Duration::from_nanos(due)));
                }
                progress.inc(completion.records().len() as u64);
            }
            Err(error) => {
                stop.cancel();
                failed.get_or_insert_with(|| error.clone());
            }
        }
    }
    match failed {
        None => Ok((elapsed, latencies)),
        Some(error) => {
            let text = format!("a record was not acknowledged: {error}");
            Err(failure(error).with_cause(Exit::NotAcknowledged, text))
        }
    }
}
