//! Reading: typed, and consistent where it matters.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use quire_proto::id::{BookieId, EntryId, LedgerId, PartitionId};

use crate::chain::{ChainSequence, Segment};
use crate::key::{Key, Keys};
use crate::ledger::LedgerMetadata;
use crate::operations::roll::Last;
use crate::operations::take_over::Candidate;
use crate::partition::Partition;
use crate::store::{KeyValue, PAGE_KEYS_MAX, Revision, Store, StoreError};
use crate::topic::{Topic, TopicName};
use crate::typed::{Typed, Versioned};

/// Point reads that are under way at once.
const READS_AT_ONCE: usize = 32;

/// How often a read of several keys starts anew because its revision is no
/// longer kept.
const READS: usize = 5;

/// One value, if it is there.
///
/// # Errors
/// The store's; [`StoreError::Corrupt`] when it is not such a value.
pub async fn get<T: Typed>(store: &dyn Store, key: &str) -> Result<Option<Versioned<T>>, StoreError> {
    Versioned::read_option(store.get(key).await?.as_ref())
}

/// One value as of a revision.
async fn get_at<T: Typed>(
    store: &dyn Store,
    key: &str,
    revision: Revision,
) -> Result<Option<Versioned<T>>, StoreError> {
    let page = store.range(key, key, 1, Some(revision)).await?;
    Versioned::read_option(page.keys.first().filter(|found| found.key == key))
}

/// All keys that start with a prefix, of one revision, page by page.
///
/// # Errors
/// The store's.
pub async fn list(store: &dyn Store, prefix: &str) -> Result<(Vec<KeyValue>, Revision), StoreError> {
    for _ in 0..READS {
        match list_at(store, prefix, None).await {
            Err(StoreError::Compacted(_)) => {}
            listed => return listed,
        }
    }
    Err(outrun())
}

/// The sealed ledgers of which a bookie is named complete, with their ends: it
/// had all entries below durably before they were sealed.
///
/// # Errors
/// As [`list`]; [`StoreError::Corrupt`] when a ledger cannot be read.
pub async fn complete_on(
    store: &dyn Store,
    keys: &Keys,
    bookie: BookieId,
) -> Result<Vec<(LedgerId, EntryId)>, StoreError> {
    let (found, _) = list(store, &keys.ledgers()).await?;
    let mut complete = Vec::new();
    for key in &found {
        let ledger = Versioned::<LedgerMetadata>::read(key)?.value;
        if let Some(sealed) = ledger.sealed().filter(|sealed| sealed.complete.contains(&bookie)) {
            complete.push((ledger.id, sealed.end));
        }
    }
    Ok(complete)
}

async fn list_at(
    store: &dyn Store,
    prefix: &str,
    mut at: Option<Revision>,
) -> Result<(Vec<KeyValue>, Revision), StoreError> {
    let mut keys: Vec<KeyValue> = Vec::new();
    loop {
        // The least key after the last one.
        let from = keys.last().map(|last| format!("{}\0", last.key)).unwrap_or_default();
        let page = store.range(prefix, &from, PAGE_KEYS_MAX, at).await?;
        keys.extend(page.keys);
        if !page.more {
            return Ok((keys, page.revision));
        }
        at = Some(page.revision);
    }
}

fn outrun() -> StoreError {
    StoreError::Unavailable("the store forgets revisions faster than they can be read".to_owned())
}

/// The topic of this name.
///
/// # Errors
/// The store's.
pub async fn topic(
    store: &dyn Store,
    keys: &Keys,
    name: &TopicName,
) -> Result<Option<Versioned<Topic>>, StoreError> {
    get(store, &keys.topic(name)).await
}

/// All topics, in the order of their names, and the revision they are of.
///
/// # Errors
/// The store's.
pub async fn topics(store: &dyn Store, keys: &Keys) -> Result<(Vec<Versioned<Topic>>, Revision), StoreError> {
    let (found, revision) = list(store, &keys.topics()).await?;
    Ok((found.iter().map(Versioned::read).collect::<Result<_, _>>()?, revision))
}

