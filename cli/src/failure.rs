//! Why a command did not succeed: the cause, what to do, the exit code.

use std::io::{self, Write as _};
use std::process::ExitCode;

/// The exit codes. They are listed in `docs/cli.md` and never change their
/// meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Success = 0,
    /// Anything that has no code of its own.
    Failure = 1,
    /// The command line, the environment or the configuration file is wrong.
    Usage = 2,
    /// `produce`: not every line was acknowledged.
    NotAcknowledged = 3,
    /// The server refused the request, and would refuse it again.
    Refused = 4,
    /// No server could be reached, or it could not do it now.
    Unavailable = 5,
    /// The server cannot start: an address or the data directory is in use,
    /// the directory belongs to another cluster, or its disk is full or fails.
    CannotStart = 6,
    /// The server, once started, stopped because its disk failed it.
    Storage = 7,
    /// Stopped by SIGINT or SIGTERM before it was done.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// What a command ends with when it does not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Reported as two lines: the cause, and what to do.
    Reported { exit: Exit, cause: anyhow::Error, remedy: Option<String> },
    /// The command line parser has its own way to print: help, version, usage.
    Clap(clap::Error),
    /// The reader of stdout is gone, as in `quire consume … | head`: it has
    /// what it wanted.
    OutputClosed,
}

impl Failure {
    pub(crate) fn new(exit: Exit, cause: impl Into<anyhow::Error>) -> Self {
        Failure::Reported { exit, cause: cause.into(), remedy: None }
    }

    pub(crate) fn message(exit: Exit, cause: impl std::fmt::Display) -> Self {
        Failure::new(exit, anyhow::anyhow!("{cause}"))
    }

    pub(crate) fn usage(cause: impl std::fmt::Display) -> Self {
        Failure::message(Exit::Usage, cause).remedy("correct it: --help describes each option")
    }

    pub(crate) fn interrupted() -> Self {
        Failure::message(Exit::Interrupted, "interrupted")
    }

    /// The same with another code and cause; what to do about it stays.
    pub(crate) fn with_cause(mut self, code: Exit, text: String) -> Self {
        if let Failure::Reported { exit, cause, .. } = &mut self {
            (*exit, *cause) = (code, anyhow::Error::msg(text));
        }
        self
    }

    /// Adds what the user can do about it.
    pub(crate) fn remedy(mut self, text: impl Into<String>) -> Self {
        if let Failure::Reported { remedy, .. } = &mut self {
            *remedy = Some(text.into());
        }
        self
    }

    /// Adds what to do after that.
    pub(crate) fn then(mut self, text: &str) -> Self {
        if let Failure::Reported { remedy, .. } = &mut self {
            *remedy =
                Some(remedy.take().map_or_else(|| text.to_owned(), |first| format!("{first}; then {text}")));
        }
        self
    }

    pub(crate) fn from_clap(error: clap::Error) -> Self {
        Failure::Clap(error)
    }

    /// Of a write to stdout.
    pub(crate) fn from_stdout(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::OutputClosed;
        }
        Failure::new(Exit::Failure, anyhow::Error::new(error).context("cannot write to standard output"))
            .remedy("give it an output that can be written, with room for it")
    }

    /// Prints it to stderr and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Failure::OutputClosed => Exit::Success.into(),
            Failure::Clap(error) => {
                // A closed stderr leaves nobody to tell.
                let _ = error.print();
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage as u8))
            }
            Failure::Reported { exit, cause, remedy } => {
                let mut text = format!("error: {}\n", chain(&cause));
                if let Some(remedy) = remedy {
                    text.push_str("  what to do: ");
                    text.push_str(&remedy);
                    text.push('\n');
                }
                let _ = io::stderr().write_all(text.as_bytes());
                exit.into()
            }
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(cause: anyhow::Error) -> Self {
        Failure::new(Exit::Failure, cause)
    }
}

/// The causes in one line, without those that the one before already quotes.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_listed_once() {
        let inner = io::Error::other("disk on fire");
        let error = anyhow::Error::new(inner).context("cannot read: disk on fire").context("boot failed");
        assert_eq!(chain(&error), "boot failed: cannot read: disk on fire");
    }

    #[test]
    fn a_closed_pipe_is_quiet() {
        let closed = Failure::from_stdout(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(matches!(closed, Failure::OutputClosed));
        let full = Failure::from_stdout(io::Error::from(io::ErrorKind::StorageFull));
        assert!(matches!(full, Failure::Reported { exit: Exit::Failure, .. }));
    }
}
