//! Data on stdout, as tables or JSON; notes and progress on stderr.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use comfy_table::{Table, TableStyle};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::cli::OutputFormat;
use crate::failure::Failure;

/// Writes a result in the form that was asked for.
///
/// # Errors
/// When stdout cannot be written.
pub(crate) fn emit<T: Serialize>(
    format: OutputFormat,
    value: &T,
    as_table: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    let mut text = match format {
        OutputFormat::Table => as_table(value),
        OutputFormat::Json => serde_json::to_string_pretty(value).map_err(anyhow::Error::new)?,
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    write_stdout(text.as_bytes())
}

/// Writes all of it and flushes.
///
/// # Errors
/// When stdout cannot be written; a reader that is gone is
/// [`Failure::OutputClosed`].
pub(crate) fn write_stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::from_stdout)
}

/// A token that is cancelled when the reader of stdout is gone, for a command
/// that may have nothing to write for long. A thread waits for it, until the
/// process ends.
pub(crate) fn reader_gone() -> CancellationToken {
    let token = CancellationToken::new();
    let gone = token.clone();
    std::thread::spawn(move || {
        let stdout = io::stdout();
        // Errors and hang-ups need not be asked for, and a file has neither.
        let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
        while poll(&mut watched, None) == Err(Errno::INTR) {}
        if watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            gone.cancel();
        }
    });
    token
}

/// Columns without lines between them, which `awk` and `cut` read as well.
pub(crate) fn columns<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_header(header);
    table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    for row in rows {
        table.add_row(row);
    }
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 1));
    }
    trim_lines(&table.to_string())
}

/// Names on the left, values on the right.
pub(crate) fn pairs<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

fn trim_lines(text: &str) -> String {
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Something worth knowing that is no data.
pub(crate) fn note(text: impl std::fmt::Display) {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Asks on the terminal; `None` when there is none to ask on.
pub(crate) fn confirm(question: &str) -> Option<bool> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return None;
    }
    let mut stderr = io::stderr().lock();
    write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).ok()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).ok()?;
    Some(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Records so far, on a terminal only; `of` records in all, if that is known.
pub(crate) fn progress(wanted: bool, of: Option<u64>) -> ProgressBar {
    let target = if wanted && io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    };
    let (bar, template) = match of {
        Some(of) => (
            ProgressBar::with_draw_target(Some(of), target),
            "{bar:30} {human_pos} of {human_len} records, {per_sec}, {eta} left",
        ),
        None => (ProgressBar::with_draw_target(None, target), "{spinner} {human_pos} records, {per_sec}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A number of bytes for people.
pub(crate) fn human_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_have_no_trailing_blanks() {
        let text = columns(
            ["NAME", "PARTITIONS"],
            [["a".to_owned(), "1".to_owned()], ["flights".to_owned(), "6".to_owned()]],
        );
        assert_eq!(text, "NAME     PARTITIONS\na        1\nflights  6\n");
    }

    #[test]
    fn pairs_line_up() {
        assert_eq!(pairs([("id", "1".to_owned()), ("state", "open".to_owned())]), "id     1\nstate  open\n");
    }
}
