//! Which lines were acknowledged, and where they are.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::ProgressBar;
use quire_client::{Completion, Error, Producer};
use tokio_util::sync::CancellationToken;

use crate::command::connect;
use crate::failure::{Exit, Failure};

/// Takes note of acknowledgements, in a file if one is wanted.
#[derive(Debug)]
pub(super) struct Acked {
    file: Option<(PathBuf, BufWriter<File>)>,
    report: Report,
}

/// What became of the lines.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Acknowledged.
    pub(super) lines: u64,
    /// Of the first line that was not, or of the file.
    pub(super) failure: Option<Failure>,
}

impl Acked {
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let file = match path {
            None => None,
            Some(path) => {
                let file = File::create(path).map_err(|error| cannot_write(path, error))?;
                Some((path.to_owned(), BufWriter::with_capacity(256 << 10, file)))
            }
        };
        Ok(Acked { file, report: Report::default() })
    }

    /// Takes what the producer completes until it is closed; cancels `stop` at
    /// the first line that failed, or could not be written down.
    pub(super) async fn collect(
        mut self,
        producer: Arc<Producer>,
        stop: CancellationToken,
        progress: ProgressBar,
    ) -> Report {
        let mut failed: Option<(u64, Error)> = None;
        let mut unwritten = None;
        while let Some(completion) = producer.completed().await {
            match &completion.outcome {
                Ok(_) => {
                    if let Err(failure) = self.note(&completion) {
                        stop.cancel();
                        self.file = None;
                        unwritten = Some(failure);
                    }
                    progress.set_message(self.report.lines.to_string());
                }
                Err(error) => {
                    stop.cancel();
                    let line = completion.records().map(|(line, _)| line).min().unwrap_or(u64::MAX);
                    if failed.as_ref().is_none_or(|(first, _)| line < *first) {
                        failed = Some((line, error.clone()));
                    }
                }
            }
        }
        self.report.failure = match (failed, unwritten) {
            (None, unwritten) => unwritten,
            (Some((line, error)), None) => Some(not_acknowledged(line, error)),
            (Some((line, error)), Some(_)) => Some(not_acknowledged(line, error).remedy(INCOMPLETE)),
        };
        self.report
    }

    /// A batch's lines are in the file when this returns, for whoever watches it
    /// or outlives this process.
    fn note(&mut self, completion: &Completion) -> Result<(), Failure> {
        self.report.lines += completion.records().len() as u64;
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let partition = completion.partition;
        let written = completion
            .records()
            .try_for_each(|(line, offset)| match offset {
                Some(offset) => writeln!(file, "{line} {partition} {offset}"),
                None => Ok(()),
            })
            .and_then(|()| file.flush());
        written.map_err(|error| cannot_write(path, error))
    }
}

/// Of a line that the producer did not take, or could not deliver.
pub(super) fn not_acknowledged(line: u64, error: Error) -> Failure {
    let text = format!("line {line} was not acknowledged: {error}");
    let failure = connect::failure(error).with_cause(Exit::NotAcknowledged, text);
    failure.then("send again what was not acknowledged: --acked FILE lists what was")
}

const INCOMPLETE: &str = "do not go by the file of --acked: it could not be written to, and lines that it lacks were \
     acknowledged";

fn cannot_write(path: &Path, error: io::Error) -> Failure {
    let context = format!("cannot write {}", path.display());
    Failure::new(Exit::Failure, anyhow::Error::new(error).context(context))
        .remedy("give --acked a file that can be written, on a disk with room for it")
}
