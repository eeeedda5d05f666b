//! What the clients were told, and whether what is read agrees with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A topic's partition.
pub(crate) type Place = (String, u32);

/// What is known of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Under way, or its outcome is unknown.
    Unknown,
    /// Acknowledged at this offset.
    Acked(u64),
    /// Surely not written.
    Refused,
}

/// What is known of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Asked,
    Exists,
    Refused,
    DeletionAsked,
    Deleted,
}

/// A record as it was sent.
#[derive(Clone, Debug)]
struct Sent {
    place: Place,
    fate: Fate,
}

/// All that clients asked for and were told.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// By sender and the number that it gave.
    records: BTreeMap<(u32, u64), Sent>,
    topics: BTreeMap<String, (u32, Topic)>,
}

/// What the book said at one time.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    records: HashMap<(u32, u64), Sent>,
    topics: BTreeMap<String, (u32, Topic)>,
}

/// How a record names itself.
pub(crate) fn value(sender: u32, number: u64, padding: usize) -> String {
    format!("{sender} {number} {}", "x".repeat(padding))
}

fn name(value: &str) -> Option<(u32, u64)> {
    let mut parts = value.split(' ');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn places(topics: &BTreeMap<String, (u32, Topic)>) -> Vec<Place> {
    let existing = topics.iter().filter(|(_, (_, state))| *state == Topic::Exists);
    existing.flat_map(|(name, (partitions, _))| (0..*partitions).map(|p| (name.clone(), p))).collect()
}

impl Book {
    pub(crate) fn sent(&mut self, sender: u32, number: u64, place: Place) {
        let before = self.records.insert((sender, number), Sent { place, fate: Fate::Unknown });
        assert!(before.is_none(), "numbers are used once");
    }

    pub(crate) fn settle(&mut self, sender: u32, number: u64, fate: Fate) {
        self.records.get_mut(&(sender, number)).unwrap().fate = fate;
    }

    pub(crate) fn topic(&mut self, name: &str, partitions: u32, state: Topic) {
        self.topics.insert(name.to_owned(), (partitions, state));
    }

    pub(crate) fn told(&self) -> Told {
        let records = self.records.iter().map(|(&name, sent)| (name, sent.clone())).collect();
        Told { records, topics: self.topics.clone() }
    }

    /// The partitions of topics that surely exist and stay.
    pub(crate) fn places(&self) -> Vec<Place> {
        places(&self.topics)
    }

    pub(crate) fn acked(&self) -> usize {
        self.records.values().filter(|sent| matches!(sent.fate, Fate::Acked(_))).count()
    }

    pub(crate) fn refused(&self) -> usize {
        self.records.values().filter(|sent| sent.fate == Fate::Refused).count()
    }

    pub(crate) fn unknown(&self) -> usize {
        self.records.values().filter(|sent| sent.fate == Fate::Unknown).count()
    }
}

impl Told {
    /// The partitions of topics that surely exist and stay.
    pub(crate) fn places(&self) -> Vec<Place> {
        places(&self.topics)
    }

    /// What was acknowledged in a partition, by offset.
    pub(crate) fn acked(&self, place: &Place) -> BTreeMap<u64, (u32, u64)> {
        let of = self.records.iter().filter(|(_, sent)| sent.place == *place);
        of.filter_map(|(&name, sent)| match sent.fate {
            Fate::Acked(offset) => Some((offset, name)),
            Fate::Unknown | Fate::Refused => None,
        })
        .collect()
    }

    /// What exists, against what was told. Deletions under way do either.
    pub(crate) fn check_topics(&self, listed: &BTreeMap<String, u32>) {
        for (name, (partitions, state)) in &self.topics {
            match state {
                Topic::Exists => assert_eq!(listed.get(name), Some(partitions), "topic {name} was created"),
                Topic::Refused => assert!(!listed.contains_key(name), "topic {name} was refused"),
                Topic::Deleted => assert!(!listed.contains_key(name), "topic {name} was deleted"),
                Topic::Asked | Topic::DeletionAsked => {
                    let whole = listed.get(name).is_none_or(|found| found == partitions);
                    assert!(whole, "topic {name} has {:?} of {partitions} partitions", listed.get(name));
                }
            }
        }
    }

    /// A whole partition, from its first offset to its end.
    pub(crate) fn check_partition(&self, place: &Place, read: &[(u64, String)]) {
        let dense = read.iter().zip(0..).all(|((offset, _), expected)| *offset == expected);
        assert!(dense, "{place:?}: offsets are not dense");
        self.check_records(place, read);
        let read: HashMap<u64, (u32, u64)> =
            read.iter().filter_map(|(offset, value)| Some((*offset, name(value)?))).collect();
        for (offset, name) in self.acked(place) {
            assert_eq!(read.get(&offset), Some(&name), "{place:?}: offset {offset} was acknowledged");
        }
    }

    /// Records of a partition, perhaps not all: each was sent there and not
    /// refused, is there once, where it was acknowledged, in its sender's order.
    pub(crate) fn check_records(&self, place: &Place, read: &[(u64, String)]) {
        let mut seen = BTreeSet::new();
        let mut last = HashMap::new();
        for (offset, value) in read {
            let (sender, number) = name(value).unwrap_or_else(|| panic!("{place:?} {offset}: {value:.60}"));
            assert!(seen.insert((sender, number)), "{place:?} {offset}: {sender} {number} is there twice");
            let before = last.insert(sender, number);
            assert!(
                before.is_none_or(|before| before < number),
                "{place:?} {offset}: {sender} {number} is late"
            );
            // What was sent since the book was read is not in it.
            let Some(sent) = self.records.get(&(sender, number)) else { continue };
            assert_eq!(sent.place, *place, "{offset}: {sender} {number} is elsewhere");
            match sent.fate {
                Fate::Unknown => {}
                Fate::Acked(at) => assert_eq!(*offset, at, "{place:?}: {sender} {number} has moved"),
                Fate::Refused => panic!("{place:?} {offset}: {sender} {number} was refused and came back"),
            }
        }
    }
}
