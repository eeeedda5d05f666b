//! A thread reads stdin ahead, so that reading and sending overlap.

use std::io;
use std::sync::mpsc;

use tokio::sync::mpsc as async_mpsc;

use super::lines::{LineError, LineReader};
use crate::failure::{Exit, Failure};

/// Chunks that are read ahead.
const AHEAD: usize = 4;
/// No record of quire's is as long as this.
pub(super) const LONGEST_LINE: usize = 16 << 20;

type Chunk = Vec<u8>;

/// Chunks of whole lines.
#[derive(Debug)]
pub(super) struct Feed {
    chunks: async_mpsc::Receiver<Result<Chunk, LineError>>,
    used: mpsc::SyncSender<Chunk>,
    too_long: bool,
}

impl Feed {
    /// Begins to read stdin. The thread ends with stdin, or with the process.
    pub(super) fn stdin() -> Self {
        let (sender, chunks) = async_mpsc::channel(AHEAD);
        let (used, empty) = mpsc::sync_channel(AHEAD);
        std::thread::spawn(move || {
            let mut reader = LineReader::new(io::stdin().lock(), LONGEST_LINE);
            loop {
                let mut chunk: Chunk = empty.try_recv().unwrap_or_default();
                let item = match reader.next_chunk(&mut chunk) {
                    Ok(true) => Ok(chunk),
                    Ok(false) => break,
                    Err(error) => Err(error),
                };
                let last = item.is_err();
                if sender.blocking_send(item).is_err() || last {
                    break;
                }
            }
        });
        Feed { chunks, used, too_long: false }
    }

    /// `None` at the end, or before a line that is too long.
    ///
    /// # Errors
    /// When stdin cannot be read.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        match self.chunks.recv().await {
            None => Ok(None),
            Some(Ok(chunk)) => Ok(Some(chunk)),
            Some(Err(LineError::Read(error))) => {
                Err(Failure::new(Exit::Failure, anyhow::Error::new(error).context("cannot read stdin"))
                    .remedy("give it a file or a pipe of lines"))
            }
            Some(Err(LineError::TooLong)) => {
                self.too_long = true;
                Ok(None)
            }
        }
    }

    /// Gives a chunk's memory back.
    pub(super) fn recycle(&self, chunk: Chunk) {
        // When there is enough of it, it is let go.
        let _ = self.used.try_send(chunk);
    }

    /// Whether all was read; a line that was too long is counted into `lines`.
    ///
    /// # Errors
    /// When a line was too long.
    pub(super) fn ended(&self, lines: &mut u64) -> Result<(), Failure> {
        if !self.too_long {
            return Ok(());
        }
        *lines += 1;
        let cause = format!("line {lines} has more than {LONGEST_LINE} bytes");
        Err(Failure::message(Exit::NotAcknowledged, cause)
            .remedy("divide it: the lines before it were sent, those after it were not"))
    }
}
