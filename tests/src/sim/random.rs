//! The one source of randomness of a run.

use std::ops::RangeInclusive;

use quire_proto::id::Nonce;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use uuid::Uuid;

/// A seeded generator. Everything that is left to chance in a run is drawn
/// from it, in one order, so that a seed names a run.
#[derive(Debug)]
pub struct Random(StdRng);

impl Random {
    /// The generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// True this many times in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.0.random_range(0..1000) < per_mille
    }

    /// A number of the range, both ends included.
    pub fn between(&mut self, range: RangeInclusive<u64>) -> u64 {
        self.0.random_range(range)
    }

    /// An index below `length`, which is not 0.
    pub fn index(&mut self, length: usize) -> usize {
        self.0.random_range(0..length)
    }

    /// One of these, if there is any.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.index(of.len())) }
    }

    /// An index of `weights`, as often as its weight says. The sum is not 0.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut at = self.0.random_range(0..weights.iter().sum::<u32>());
        weights
            .iter()
            .position(|weight| {
                let here = at < *weight;
                at = at.saturating_sub(*weight);
                here
            })
            .unwrap_or_default()
    }

    /// A delay: mostly near the low end, now and then far out, as on a network.
    pub fn delay(&mut self, typical: u64, longest: u64) -> u64 {
        match self.0.random_range(0..100) {
            0..80 => self.between(typical / 2..=typical * 2),
            80..97 => self.between(typical..=(typical * 10).min(longest.max(typical))),
            _ => self.between(typical..=longest.max(typical)),
        }
    }

    /// A nonce that no other draw of this run gives.
    pub fn nonce(&mut self) -> Nonce {
        let bits = (u128::from(self.0.next_u64()) << 64) | u128::from(self.0.next_u64());
        Nonce(Uuid::from_u128(bits))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }
}
