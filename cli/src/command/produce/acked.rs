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
    /// Cancel-safe, also while a named pipe has no reader yet: a thread waits
    /// for it, until the process ends.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) async fn open(path: Option<PathBuf>) -> Result<Self, Failure> {
        let file = match path {
            None => None,
            Some(path) => {
                let made = path.clone();
                let made = tokio::task::spawn_blocking(move || File::create(made)).await;
                let file = made.map_err(anyhow::Error::new)?.map_err(|error| {
                    let exit = if is_full(error.kind()) { Exit::Failure } else { Exit::Usage };
                    cannot_write(exit, &path, error)
                })?;
                Some((path, BufWriter::with_capacity(256 << 10, file)))
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
        self.report.failure = why_not_all(failed, unwritten);
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
        written.map_err(|error| cannot_write(Exit::Failure, path, error))
    }
}

/// Of the first line that failed, and of the file that could not be written.
fn why_not_all(failed: Option<(u64, Error)>, unwritten: Option<Failure>) -> Option<Failure> {
    match (failed, unwritten) {
        (None, unwritten) => unwritten,
        (Some((line, error)), None) => Some(not_acknowledged(line, error)),
        (Some((line, error)), Some(_)) => Some(not_acknowledged(line, error).remedy(INCOMPLETE)),
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

const fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn cannot_write(exit: Exit, path: &Path, error: io::Error) -> Failure {
    let context = format!("cannot write {}", path.display());
    Failure::new(exit, anyhow::Error::new(error).context(context))
        .remedy("give --acked a file that can be written, on a disk with room for it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(failed: Option<u64>, unwritten: bool, expected: Option<(Exit, &str, &str)>) {
        let failed = failed.map(|line| (line, Error::Closed));
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let unwritten = unwritten.then(|| cannot_write(Exit::Failure, Path::new("acked"), full()));
        let found = why_not_all(failed, unwritten).map(|failure| match failure {
            Failure::Reported { exit, cause, remedy } => (exit, cause.to_string(), remedy.unwrap()),
            other => panic!("{other:?}"),
        });
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        if let (Some(found), Some((exit, cause, remedy))) = (found, expected) {
            assert_eq!(found.0, exit);
            assert!(found.1.contains(cause) && found.2.contains(remedy), "{found:?}");
        }
    }

    #[test]
    fn nobody_is_sent_to_a_file_that_lacks_lines() {
        check(None, false, None);
        check(None, true, Some((Exit::Failure, "cannot write acked", "give --acked a file")));
        check(Some(7), false, Some((Exit::NotAcknowledged, "line 7", "--acked FILE lists what was")));
        check(Some(7), true, Some((Exit::NotAcknowledged, "line 7", INCOMPLETE)));
    }
}
