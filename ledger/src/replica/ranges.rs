//! Sets of numbers as ranges: tombstones (B8), and the entries that a log
//! holds of a ledger (L4).

/// A set of numbers, kept as its maximal ranges in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// First and last of each, both included; neither overlapping nor adjacent.
    ranges: Vec<(u64, u64)>,
}

impl RangeSet {
    /// Adds `first` to `last`, both included. Nothing when `first > last`.
    pub fn insert(&mut self, first: u64, last: u64) {
        if first > last {
            return;
        }
        let from = self.ranges.partition_point(|&(_, end)| end < first && first - end > 1);
        let to = self.ranges.partition_point(|&(start, _)| start <= last.saturating_add(1));
        if from >= to {
            self.ranges.insert(from, (first, last));
            return;
        }
        let merged = (first.min(self.ranges[from].0), last.max(self.ranges[to - 1].1));
        self.ranges[from] = merged;
        self.ranges.drain(from + 1..to);
    }

    /// Whether the number is in the set.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        let at = self.ranges.partition_point(|&(_, end)| end < number);
        self.ranges.get(at).is_some_and(|&(start, _)| start <= number)
    }

    /// Whether all of `first` to `last` is in the set.
    #[must_use]
    pub fn covers(&self, first: u64, last: u64) -> bool {
        let at = self.ranges.partition_point(|&(_, end)| end < first);
        self.ranges.get(at).is_some_and(|&(start, end)| start <= first && last <= end)
    }

    /// The smallest number that is not in the set.
    #[must_use]
    pub fn first_gap(&self) -> u64 {
        match self.ranges.first() {
            Some(&(0, end)) => end.saturating_add(1),
            _ => 0,
        }
    }

    /// One past the greatest number in the set; 0 when it is empty.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |&(_, end)| end.saturating_add(1))
    }

    /// First and last of each maximal range, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_set(steps in prop::collection::vec((0..40u64, 0..12u64), 0..10)) {
            let (mut ranges, mut set) = (RangeSet::default(), BTreeSet::new());
            for (first, length) in steps {
                let last = first + length;
                ranges.insert(first, last);
                set.extend(first..=last);
            }
            for n in 0..60 {
                prop_assert_eq!(ranges.contains(n), set.contains(&n));
            }
            let gap = (0..).find(|n| !set.contains(n));
            prop_assert_eq!(Some(ranges.first_gap()), gap);
            prop_assert_eq!(ranges.end(), set.last().map_or(0, |n| n + 1));
            let all: Vec<_> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", all);
        }
    }

    #[test]
    fn the_greatest_number_is_a_member_like_others() {
        let mut ranges = RangeSet::default();
        ranges.insert(u64::MAX, u64::MAX);
        ranges.insert(3, u64::MAX - 1);
        assert!(ranges.covers(3, u64::MAX));
    }
}
