//! The keys of the metadata store: what is kept under which name, and what a
//! name stands for. Numbers are padded to 20 digits, so that key order is
//! number order.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use quire_proto::id::{BookieId, LedgerId, Nonce, PartitionId, PartitionIndex, TopicId};
use uuid::Uuid;

use crate::chain::ChainSequence;
use crate::id_block::IdKind;
use crate::process::BrokerName;
use crate::topic::TopicName;

/// Builds and parses the keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    root: Arc<str>,
}

/// What a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The cluster itself.
    Cluster,
    /// A broker that is alive, leased.
    Broker(BrokerName),
    /// The elected controller, leased.
    Controller,
    /// A bookie that is alive, leased.
    Bookie(BookieId),
    /// A bookie that belongs to the cluster, alive or not.
    BookieRegistration(BookieId),
    /// A topic that exists.
    Topic(TopicName),
    /// A topic that is being deleted.
    Deleting(TopicId),
    /// A partition's epoch and leader.
    Partition(PartitionId),
    /// The leader that the controller proposes.
    Proposal(PartitionId),
    /// One link of a partition's chain.
    Segment(PartitionId, ChainSequence),
    /// A ledger.
    Ledger(LedgerId),
    /// An upload under way.
    Upload(Nonce),
    /// A ledger that is to be deleted from its bookies.
    Delete(LedgerId),
    /// The next id that no block holds yet.
    IdNext(IdKind),
    /// A block of ids, by its first.
    IdBlock(IdKind, u64),
}

/// A cluster's name may have at most this many bytes.
pub const CLUSTER_NAME_MAX: usize = 64;

/// The cluster's name is not usable in a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cluster name {0:?} is not valid: it must have 1 to {CLUSTER_NAME_MAX} letters, digits, '-', '_' or '.'"
)]
pub struct InvalidClusterName(pub String);

