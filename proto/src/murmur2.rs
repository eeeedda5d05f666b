//! Which partition a key belongs to: the hash that Kafka's clients use, so that
//! a key lands in the same partition whichever client sends it.

const SEED: u32 = 0x9747_b28c;
const MULTIPLIER: u32 = 0x5bd1_e995;
const SHIFT: u32 = 24;

/// Murmur2, 32 bits, with the seed of Kafka's default partitioner.
#[must_use]
pub fn hash(key: &[u8]) -> u32 {
    let (words, tail) = key.as_chunks::<4>();
    // Kafka's keys are shorter than 2 GiB; of a longer one the low bits count.
    #[allow(clippy::cast_possible_truncation)]
    let mut hash = SEED ^ key.len() as u32;
    for &word in words {
        let mut mixed = u32::from_le_bytes(word).wrapping_mul(MULTIPLIER);
        mixed ^= mixed >> SHIFT;
        hash = hash.wrapping_mul(MULTIPLIER) ^ mixed.wrapping_mul(MULTIPLIER);
    }
    if !tail.is_empty() {
        let last = tail.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        hash = (hash ^ last).wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

/// The partition of a key among `partitions`: the hash without its sign bit,
/// modulo their number. 0 when there are none.
#[must_use]
pub fn partition_for_key(key: &[u8], partitions: u32) -> u32 {
    (hash(key) & 0x7fff_ffff).checked_rem(partitions).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(key: &str, expected: i32) {
        assert_eq!(hash(key.as_bytes()).cast_signed(), expected, "{key:?}");
    }

    /// The values that Kafka's own clients are tested against.
    #[test]
    fn hashes_are_those_of_kafkas_clients() {
        check("21", -973_932_308);
        check("foobar", -790_332_482);
        check("a-little-bit-long-string", -985_981_536);
        check("a-little-bit-longer-string", -1_486_304_829);
        check("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971);
        check("abc", 479_470_107);
    }

    #[test]
    fn a_partition_is_within_their_number() {
        for partitions in 1..40 {
            for key in 0_u32..100 {
                assert!(partition_for_key(&key.to_be_bytes(), partitions) < partitions);
            }
        }
        assert_eq!(partition_for_key(b"abc", 0), 0);
        assert_eq!(partition_for_key(b"abc", 6), 479_470_107 % 6);
    }
}
