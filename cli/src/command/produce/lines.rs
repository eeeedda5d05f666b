//! Reads lines from a byte stream: large reads, no allocation a line.

use std::io::{self, Read};

/// Bytes asked for at once.
const READ: usize = 1 << 20;

/// Cuts a stream into chunks of whole lines.
#[derive(Debug)]
pub(crate) struct LineReader<R> {
    source: R,
    /// The beginning of a line whose end has not been read.
    rest: Vec<u8>,
    limit: usize,
    ended: bool,
}

/// Why no further lines can be had.
#[derive(Debug)]
pub(crate) enum LineError {
    Read(io::Error),
    /// A line has more bytes than the limit.
    TooLong,
}

impl<R: Read> LineReader<R> {
    /// No line may have more than `limit` bytes.
    pub(crate) fn new(source: R, limit: usize) -> Self {
        LineReader { source, rest: Vec::new(), limit, ended: false }
    }

    /// The next whole lines, at least one, into `chunk`, which is cleared
    /// first. What was read is handed on at once: a person who types is not
    /// kept waiting for a full buffer. False at the end.
    ///
    /// # Errors
    /// When the source fails, or a line is too long; lines before it have been
    /// returned.
    pub(crate) fn next_chunk(&mut self, chunk: &mut Vec<u8>) -> Result<bool, LineError> {
        chunk.clear();
        chunk.append(&mut self.rest);
        let mut searched = 0;
        while !self.ended {
            self.fill(chunk)?;
            if let Some(end) = memchr::memrchr(b'\n', &chunk[searched..]) {
                let end = searched + end + 1;
                self.rest.extend_from_slice(&chunk[end..]);
                chunk.truncate(end);
                return Ok(true);
            }
            if chunk.len() > self.limit {
                return Err(LineError::TooLong);
            }
            searched = chunk.len();
        }
        Ok(!chunk.is_empty())
    }

    fn fill(&mut self, chunk: &mut Vec<u8>) -> Result<(), LineError> {
        let filled = chunk.len();
        chunk.resize(filled + READ, 0);
        let read = loop {
            match self.source.read(&mut chunk[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        let count = read.map_err(LineError::Read)?;
        chunk.truncate(filled + count);
        self.ended = count == 0;
        Ok(())
    }
}

/// The lines of a chunk, without their newlines.
pub(crate) fn lines(chunk: &[u8]) -> impl Iterator<Item = &[u8]> {
    let chunk = chunk.strip_suffix(b"\n").unwrap_or(chunk);
    let mut start = 0;
    memchr::memchr_iter(b'\n', chunk).chain(std::iter::once(chunk.len())).map(move |end| {
        let line = &chunk[start..end];
        start = end + 1;
        line
    })
}

/// The field of a line, counted from 1; `None` when the line has fewer.
pub(crate) fn field(line: &[u8], delimiter: u8, number: u32) -> Option<&[u8]> {
    let mut start = 0;
    for _ in 1..number {
        start += memchr::memchr(delimiter, &line[start..])? + 1;
    }
    let end = memchr::memchr(delimiter, &line[start..]).map_or(line.len(), |end| start + end);
    Some(&line[start..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives at most `step` bytes a read.
    struct Dribble<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl Read for Dribble<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.step.min(self.bytes.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.bytes[..count]);
            self.bytes = &self.bytes[count..];
            Ok(count)
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        for step in [1, 2, 3, 1000] {
            let mut reader = LineReader::new(Dribble { bytes: text.as_bytes(), step }, 1000);
            let mut chunk = Vec::new();
            let mut found = Vec::new();
            while reader.next_chunk(&mut chunk).unwrap() {
                found.extend(lines(&chunk).map(|line| String::from_utf8(line.to_vec()).unwrap()));
            }
            assert_eq!(found, expected, "{step} bytes a read");
        }
    }

    #[test]
    fn lines_are_the_bytes_between_newlines() {
        check("", &[]);
        check("one", &["one"]);
        check("one\n", &["one"]);
        check("one\ntwo", &["one", "two"]);
        check("one\n\ntwo\n", &["one", "", "two"]);
        check("\n", &[""]);
        check("\n\n", &["", ""]);
        check("windows\r\n", &["windows\r"]);
    }

    #[test]
    fn a_line_beyond_the_limit_is_refused() {
        let text = "x".repeat(10) + "\n";
        let mut reader = LineReader::new(Dribble { bytes: text.as_bytes(), step: 1 }, 5);
        let mut chunk = Vec::new();
        assert!(matches!(reader.next_chunk(&mut chunk), Err(LineError::TooLong)));
    }

    #[test]
    fn fields_are_counted_from_one() {
        let line = b"2013,1,,UA";
        assert_eq!(field(line, b',', 1), Some(&b"2013"[..]));
        assert_eq!(field(line, b',', 2), Some(&b"1"[..]));
        assert_eq!(field(line, b',', 3), Some(&b""[..]));
        assert_eq!(field(line, b',', 4), Some(&b"UA"[..]));
        assert_eq!(field(line, b',', 5), None);
        assert_eq!(field(b"", b',', 1), Some(&b""[..]));
    }
}
