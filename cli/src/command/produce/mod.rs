//! `quire produce`
//!
//! - [`lines`]: a stream is cut into lines.
//! - [`feed`]: a thread reads stdin ahead.
//! - [`acked`]: which lines were acknowledged, and where they are.

mod acked;
mod feed;
mod lines;

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use quire_client::{Acks, Producer, Record};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use self::acked::Acked;
use self::feed::Feed;
use super::pace::Pace;
use super::{batching, connect};
use crate::cli::{self, Common, Produce};
use crate::failure::{Exit, Failure};
use crate::{interrupt, output};

/// How long lines that are under way are waited for after an interruption.
const PATIENCE: Duration = Duration::from_secs(10);

/// # Errors
/// When not every line was acknowledged.
pub(crate) async fn run(arguments: &Produce, common: &Common) -> Result<(), Failure> {
    let options = batching::options(&arguments.batching)?;
    if arguments.acked.is_some() && options.acks == Acks::None {
        return Err(Failure::usage("--acked needs acknowledgements: --acks none gives none"));
    }
    batching::warn(&options);
    let interrupted = interrupt::token()?;
    let begun = interrupted.run_until_cancelled(begin(arguments, common, options)).await;
    let producer = Arc::new(begun.unwrap_or_else(|| Err(Failure::interrupted()))?);
    let opened = interrupted.run_until_cancelled(Acked::open(arguments.acked.clone())).await;
    let acked = opened.unwrap_or_else(|| Err(Failure::interrupted()))?;

    let start = Instant::now();
    // Cancelled when a line has failed: those after it are not sent any more.
    let stop = CancellationToken::new();
    let progress = output::progress(!std::io::IsTerminal::is_terminal(&std::io::stdin()), None);
    let reports = tokio::spawn(acked.collect(Arc::clone(&producer), stop.clone(), progress.clone()));
    let sender = Sender { producer: &producer, arguments, progress: &progress, lines: 0, bytes: 0 };
    let (lines, bytes, ended) = sender.send_all(&interrupted, &stop).await;
    let settled = async {
        producer.close().await;
        reports.await.map_err(anyhow::Error::new)
    };
    let acked = tokio::select! {
        acked = settled => acked?,
        () = patience(&interrupted) => {
            return Err(Failure::message(Exit::Interrupted, "interrupted while lines were under way")
                .remedy("they may have been written: --acked FILE lists those that were acknowledged"));
        }
    };
    progress.finish_and_clear();

    let summary = Summary::new(lines, acked.lines, bytes, start.elapsed());
    output::note(summary.as_note(arguments.batching.acks));
    output::emit(common.output, &summary, |_| String::new())?;
    if let Some(failure) = acked.failure {
        return Err(failure);
    }
    ended
}

async fn begin(
    arguments: &Produce,
    common: &Common,
    options: quire_client::ProducerOptions,
) -> Result<Producer, Failure> {
    let producer = connect::client(common).await?.producer(options).map_err(connect::failure)?;
    check_target(&producer, arguments).await?;
    Ok(producer)
}

/// Ends when lines that are under way have been waited for long enough after an
/// interruption.
async fn patience(interrupted: &CancellationToken) {
    interrupted.cancelled().await;
    tokio::time::sleep(PATIENCE).await;
}

/// Tells of a topic or partition that is not there before stdin is read.
async fn check_target(producer: &Producer, arguments: &Produce) -> Result<(), Failure> {
    let partitions = producer.partitions(&arguments.name).await.map_err(connect::failure)?;
    match arguments.partition {
        Some(partition) if partition >= partitions => Err(Failure::message(
            Exit::Refused,
            format_args!("topic {} has no partition {partition}: it has {partitions}", arguments.name),
        )
        .remedy(format!("choose a --partition from 0 to {}", partitions.saturating_sub(1)))),
        _ => Ok(()),
    }
}

struct Sender<'a> {
    producer: &'a Producer,
    arguments: &'a Produce,
    progress: &'a ProgressBar,
    /// Read, with the one that was refused.
    lines: u64,
    /// Of those that were taken.
    bytes: u64,
}

impl Sender<'_> {
    /// Number of the lines that were read, bytes of those that were taken, and
    /// why it was not all.
    async fn send_all(
        mut self,
        interrupted: &CancellationToken,
        stop: &CancellationToken,
    ) -> (u64, u64, Result<(), Failure>) {
        let ended = tokio::select! {
            ended = self.send_stdin() => ended,
            // The failed line is reported by whoever cancelled.
            () = stop.cancelled() => Ok(()),
            () = interrupted.cancelled() => Err(Failure::interrupted()),
        };
        (self.lines, self.bytes, ended)
    }

    async fn send_stdin(&mut self) -> Result<(), Failure> {
        let mut feed = Feed::stdin();
        let pace = self.arguments.rate.map(|rate| Pace::new(Instant::now(), rate));
        while let Some(chunk) = feed.next().await? {
            for line in lines::lines(&chunk) {
                if let Some(pace) = &pace {
                    tokio::time::sleep_until(pace.due(self.lines).into()).await;
                }
                self.send(line).await?;
            }
            self.progress.set_position(self.lines);
            feed.recycle(chunk);
        }
        feed.ended(&mut self.lines)
    }

    async fn send(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.lines += 1;
        let number = self.lines;
        let mut record = Record::new(&self.arguments.name).value(line);
        if let Some(field) = self.arguments.key_field {
            let key = lines::field(line, self.arguments.delimiter.0, field);
            record = record.key(key.ok_or_else(|| self.no_key(number, field))?);
        }
        if let Some(partition) = self.arguments.partition {
            record = record.partition(partition);
        }
        self.producer
            .send_with(record, number)
            .await
            .map_err(|error| acked::not_acknowledged(number, error))?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    fn no_key(&self, number: u64, field: u32) -> Failure {
        let delimiter = self.arguments.delimiter;
        let cause =
            format_args!("line {number} has no field {field} by delimiter '{delimiter}' to be its key");
        Failure::message(Exit::NotAcknowledged, cause).remedy(format!(
            "the {} line(s) before it were sent; correct it, or give another --key-field or --delimiter",
            number - 1
        ))
    }
}

/// What was done.
#[derive(Debug, Serialize)]
struct Summary {
    lines: u64,
    acknowledged: u64,
    bytes: u64,
    seconds: f64,
}

impl Summary {
    fn new(lines: u64, acknowledged: u64, bytes: u64, elapsed: Duration) -> Self {
        Summary { lines, acknowledged, bytes, seconds: elapsed.as_secs_f64() }
    }

    fn as_note(&self, acks: cli::Acks) -> String {
        let Summary { lines, acknowledged, bytes, seconds } = self;
        let done = if acks == cli::Acks::None { "sent" } else { "acknowledged" };
        format!("{acknowledged} of {lines} line(s) {done}, {} in {seconds:.3} s", output::human_bytes(*bytes))
    }
}
