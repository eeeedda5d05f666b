//! The replicas of a ledger and the arithmetic of its quorums.
//!
//! Everything is computed from the ledger's own number of replicas n and its
//! ack quorum A, never from the target that the topic asks for.

use quire_proto::id::{BookieId, EntryId};
use smallvec::SmallVec;

use crate::fault::{self, Fault};

/// A ledger has at most this many replicas.
pub const REPLICAS_MAX: usize = 16;

/// The replicas of one ledger, the same for its whole life, and how many of
/// them make an entry committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    replicas: SmallVec<[BookieId; 4]>,
    ack_quorum: usize,
}

/// Why bookies and an ack quorum are no ensemble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnsembleError {
    /// The ack quorum is 0 or above the number of replicas.
    #[error("an ack quorum of {ack_quorum} cannot be met by {replicas} replicas")]
    AckQuorum {
        /// The ack quorum that was asked for.
        ack_quorum: usize,
        /// The number of replicas.
        replicas: usize,
    },
    /// A bookie is named twice.
    #[error("bookie {0} is named twice")]
    Twice(BookieId),
    /// More than [`REPLICAS_MAX`].
    #[error("{0} replicas are more than the {REPLICAS_MAX} that a ledger may have")]
    TooMany(usize),
}

impl Ensemble {
    /// An ensemble of distinct bookies with 1 ≤ A ≤ n.
    ///
    /// # Errors
    /// When it would be none.
    pub fn new(replicas: &[BookieId], ack_quorum: usize) -> Result<Self, EnsembleError> {
        if replicas.len() > REPLICAS_MAX {
            return Err(EnsembleError::TooMany(replicas.len()));
        }
        if ack_quorum == 0 || ack_quorum > replicas.len() {
            return Err(EnsembleError::AckQuorum { ack_quorum, replicas: replicas.len() });
        }
        for (place, bookie) in replicas.iter().enumerate() {
            if replicas[..place].contains(bookie) {
                return Err(EnsembleError::Twice(*bookie));
            }
        }
        Ok(Self { replicas: SmallVec::from_slice(replicas), ack_quorum })
    }

    /// The bookies, in the order they were given.
    #[must_use]
    pub fn replicas(&self) -> &[BookieId] {
        &self.replicas
    }

    /// A: an entry is committed when this many replicas have it durably (W1).
    #[must_use]
    pub const fn ack_quorum(&self) -> usize {
        self.ack_quorum
    }

    /// n − A + 1: the fewest replicas that share one with every ack quorum.
    /// When so many are fenced no lower epoch can commit anything, and one of
    /// them has every committed entry (T3).
    #[must_use]
    pub fn fence_quorum(&self) -> usize {
        let needed = self.replicas.len() - self.ack_quorum + 1;
        if fault::planted(Fault::FewerFences) { needed - 1 } else { needed }
    }

    /// The number of entries that at least A of these replicas have: the A-th
    /// greatest of their lengths (W1). Each replica holds a prefix, so all
    /// lower entries are there as well. 0 when there are fewer than A lengths.
    #[must_use]
    pub fn quorum_length(&self, lengths: impl IntoIterator<Item = EntryId>) -> EntryId {
        let mut lengths: SmallVec<[EntryId; REPLICAS_MAX]> = lengths.into_iter().collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.get(self.ack_quorum - 1).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn bookies(count: usize) -> Vec<BookieId> {
        (0..count).map(|bookie| BookieId(Uuid::from_u128(bookie as u128))).collect()
    }

    /// All sets of at least `size` of `n` replicas, as bits.
    fn sets(n: usize, size: usize) -> impl Iterator<Item = u32> + Clone {
        (0_u32..1 << n).filter(move |set| set.count_ones() as usize >= size)
    }

    #[test]
    fn t3_a_fence_quorum_meets_every_ack_quorum_and_no_smaller_one_does() {
        for n in 1..=6 {
            for ack_quorum in 1..=n {
                let ensemble = Ensemble::new(&bookies(n), ack_quorum).unwrap();
                let fences = ensemble.fence_quorum();
                let meets_all = |fenced: u32| sets(n, ack_quorum).all(|acked| acked & fenced != 0);
                assert!(sets(n, fences).all(meets_all), "n = {n}, A = {ack_quorum}");
                assert!(!sets(n, fences - 1).all(meets_all), "n = {n}, A = {ack_quorum}");
            }
        }
    }

    #[test]
    fn an_ensemble_that_can_never_commit_is_none() {
        for (replicas, ack_quorum, expected) in [
            (0, 0, Some(EnsembleError::AckQuorum { ack_quorum: 0, replicas: 0 })),
            (3, 0, Some(EnsembleError::AckQuorum { ack_quorum: 0, replicas: 3 })),
            (2, 3, Some(EnsembleError::AckQuorum { ack_quorum: 3, replicas: 2 })),
            (17, 2, Some(EnsembleError::TooMany(17))),
            (1, 1, None),
            (3, 2, None),
            (16, 16, None),
        ] {
            assert_eq!(Ensemble::new(&bookies(replicas), ack_quorum).err(), expected);
        }
        let twice = [bookies(2), bookies(1)].concat();
        assert_eq!(Ensemble::new(&twice, 2).err(), Some(EnsembleError::Twice(twice[0])));
    }

    proptest! {
        #[test]
        fn w1_the_quorum_length_is_the_greatest_that_a_replicas_have(
            lengths in vec(0_u64..12, 1..=7),
            quorum in any::<prop::sample::Index>(),
        ) {
            let ack_quorum = quorum.index(lengths.len()) + 1;
            let ensemble = Ensemble::new(&bookies(lengths.len()), ack_quorum).unwrap();
            let have = |length: u64| lengths.iter().filter(|&&other| other >= length).count();
            let expected = (0..12).rev().find(|&length| have(length) >= ack_quorum).unwrap();
            let found = ensemble.quorum_length(lengths.iter().map(|&length| EntryId(length)));
            prop_assert_eq!(found, EntryId(expected));
        }

        #[test]
        fn w1_too_few_lengths_commit_nothing(lengths in vec(any::<u64>(), 0..3)) {
            let ensemble = Ensemble::new(&bookies(4), 3).unwrap();
            let found = ensemble.quorum_length(lengths.into_iter().map(EntryId));
            prop_assert_eq!(found, EntryId(0));
        }
    }
}
