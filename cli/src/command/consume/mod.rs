//! `quire consume`
//!
//! - [`mod@format`]: kcat's format of a record.
//! - [`json`]: a record as JSON.

mod format;
mod json;

use std::io::{self, Write as _};

use futures_util::FutureExt as _;
use quire_client::{Consumer, ConsumerOptions, Error, FetchedBatch, Start};
use tokio_util::sync::CancellationToken;

use self::format::{Format, RecordView};
use super::connect;
use crate::cli::{self, Common, Consume, OutputFormat};
use crate::failure::Failure;
use crate::value::Position;
use crate::{interrupt, output};

/// Output is written when there is this much of it, or nothing more to read.
const BUFFER: usize = 256 << 10;

/// # Errors
/// When reading or writing fails.
pub(crate) async fn run(arguments: &Consume, common: &Common) -> Result<(), Failure> {
    let format = Format::parse(&arguments.format)
        .map_err(|error| Failure::usage(format_args!("--format: {error}")))?;
    if matches!(arguments.from, Position::Offset(_)) && arguments.partition.is_none() {
        return Err(Failure::usage("an offset is a place in one partition").remedy("add --partition P"));
    }
    let interrupted = interrupt::token()?;
    let until_end = arguments.until == Some(cli::Until::End);
    let until = if until_end { quire_client::Until::End } else { quire_client::Until::Forever };
    let options = ConsumerOptions { until, ..ConsumerOptions::default() };
    let begun = interrupted.run_until_cancelled(begin(arguments, common, options)).await;
    // Following has no other end, so that this is a good one.
    let stopped = || if until_end { Err(Failure::interrupted()) } else { Ok(()) };
    let Some(mut consumer) = begun.transpose()? else { return stopped() };

    let writer = match common.output {
        OutputFormat::Table => Writer::Format(format),
        OutputFormat::Json => Writer::Json,
    };
    let mut output = Output { writer, buffer: Vec::with_capacity(2 * BUFFER), left: arguments.max };
    let ended = output.write_all(&mut consumer, &interrupted).await;
    output.flush()?;
    match ended? {
        End::Interrupted => stopped(),
        End::All => Ok(()),
    }
}

async fn begin(arguments: &Consume, common: &Common, options: ConsumerOptions) -> Result<Consumer, Failure> {
    let mut consumer = connect::client(common).await?.consumer(options).map_err(connect::failure)?;
    assign(&mut consumer, arguments).await.map_err(connect::failure)?;
    Ok(consumer)
}

async fn assign(consumer: &mut Consumer, arguments: &Consume) -> Result<(), Error> {
    let start = match arguments.from {
        Position::Start => Start::Earliest,
        Position::End => Start::Latest,
        Position::Offset(offset) => Start::Offset(offset),
        Position::Time(ms) => Start::Time(ms),
    };
    match arguments.partition {
        Some(partition) => consumer.assign([(arguments.name.as_str(), partition, start)]).await,
        None => consumer.assign_topic(&arguments.name, start).await,
    }
}

/// Why no more is written.
enum End {
    All,
    Interrupted,
}

#[derive(Debug)]
enum Writer {
    Format(Format),
    Json,
}

/// What is written to stdout.
#[derive(Debug)]
struct Output {
    writer: Writer,
    buffer: Vec<u8>,
    /// Records that may still be written.
    left: Option<u64>,
}

impl Output {
    async fn write_all(
        &mut self,
        consumer: &mut Consumer,
        interrupted: &CancellationToken,
    ) -> Result<End, Failure> {
        let progress = output::progress(!io::IsTerminal::is_terminal(&io::stdout()), self.left);
        let reader_gone = output::reader_gone();
        while self.left != Some(0) {
            // Nothing is kept back while there is nothing to read.
            let ready = match consumer.next_batch().now_or_never() {
                Some(ready) => ready,
                None => {
                    self.flush()?;
                    tokio::select! {
                        ready = consumer.next_batch() => ready,
                        () = interrupted.cancelled() => return Ok(End::Interrupted),
                        () = reader_gone.cancelled() => return Err(Failure::OutputClosed),
                    }
                }
            };
            let Some(batch) = ready.map_err(connect::failure)? else { break };
            progress.inc(self.write_batch(batch)?);
            if interrupted.is_cancelled() {
                return Ok(End::Interrupted);
            }
        }
        progress.finish_and_clear();
        Ok(End::All)
    }

    /// How many records it wrote.
    fn write_batch(&mut self, mut batch: FetchedBatch) -> Result<u64, Failure> {
        let topic = std::sync::Arc::clone(batch.topic());
        let partition = FetchedBatch::partition(&batch);
        let mut written = 0;
        while self.left.is_none_or(|left| written < left) {
            let Some(record) = batch.next_view().map_err(connect::failure)? else { break };
            let headers: Vec<_> =
                if self.writer.wants_headers() { record.headers().collect() } else { Vec::new() };
            let view = RecordView {
                topic: &topic,
                partition,
                offset: record.offset.0,
                timestamp_ms: record.timestamp_ms,
                key: record.key,
                value: record.value,
                headers: &headers,
            };
            self.writer.write(&view, &mut self.buffer)?;
            written += 1;
            if self.buffer.len() >= BUFFER {
                self.flush()?;
            }
        }
        self.left = self.left.map(|left| left - written);
        Ok(written)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(&self.buffer).and_then(|()| stdout.flush()).map_err(Failure::from_stdout)?;
        self.buffer.clear();
        Ok(())
    }
}

impl Writer {
    fn wants_headers(&self) -> bool {
        match self {
            Writer::Format(format) => format.wants_headers(),
            Writer::Json => true,
        }
    }

    fn write(&self, record: &RecordView<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        match self {
            Writer::Format(format) => format.write(record, out),
            Writer::Json => json::write(record, out).map_err(anyhow::Error::new)?,
        }
        Ok(())
    }
}
