use std::time::Duration;

use rand::RngExt;

/// How long to wait before trying again: doubling from `first` to `most`, each
/// time by a random part less, so that many clients do not come back at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) most: Duration,
}

impl Backoff {
    /// The wait before try number `attempt`, from 1: between half of the doubled
    /// time and all of it.
    pub(crate) fn wait(self, attempt: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << attempt.saturating_sub(1).min(20)).min(self.most);
        doubled.mul_f64(rand::rng().random_range(0.5..=1.0))
    }
}
