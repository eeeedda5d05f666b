//! A number of bytes, as people write it.

use std::fmt;
use std::str::FromStr;

/// `1048576`, `1024KiB`, `1MiB` or `1MB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(u64);

/// Longest suffix first, so that `KiB` is not read as `B`.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl ByteSize {
    pub(crate) fn bytes(self) -> u64 {
        self.0
    }

    /// As a length in memory; sizes beyond the address space are as good as
    /// the greatest one.
    pub(crate) fn len(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = UNITS
            .iter()
            .find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|number| (number.trim_end(), *unit)))
            .unwrap_or((text, 1));
        let number: u64 = number
            .parse()
            .map_err(|_| "a number of bytes is wanted, such as 65536, 64KiB or 1MiB".to_owned())?;
        number.checked_mul(unit).map(ByteSize).ok_or_else(|| "more bytes than 64 bits can count".to_owned())
    }
}

/// No batch, and so no record, is larger.
const RECORD_MAX: ByteSize = ByteSize(32 << 20);

/// The size of a record's value.
pub(crate) fn record_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    if size.0 > RECORD_MAX.0 { Err(format!("a record has at most {RECORD_MAX}")) } else { Ok(size) }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS[..4].iter().rev().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit));
        match unit {
            Some((suffix, unit)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<u64, ()>) {
        assert_eq!(text.parse::<ByteSize>().map(ByteSize::bytes).map_err(drop), expected, "{text}");
    }

    #[test]
    fn sizes_have_units() {
        check("0", Ok(0));
        check("65536", Ok(65_536));
        check("64KiB", Ok(65_536));
        check("1 MiB", Ok(1 << 20));
        check("2MB", Ok(2_000_000));
        check("10B", Ok(10));
        check("", Err(()));
        check("-1", Err(()));
        check("1.5MiB", Err(()));
        check("99999999TiB", Err(()));
    }

    #[test]
    fn a_record_has_a_limit() {
        assert!(record_size("32MiB").is_ok());
        assert!(record_size("18446744073709551615").is_err());
    }

    #[test]
    fn sizes_are_shown_as_they_can_be_given() {
        for text in ["1000", "64KiB", "1MiB", "3GiB"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
    }
}