/// One link of a partition's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its place.
    pub sequence: ChainSequence,
    /// The segment.
    pub segment: Versioned<Segment>,
    /// Its ledger.
    pub ledger: Versioned<LedgerMetadata>,
}

/// A partition and its chain, all of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// Which partition.
    pub id: PartitionId,
    /// Its epoch and leader; none when it never had one.
    pub partition: Option<Versioned<Partition>>,
    /// Its chain, in order. All but the last are sealed.
    pub chain: Vec<Link>,
    /// The revision that all of it is of.
    pub revision: Revision,
}

impl PartitionView {
    /// The chain's next place.
    #[must_use]
    pub fn next_sequence(&self) -> ChainSequence {
        self.chain.last().map_or(ChainSequence(0), |last| last.sequence.next())
    }

    /// The chain's last segment.
    #[must_use]
    pub fn last(&self) -> Option<Last> {
        self.chain.last().map(|link| Last {
            sequence: link.sequence,
            segment: link.segment.value,
            ledger: link.ledger.clone(),
        })
    }

    /// What a take-over needs.
    #[must_use]
    pub fn candidate(&self, topic: Versioned<Topic>) -> Candidate {
        Candidate {
            topic,
            id: self.id,
            partition: self.partition.clone(),
            next: self.next_sequence(),
            last: self.chain.last().map(|link| link.ledger.clone()),
        }
    }
}

/// Reads a partition and its chain at one revision.
///
/// # Errors
/// The store's; [`StoreError::Corrupt`] when a segment names a ledger that is
/// not there.
pub async fn partition(store: &dyn Store, keys: &Keys, id: PartitionId) -> Result<PartitionView, StoreError> {
    for _ in 0..READS {
        match partition_once(store, keys, id).await {
            Err(StoreError::Compacted(_)) => {}
            view => return view,
        }
    }
    Err(outrun())
}

async fn partition_once(
    store: &dyn Store,
    keys: &Keys,
    id: PartitionId,
) -> Result<PartitionView, StoreError> {
    let (segments, revision) = list_at(store, &keys.segments(id), None).await?;
    let partition = get_at(store, &keys.partition(id), revision).await?;
    let chain = stream::iter(segments)
        .map(|segment| link(store, keys, segment, revision))
        .buffered(READS_AT_ONCE)
        .try_collect()
        .await?;
    Ok(PartitionView { id, partition, chain, revision })
}

async fn link(
    store: &dyn Store,
    keys: &Keys,
    found: KeyValue,
    revision: Revision,
) -> Result<Link, StoreError> {
    let Some(Key::Segment(_, sequence)) = keys.parse(&found.key) else {
        return Err(StoreError::Corrupt(format!("{} is not the key of a segment", found.key)));
    };
    let segment = Versioned::<Segment>::read(&found)?;
    let id = segment.value.ledger;
    let ledger = get_at(store, &keys.ledger(id), revision).await?;
    let ledger = ledger
        .ok_or_else(|| StoreError::Corrupt(format!("{} names ledger {id}, which is not there", found.key)))?;
    Ok(Link { sequence, segment, ledger })
}

/// Reads many partitions, each at a revision of its own, in the order given.
///
/// # Errors
/// Those of [`partition`].
pub async fn partitions(
    store: &dyn Store,
    keys: &Keys,
    ids: impl IntoIterator<Item = PartitionId>,
) -> Result<Vec<PartitionView>, StoreError> {
    let reads: Vec<_> = ids.into_iter().map(|id| partition(store, keys, id)).collect();
    stream::iter(reads).buffered(READS_AT_ONCE).try_collect().await
}

/// One ledger.
///
/// # Errors
/// The store's.
pub async fn ledger(
    store: &dyn Store,
    keys: &Keys,
    id: LedgerId,
) -> Result<Option<Versioned<LedgerMetadata>>, StoreError> {
    get(store, &keys.ledger(id)).await
}