impl Keys {
    /// The keys of the cluster of this name.
    ///
    /// # Errors
    /// When the name is empty, too long, or has other characters than letters,
    /// digits, `-`, `_` and `.`.
    pub fn new(cluster: &str) -> Result<Self, InvalidClusterName> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if cluster.is_empty() || cluster.len() > CLUSTER_NAME_MAX || !cluster.chars().all(allowed) {
            return Err(InvalidClusterName(cluster.to_owned()));
        }
        Ok(Self { root: format!("/quire/{cluster}/").into() })
    }

    /// What all keys of the cluster start with.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The key that stands for this.
    #[must_use]
    pub fn key(&self, key: &Key) -> String {
        format!("{}{key}", self.root)
    }

    /// `cluster`
    #[must_use]
    pub fn cluster(&self) -> String {
        self.key(&Key::Cluster)
    }

    /// `brokers/<id>`
    #[must_use]
    pub fn broker(&self, broker: &BrokerName) -> String {
        format!("{}brokers/{broker}", self.root)
    }

    /// `brokers/`
    #[must_use]
    pub fn brokers(&self) -> String {
        format!("{}brokers/", self.root)
    }

    /// `controller`
    #[must_use]
    pub fn controller(&self) -> String {
        self.key(&Key::Controller)
    }

    /// `bookies/<uuid>`
    #[must_use]
    pub fn bookie(&self, bookie: BookieId) -> String {
        self.key(&Key::Bookie(bookie))
    }

    /// `bookies/`
    #[must_use]
    pub fn bookies(&self) -> String {
        format!("{}bookies/", self.root)
    }

    /// `bookie-registry/<uuid>`
    #[must_use]
    pub fn bookie_registration(&self, bookie: BookieId) -> String {
        self.key(&Key::BookieRegistration(bookie))
    }

    /// `bookie-registry/`
    #[must_use]
    pub fn bookie_registry(&self) -> String {
        format!("{}bookie-registry/", self.root)
    }

    /// `topics/<name>`
    #[must_use]
    pub fn topic(&self, topic: &TopicName) -> String {
        format!("{}topics/{topic}", self.root)
    }

    /// `topics/`
    #[must_use]
    pub fn topics(&self) -> String {
        format!("{}topics/", self.root)
    }

    /// `deleting/<topic uuid>`
    #[must_use]
    pub fn deleting(&self, topic: TopicId) -> String {
        self.key(&Key::Deleting(topic))
    }

    /// `deleting/`
    #[must_use]
    pub fn all_deleting(&self) -> String {
        format!("{}deleting/", self.root)
    }

    /// `partitions/<topic uuid>/<partition>`
    #[must_use]
    pub fn partition(&self, partition: PartitionId) -> String {
        self.key(&Key::Partition(partition))
    }

    /// `partitions/<topic uuid>/`
    #[must_use]
    pub fn partitions(&self, topic: TopicId) -> String {
        format!("{}partitions/{topic}/", self.root)
    }

    /// `partitions/`
    #[must_use]
    pub fn all_partitions(&self) -> String {
        format!("{}partitions/", self.root)
    }

    /// `proposals/<topic uuid>/<partition>`
    #[must_use]
    pub fn proposal(&self, partition: PartitionId) -> String {
        self.key(&Key::Proposal(partition))
    }

    /// `proposals/<topic uuid>/`
    #[must_use]
    pub fn proposals(&self, topic: TopicId) -> String {
        format!("{}proposals/{topic}/", self.root)
    }

    /// `segments/<topic uuid>/<partition>/<chain sequence>`
    #[must_use]
    pub fn segment(&self, partition: PartitionId, sequence: ChainSequence) -> String {
        self.key(&Key::Segment(partition, sequence))
    }

    /// `segments/<topic uuid>/<partition>/`
    #[must_use]
    pub fn segments(&self, partition: PartitionId) -> String {
        format!("{}segments/{}/{:020}/", self.root, partition.topic, partition.index.0)
    }

    /// `segments/<topic uuid>/`
    #[must_use]
    pub fn topic_segments(&self, topic: TopicId) -> String {
        format!("{}segments/{topic}/", self.root)
    }

    /// `ledgers/<id>`
    #[must_use]
    pub fn ledger(&self, ledger: LedgerId) -> String {
        self.key(&Key::Ledger(ledger))
    }

    /// `ledgers/`
    #[must_use]
    pub fn ledgers(&self) -> String {
        format!("{}ledgers/", self.root)
    }

    /// `deletes/<ledger id>`
    #[must_use]
    pub fn delete(&self, ledger: LedgerId) -> String {
        self.key(&Key::Delete(ledger))
    }

    /// `deletes/`
    #[must_use]
    pub fn deletes(&self) -> String {
        format!("{}deletes/", self.root)
    }

    /// `ids/<kind>/next`
    #[must_use]
    pub fn id_next(&self, kind: IdKind) -> String {
        self.key(&Key::IdNext(kind))
    }

    /// `ids/<kind>/blocks/<first id>`
    #[must_use]
    pub fn id_block(&self, kind: IdKind, first: u64) -> String {
        self.key(&Key::IdBlock(kind, first))
    }

    /// `ids/<kind>/blocks/`
    #[must_use]
    pub fn id_blocks(&self, kind: IdKind) -> String {
        format!("{}ids/{kind}/blocks/", self.root)
    }

    /// What a key of this cluster stands for; nothing when it is none that
    /// this version knows.
    #[must_use]
    pub fn parse(&self, key: &str) -> Option<Key> {
        let (kind, rest) = {
            let key = key.strip_prefix(&*self.root)?;
            key.split_once('/').map_or((key, None), |(kind, rest)| (kind, Some(rest)))
        };
        let Some(rest) = rest else {
            return match kind {
                "cluster" => Some(Key::Cluster),
                "controller" => Some(Key::Controller),
                _ => None,
            };
        };
        Some(match kind {
            "brokers" => Key::Broker(rest.parse().ok()?),
            "bookies" => Key::Bookie(BookieId(uuid(rest)?)),
            "bookie-registry" => Key::BookieRegistration(BookieId(uuid(rest)?)),
            "topics" => Key::Topic(rest.parse().ok()?),
            "deleting" => Key::Deleting(TopicId(uuid(rest)?)),
            "partitions" => Key::Partition(partition(rest)?),
            "proposals" => Key::Proposal(partition(rest)?),
            "segments" => {
                let (of, sequence) = rest.rsplit_once('/')?;
                Key::Segment(partition(of)?, ChainSequence(padded(sequence)?))
            }
            "ledgers" => Key::Ledger(LedgerId(padded(rest)?)),
            "uploads" => Key::Upload(Nonce(uuid(rest)?)),
            "deletes" => Key::Delete(LedgerId(padded(rest)?)),
            "ids" => ids(rest)?,
            _ => return None,
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => write!(f, "cluster"),
            Self::Broker(broker) => write!(f, "brokers/{broker}"),
            Self::Controller => write!(f, "controller"),
            Self::Bookie(bookie) => write!(f, "bookies/{bookie}"),
            Self::BookieRegistration(bookie) => write!(f, "bookie-registry/{bookie}"),
            Self::Topic(topic) => write!(f, "topics/{topic}"),
            Self::Deleting(topic) => write!(f, "deleting/{topic}"),
            Self::Partition(id) => write!(f, "partitions/{}/{:020}", id.topic, id.index.0),
            Self::Proposal(id) => write!(f, "proposals/{}/{:020}", id.topic, id.index.0),
            Self::Segment(id, sequence) => {
                write!(f, "segments/{}/{:020}/{:020}", id.topic, id.index.0, sequence.0)
            }
            Self::Ledger(ledger) => write!(f, "ledgers/{:020}", ledger.0),
            Self::Upload(attempt) => write!(f, "uploads/{attempt}"),
            Self::Delete(ledger) => write!(f, "deletes/{:020}", ledger.0),
            Self::IdNext(kind) => write!(f, "ids/{kind}/next"),
            Self::IdBlock(kind, first) => write!(f, "ids/{kind}/blocks/{first:020}"),
        }
    }
}

