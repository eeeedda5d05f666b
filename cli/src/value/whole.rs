//! A whole number in a range.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Parses a number and says, of one that is none or out of range, which there
/// are.
pub(crate) fn whole<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!("a whole number from {} to {} is wanted", range.start(), range.end())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_its_range() {
        let parse = whole(1..=100_u8);
        assert_eq!((parse("1"), parse("100")), (Ok(1), Ok(100)));
        for bad in ["0", "101", "256", "-5", "x", "", "1.5"] {
            assert_eq!(parse(bad), Err("a whole number from 1 to 100 is wanted".to_owned()), "{bad}");
        }
    }
}
