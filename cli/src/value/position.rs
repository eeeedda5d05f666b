//! Where to start reading.

use std::str::FromStr;

use jiff::Timestamp;
use quire_proto::id::Offset;

/// `start`, `end`, an offset, or `@` and a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    Start,
    End,
    Offset(Offset),
    /// Milliseconds since the epoch.
    Time(i64),
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "start" => return Ok(Position::Start),
            "end" => return Ok(Position::End),
            _ => {}
        }
        if let Some(time) = text.strip_prefix('@') {
            return time_ms(time).map(Position::Time);
        }
        text.parse().map(|offset| Position::Offset(Offset(offset))).map_err(|_| {
            "start, end, an offset, @MILLISECONDS or @TIME as in @2026-01-31T12:00:00Z is wanted".to_owned()
        })
    }
}

fn time_ms(text: &str) -> Result<i64, String> {
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    text.parse::<Timestamp>().map(Timestamp::as_millisecond).map_err(|_| {
        "a time is RFC 3339 with its zone and a year up to 9999, as in @2026-01-31T12:00:00Z, or \
         milliseconds since 1970 in 64 bits"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<Position>) {
        assert_eq!(text.parse::<Position>().ok(), expected, "{text}");
    }

    #[test]
    fn positions() {
        check("start", Some(Position::Start));
        check("end", Some(Position::End));
        check("17", Some(Position::Offset(Offset(17))));
        check("@1700000000000", Some(Position::Time(1_700_000_000_000)));
        check("@1970-01-01T00:00:01Z", Some(Position::Time(1_000)));
        check("@1970-01-01T02:00:01.5+02:00", Some(Position::Time(1_500)));
        check("@yesterday", None);
        check("@1970-01-01T00:00:01", None);
        check("@10000-01-01T00:00:00Z", None);
        check("@9223372036854775808", None);
        check("-1", None);
        check("beginning", None);
        check("", None);
    }
}
