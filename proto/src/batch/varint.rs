//! Kafka's variable-length numbers: zigzag, then seven bits a byte, low ones
//! first.

use bytes::{BufMut, BytesMut};

const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// Bytes that a number takes: 1 to 10.
pub(super) const fn len(number: i64) -> usize {
    let bits = 64 - (zigzag(number) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Writes a number at the end of the buffer.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn put(buffer: &mut BytesMut, number: i64) {
    let mut rest = zigzag(number);
    if rest < 0x80 {
        buffer.put_u8(rest as u8);
        return;
    }
    let mut bytes = [0; 10];
    let mut at = 0;
    while rest >= 0x80 {
        bytes[at] = rest as u8 | 0x80;
        rest >>= 7;
        at += 1;
    }
    bytes[at] = rest as u8;
    buffer.put_slice(&bytes[..=at]);
}

/// Takes a number of up to 64 bits from the front. None when the bytes end
/// before it does or when it has more bits.
pub(super) fn take_long(at: &mut &[u8]) -> Option<i64> {
    let mut number = 0_u64;
    for (place, &byte) in at.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if place == 9 && bits > 1 {
            return None;
        }
        number |= bits << (7 * place);
        if byte & 0x80 == 0 {
            *at = &at[place + 1..];
            return Some((number >> 1).cast_signed() ^ -((number & 1).cast_signed()));
        }
    }
    None
}

/// Takes a number of up to 32 bits from the front.
pub(super) fn take(at: &mut &[u8]) -> Option<i32> {
    if let [byte, rest @ ..] = *at
        && *byte < 0x80
    {
        *at = rest;
        let bits = i32::from(*byte);
        return Some((bits >> 1) ^ -(bits & 1));
    }
    take_long(at).and_then(|number| i32::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_put_is_taken(number: i64, rest: Vec<u8>) {
            let mut buffer = BytesMut::new();
            put(&mut buffer, number);
            prop_assert_eq!(buffer.len(), len(number));
            buffer.put_slice(&rest);
            let mut at = &buffer[..];
            prop_assert_eq!(take_long(&mut at), Some(number));
            prop_assert_eq!(at, &rest[..]);
        }

        #[test]
        fn a_short_number_is_a_long_one(number: i32) {
            let mut buffer = BytesMut::new();
            put(&mut buffer, i64::from(number));
            prop_assert_eq!(take(&mut &buffer[..]), Some(number));
        }

        #[test]
        fn any_bytes_do_no_harm(bytes: Vec<u8>) {
            let mut at = &bytes[..];
            while take_long(&mut at).is_some() {}
            let mut at = &bytes[..];
            while take(&mut at).is_some() {}
        }
    }

    #[test]
    fn a_number_that_is_too_long_is_none() {
        assert_eq!(take(&mut &[0xff, 0xff, 0xff, 0xff, 0x1f][..]), None);
        assert_eq!(take_long(&mut &[0xff; 10][..]), None);
        let mut eleven = [0x80; 11];
        eleven[10] = 0;
        assert_eq!(take_long(&mut &eleven[..]), None);
    }
}
