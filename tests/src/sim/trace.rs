//! What happened in a run, line by line.

use std::fmt::Write;

use super::scheduler::Micros;

/// Lines that a failure's report shows.
pub const SHOWN_LINES: usize = 60;

/// The trace of a run. The same seed gives the same bytes.
#[derive(Debug, Default)]
pub struct Trace {
    text: String,
    /// Where the newest lines begin, as many as are shown.
    starts: std::collections::VecDeque<usize>,
    echo: bool,
}

impl Trace {
    /// A trace that also goes to standard error while it is made.
    #[must_use]
    pub fn echoing() -> Self {
        Self { echo: true, ..Self::default() }
    }

    /// Adds a line.
    pub fn line(&mut self, now: Micros, line: &str) {
        let start = self.text.len();
        if self.starts.len() == SHOWN_LINES {
            self.starts.pop_front();
        }
        self.starts.push_back(start);
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:>7}.{:03} {line}", now / 1000, now % 1000);
        if self.echo {
            #[expect(clippy::print_stderr, reason = "asked for by a switch of a test program")]
            {
                eprint!("{}", &self.text[start..]);
            }
        }
    }

    /// All lines.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The newest lines.
    #[must_use]
    pub fn last(&self) -> &str {
        &self.text[self.starts.front().copied().unwrap_or_default()..]
    }
}