fn ids(rest: &str) -> Option<Key> {
    let (kind, rest) = rest.split_once('/')?;
    let kind = IdKind::from_str(kind).ok()?;
    match rest.split_once('/') {
        None if rest == "next" => Some(Key::IdNext(kind)),
        Some(("blocks", first)) => Some(Key::IdBlock(kind, padded(first)?)),
        _ => None,
    }
}

fn partition(rest: &str) -> Option<PartitionId> {
    let (topic, index) = rest.split_once('/')?;
    let index = PartitionIndex(padded(index)?.try_into().ok()?);
    Some(PartitionId { topic: TopicId(uuid(topic)?), index })
}

/// Exactly one text stands for each id: others are no keys of ours.
fn uuid(text: &str) -> Option<Uuid> {
    text.parse().ok().filter(|uuid: &Uuid| uuid.to_string() == text)
}

fn padded(text: &str) -> Option<u64> {
    let digits = text.len() == 20 && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_key() -> impl Strategy<Value = Key> {
        let uuid = || any::<u128>().prop_map(Uuid::from_u128);
        let id = || {
            (uuid(), any::<u32>()).prop_map(|(topic, index)| PartitionId {
                topic: TopicId(topic),
                index: PartitionIndex(index),
            })
        };
        let kind = || prop_oneof![Just(IdKind::Ledgers), Just(IdKind::Producers)];
        prop_oneof![
            Just(Key::Cluster),
            Just(Key::Controller),
            "[a-z0-9.-]{1,20}".prop_filter_map("a name", |name| name.parse().ok().map(Key::Broker)),
            uuid().prop_map(|id| Key::Bookie(BookieId(id))),
            uuid().prop_map(|id| Key::BookieRegistration(BookieId(id))),
            "[a-zA-Z0-9._-]{1,20}".prop_filter_map("a name", |name| name.parse().ok().map(Key::Topic)),
            uuid().prop_map(|id| Key::Deleting(TopicId(id))),
            id().prop_map(Key::Partition),
            id().prop_map(Key::Proposal),
            (id(), any::<u64>()).prop_map(|(id, n)| Key::Segment(id, ChainSequence(n))),
            any::<u64>().prop_map(|n| Key::Ledger(LedgerId(n))),
            uuid().prop_map(|id| Key::Upload(Nonce(id))),
            any::<u64>().prop_map(|n| Key::Delete(LedgerId(n))),
            kind().prop_map(Key::IdNext),
            (kind(), any::<u64>()).prop_map(|(kind, n)| Key::IdBlock(kind, n)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_built_is_parsed(key in any_key()) {
            let keys = Keys::new("c1").unwrap();
            prop_assert_eq!(keys.parse(&keys.key(&key)), Some(key));
        }

        #[test]
        fn key_order_is_number_order(a in any::<u64>(), b in any::<u64>()) {
            let keys = Keys::new("c1").unwrap();
            prop_assert_eq!(a.cmp(&b), keys.ledger(LedgerId(a)).cmp(&keys.ledger(LedgerId(b))));
        }
    }

    #[test]
    fn foreign_keys_are_not_parsed() {
        let keys = Keys::new("c1").unwrap();
        for foreign in [
            "",
            "/quire/c1/",
            "/quire/c1/ledgers/",
            "/quire/c1/ledgers/7",
            "/quire/c1/ledgers/+0000000000000000007",
            "/quire/c1/ledgers/99999999999999999999",
            "/quire/c1/bookies/67E5504410B1426F9247BB680E5FE0C8",
            "/quire/c1/ids/ledgers/blocks",
            "/quire/c1/cluster/x",
            "/quire/c2/cluster",
            "/quire/c1x/cluster",
        ] {
            assert_eq!(keys.parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn every_prefix_is_one_of_its_keys() {
        let keys = Keys::new("c1").unwrap();
        let id = PartitionId { topic: TopicId(Uuid::from_u128(7)), index: PartitionIndex(3) };
        for (prefix, key) in [
            (keys.segments(id), keys.segment(id, ChainSequence(4))),
            (keys.topic_segments(id.topic), keys.segments(id)),
            (keys.partitions(id.topic), keys.partition(id)),
            (keys.all_partitions(), keys.partitions(id.topic)),
            (keys.ledgers(), keys.ledger(LedgerId(1))),
            (keys.deletes(), keys.delete(LedgerId(1))),
            (keys.bookies(), keys.bookie(BookieId::default())),
            (keys.bookie_registry(), keys.bookie_registration(BookieId::default())),
            (keys.topics(), keys.topic(&"t".parse().unwrap())),
            (keys.all_deleting(), keys.deleting(id.topic)),
            (keys.brokers(), keys.broker(&"b".parse().unwrap())),
            (keys.id_blocks(IdKind::Ledgers), keys.id_block(IdKind::Ledgers, 9)),
        ] {
            assert!(key.starts_with(&prefix), "{key} {prefix}");
        }
    }

    #[test]
    fn cluster_names_cannot_leave_their_place() {
        for name in ["", "a/b", "ä", " ", &"x".repeat(CLUSTER_NAME_MAX + 1)] {
            assert_eq!(Keys::new(name), Err(InvalidClusterName(name.to_owned())));
        }
    }
}
