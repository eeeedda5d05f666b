//! The byte between the fields of a line.

use std::fmt;
use std::str::FromStr;

/// One ASCII character, or `\t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delimiter(pub(crate) u8);

impl FromStr for Delimiter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.as_bytes() {
            b"\\t" => Ok(Delimiter(b'\t')),
            b"\n" => Err("a line cannot be divided at its own end".to_owned()),
            [byte] if byte.is_ascii() => Ok(Delimiter(*byte)),
            _ => Err("one ASCII character is wanted, or \\t".to_owned()),
        }
    }
}

impl fmt::Display for Delimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b'\t' => f.write_str("\\t"),
            byte => write!(f, "{}", char::from(byte)),
        }
    }
}
