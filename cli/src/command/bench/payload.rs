//! Values with a given entropy.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// Distinct values kept ready, so that making them costs the measurement
/// nothing.
const DISTINCT: usize = 64;

/// Values to send, made ahead.
#[derive(Debug)]
pub(crate) struct Payloads {
    values: Vec<Vec<u8>>,
}

impl Payloads {
    /// Values of `size` bytes with `entropy` random bits in each byte, 0 to 8.
    pub(crate) fn new(size: usize, entropy: u8) -> Self {
        let mut random = StdRng::seed_from_u64(0x7175_6972_6500);
        let mask = u8::MAX.checked_shr(8 - u32::from(entropy.min(8))).unwrap_or(0);
        let values = (0..DISTINCT)
            .map(|_| {
                let mut value = vec![0; size];
                random.fill_bytes(&mut value);
                for byte in &mut value {
                    *byte &= mask;
                }
                value
            })
            .collect();
        Payloads { values }
    }

    /// The value of the record with this number.
    pub(crate) fn get_mut(&mut self, number: u64) -> &mut [u8] {
        let distinct = self.values.len() as u64;
        let index = usize::try_from(number % distinct).unwrap_or(0);
        &mut self.values[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_bits_a_byte() {
        for (entropy, greatest) in [(0, 0), (1, 1), (4, 15), (8, 255)] {
            let mut payloads = Payloads::new(4096, entropy);
            let value = payloads.get_mut(7);
            assert_eq!(value.len(), 4096);
            assert_eq!(value.iter().max(), Some(&greatest), "{entropy} bits");
        }
    }

    #[test]
    fn neighbours_differ() {
        let mut payloads = Payloads::new(64, 8);
        let first = payloads.get_mut(0).to_vec();
        assert_ne!(payloads.get_mut(1), first);
        assert_eq!(payloads.get_mut(DISTINCT as u64), first);
    }
}
