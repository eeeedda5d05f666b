//! The format of `--format`: kcat's, compiled once.

use std::fmt;
use std::io::Write as _;

/// What a record is written from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordView<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: u32,
    pub(crate) offset: u64,
    pub(crate) timestamp_ms: i64,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    /// In the record's order.
    pub(crate) headers: &'a [(&'a [u8], Option<&'a [u8]>)],
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(Vec<u8>),
    Topic,
    Partition,
    Offset,
    Timestamp,
    Key,
    KeyLength,
    Value,
    ValueLength,
    /// As a signed 32-bit big-endian number.
    BinaryValueLength,
    Headers,
}

/// A compiled format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Format {
    parts: Vec<Part>,
    headers: bool,
}

/// What is wrong with a format.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FormatError(String);

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for FormatError {}

impl Format {
    /// # Errors
    /// On a letter after `%` or `\` that means nothing.
    pub(crate) fn parse(text: &str) -> Result<Self, FormatError> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            match char {
                '%' => match token(chars.next())? {
                    None => literal.push(b'%'),
                    Some(part) => {
                        flush(&mut parts, &mut literal);
                        parts.push(part);
                    }
                },
                '\\' => literal.push(escape(&mut chars)?),
                char => literal.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        flush(&mut parts, &mut literal);
        let headers = parts.contains(&Part::Headers);
        Ok(Format { parts, headers })
    }

    /// Whether a record's headers are needed.
    pub(crate) fn wants_headers(&self) -> bool {
        self.headers
    }

    /// Appends the record to `out`.
    pub(crate) fn write(&self, record: &RecordView<'_>, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text),
                Part::Topic => out.extend_from_slice(record.topic.as_bytes()),
                Part::Partition => number(out, record.partition),
                Part::Offset => number(out, record.offset),
                Part::Timestamp => number(out, record.timestamp_ms),
                Part::Key => out.extend_from_slice(record.key.unwrap_or_default()),
                Part::Value => out.extend_from_slice(record.value.unwrap_or_default()),
                Part::KeyLength => number(out, length(record.key)),
                Part::ValueLength => number(out, length(record.value)),
                Part::BinaryValueLength => out.extend_from_slice(&binary_length(record.value).to_be_bytes()),
                Part::Headers => headers(out, record.headers),
            }
        }
    }
}

fn flush(parts: &mut Vec<Part>, literal: &mut Vec<u8>) {
    if !literal.is_empty() {
        parts.push(Part::Literal(std::mem::take(literal)));
    }
}

/// `None` is a percent sign.
fn token(letter: Option<char>) -> Result<Option<Part>, FormatError> {
    Ok(Some(match letter {
        Some('%') => return Ok(None),
        Some('t') => Part::Topic,
        Some('p') => Part::Partition,
        Some('o') => Part::Offset,
        Some('T') => Part::Timestamp,
        Some('k') => Part::Key,
        Some('K') => Part::KeyLength,
        Some('v' | 's') => Part::Value,
        Some('V' | 'S') => Part::ValueLength,
        Some('R') => Part::BinaryValueLength,
        Some('h') => Part::Headers,
        Some(letter) => {
            return Err(FormatError(format!(
                "%{letter} means nothing in a format: %t %p %o %T %k %v %h %K %V %s %S %R and %% do"
            )));
        }
        None => return Err(FormatError("a format ends with a lone %; %% is a percent sign".to_owned())),
    }))
}

fn escape(chars: &mut std::str::Chars<'_>) -> Result<u8, FormatError> {
    Ok(match chars.next() {
        Some('n') => b'\n',
        Some('t') => b'\t',
        Some('r') => b'\r',
        Some('0') => 0,
        Some('\\') => b'\\',
        Some('x') => {
            let digits: String = chars.by_ref().take(2).collect();
            match u8::from_str_radix(&digits, 16) {
                Ok(byte) if digits.len() == 2 => byte,
                _ => return Err(FormatError(format!("\\x{digits} is no byte: two hex digits are wanted"))),
            }
        }
        Some(letter) => {
            return Err(FormatError(format!(
                "\\{letter} means nothing in a format: \\n \\t \\r \\0 \\\\ and \\xHH do"
            )));
        }
        None => return Err(FormatError("a format ends with a lone \\; \\\\ is a backslash".to_owned())),
    })
}

fn number(out: &mut Vec<u8>, number: impl fmt::Display) {
    // A write to a vector cannot fail.
    let _ = write!(out, "{number}");
}

/// -1 is null, as kcat has it.
fn length(bytes: Option<&[u8]>) -> i64 {
    bytes.map_or(-1, |bytes| i64::try_from(bytes.len()).unwrap_or(i64::MAX))
}

fn binary_length(bytes: Option<&[u8]>) -> i32 {
    bytes.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap_or(i32::MAX))
}

/// `name=value,name=value`, a null value as `NULL`.
fn headers(out: &mut Vec<u8>, headers: &[(&[u8], Option<&[u8]>)]) {
    for (position, (name, value)) in headers.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        out.extend_from_slice(name);
        out.push(b'=');
        out.extend_from_slice(value.unwrap_or(b"NULL"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: RecordView<'_> = RecordView {
        topic: "flights",
        partition: 3,
        offset: 42,
        timestamp_ms: 1_700_000_000_000,
        key: Some(b"UA"),
        value: Some(b"2013,1,1"),
        headers: &[(b"a", Some(b"1")), (b"b", None)],
    };

    #[track_caller]
    fn check(format: &str, record: &RecordView<'_>, expected: &[u8]) {
        let mut out = Vec::new();
        Format::parse(format).unwrap().write(record, &mut out);
        assert_eq!(out, expected, "{format}: {}", String::from_utf8_lossy(&out));
    }

    #[test]
    fn tokens_are_replaced() {
        check("%v\\n", &RECORD, b"2013,1,1\n");
        check("%t %p %o %T %k %v %h\\n", &RECORD, b"flights 3 42 1700000000000 UA 2013,1,1 a=1,b=NULL\n");
        check("%K:%k %S:%s %V", &RECORD, b"2:UA 8:2013,1,1 8");
        check("%R%s", &RECORD, b"\0\0\0\x082013,1,1");
        check("100%%", &RECORD, b"100%");
        check("", &RECORD, b"");
    }

    #[test]
    fn null_has_no_bytes_and_the_length_minus_one() {
        let tombstone = RecordView { key: None, value: None, headers: &[], ..RECORD };
        check("[%k] [%v] %K %V [%h]", &tombstone, b"[] [] -1 -1 []");
        check("%R", &tombstone, b"\xff\xff\xff\xff");
    }

    #[test]
    fn escapes_are_interpreted() {
        check("\\t\\r\\n\\0\\\\\\x41é", &RECORD, "\t\r\n\0\\Aé".as_bytes());
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for format in ["%q", "%", "\\q", "\\", "\\x4", "\\xzz"] {
            assert!(Format::parse(format).is_err(), "{format}");
        }
    }
}
