//! How often each fault and each branch of interest occurred.

use std::collections::BTreeMap;
use std::fmt;

/// Counters by name. A run that passes proves nothing about a fault that it
/// never met: tests look here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits(BTreeMap<&'static str, u64>);

impl Hits {
    /// Counts one more.
    pub fn hit(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    /// How often.
    #[must_use]
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Adds another run's counters.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, count)| *self.0.entry(name).or_default() += count);
    }
}

impl fmt::Display for Hits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, count)| writeln!(f, "{count:>10}  {name}"))
    }
}
