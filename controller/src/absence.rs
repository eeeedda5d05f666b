//! Since when processes are gone, on the observer's own monotonic clock. Time
//! that passed before the observer looked does not count.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use quire_proto::id::Nonce;

/// What is known of one run of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its leased key is there, or it is not known yet which keys are.
    Present,
    /// Its key has been seen missing for this long.
    Gone(Duration),
}

/// Which runs are there, and since when those asked about are not.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    /// `None` before the first listing.
    present: Option<HashSet<Nonce>>,
    gone_since: HashMap<Nonce, Duration>,
}

impl Absence {
    /// These are all runs that are there.
    pub(crate) fn set_present(&mut self, present: HashSet<Nonce>) {
        self.gone_since.retain(|nonce, _| !present.contains(nonce));
        self.present = Some(present);
    }

    /// Asks about a run; from the first time that it is missing its absence
    /// counts.
    pub(crate) fn look(&mut self, nonce: Nonce, now: Duration) -> Presence {
        match &self.present {
            Some(present) if !present.contains(&nonce) => {
                let since = *self.gone_since.entry(nonce).or_insert(now);
                Presence::Gone(now.saturating_sub(since))
            }
            _ => Presence::Present,
        }
    }

    /// Forgets a run that is not asked about any more.
    pub(crate) fn forget(&mut self, nonce: Nonce) {
        self.gone_since.remove(&nonce);
    }
}

#[cfg(test)]
mod tests {
    use quire_proto::id::Nonce;
    use uuid::Uuid;

    use super::*;

    fn nonce(n: u128) -> Nonce {
        Nonce(Uuid::from_u128(n))
    }

    const fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn nobody_is_gone_before_the_first_listing() {
        let mut absence = Absence::default();
        assert_eq!(absence.look(nonce(1), s(100)), Presence::Present);
    }

    #[test]
    fn absence_counts_from_when_it_was_first_seen() {
        let mut absence = Absence::default();
        absence.set_present([nonce(2)].into());
        assert_eq!(absence.look(nonce(1), s(100)), Presence::Gone(s(0)));
        assert_eq!(absence.look(nonce(1), s(130)), Presence::Gone(s(30)));
        assert_eq!(absence.look(nonce(2), s(130)), Presence::Present);
    }

    #[test]
    fn who_comes_back_starts_anew() {
        let mut absence = Absence::default();
        absence.set_present(HashSet::new());
        absence.look(nonce(1), s(0));
        absence.set_present([nonce(1)].into());
        assert_eq!(absence.look(nonce(1), s(50)), Presence::Present);
        absence.set_present(HashSet::new());
        assert_eq!(absence.look(nonce(1), s(60)), Presence::Gone(s(0)));
    }
}
