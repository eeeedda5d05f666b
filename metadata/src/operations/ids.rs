//! Blocks of ids: allocated by a process, returned by it, or released by the
//! controller when the process is gone. From the release on no id of the block
//! can be published.

use quire_proto::id::Nonce;

use crate::id_block::{ID_BLOCK_MAX, IdAllocator, IdBlock, IdKind};
use crate::key::Keys;
use crate::operation::{self, Operation, Outcome, Verdict, incomplete_evidence};
use crate::process::Process;
use crate::store::{Guard, KeyValue, Revision, Store, StoreError, Txn};
use crate::typed::{Typed, Versioned, as_read};

/// A block that this process holds, as long as nobody released it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// What its ids are for.
    pub kind: IdKind,
    /// The block, as it was allocated.
    pub block: Versioned<IdBlock>,
}

impl HeldBlock {
    /// Holds while the block is not released: no key of a block is written but
    /// to release it.
    #[must_use]
    pub fn guard(&self, keys: &Keys) -> Guard {
        self.block.unchanged(keys.id_block(self.kind, self.block.value.first))
    }
}

/// Takes the next ids as a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocateBlock {
    /// What the ids are for.
    pub kind: IdKind,
    /// How many, 1 to [`ID_BLOCK_MAX`].
    pub count: u64,
    /// Who will hold them.
    pub holder: Process,
    /// Drawn for this allocation alone.
    pub attempt: Nonce,
    /// The allocator, as read.
    pub allocator: Option<Versioned<IdAllocator>>,
}

/// Another allocation came first, or the block is released already: read the
/// allocator anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another process took the ids first")]
pub struct AllocatorMoved;

impl AllocateBlock {
    fn first(&self) -> u64 {
        self.allocator.as_ref().map_or(IdKind::FIRST, |allocator| allocator.value.next)
    }

    fn block(&self) -> IdBlock {
        let holder = Some(self.holder.clone());
        IdBlock { first: self.first(), count: self.count, holder, attempt: self.attempt }
    }
}

impl Operation for AllocateBlock {
    type Done = HeldBlock;
    type Lost = AllocatorMoved;

    fn txn(&self, keys: &Keys) -> Txn {
        let next = keys.id_next(self.kind);
        let block = self.block();
        let moved = IdAllocator { next: block.first.saturating_add(block.count) };
        Txn::default()
            .require(as_read(next.clone(), self.allocator.as_ref()))
            .put(next, moved.encode())
            .put(keys.id_block(self.kind, block.first), block.encode())
    }

    fn done(&self, at: Revision) -> HeldBlock {
        HeldBlock { kind: self.kind, block: Versioned { value: self.block(), revision: at } }
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.id_next(self.kind), keys.id_block(self.kind, self.first())]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<HeldBlock, AllocatorMoved>, StoreError> {
        let [allocator, block] = found else { return Err(incomplete_evidence()) };
        if let Some(block) = Versioned::<IdBlock>::read_option(block.as_ref())?
            && block.value == self.block()
        {
            return Ok(Verdict::done(HeldBlock { kind: self.kind, block }));
        }
        let allocator = Versioned::<IdAllocator>::read_option(allocator.as_ref())?;
        Ok(if allocator == self.allocator { Verdict::Pending } else { Verdict::lost(AllocatorMoved) })
    }
}

/// How often an allocation is tried anew because others came first.
const ALLOCATIONS: usize = 16;

/// Allocates a block. When the outcome is unknown, a block may stay allocated
/// until this process is gone.
///
/// # Errors
/// Those of [`operation::run`]; `Invalid` for a count out of its range.
pub async fn allocate_block(
    store: &dyn Store,
    keys: &Keys,
    kind: IdKind,
    count: u64,
    holder: &Process,
    attempt: Nonce,
) -> Result<HeldBlock, StoreError> {
    if !(1..=ID_BLOCK_MAX).contains(&count) {
        return Err(StoreError::Invalid(format!("a block of {count} ids, 1 to {ID_BLOCK_MAX} are allowed")));
    }
    for _ in 0..ALLOCATIONS {
        let allocator = Versioned::read_option(store.get(&keys.id_next(kind)).await?.as_ref())?;
        let allocate = AllocateBlock { kind, count, holder: holder.clone(), attempt, allocator };
        match operation::run(store, keys, &allocate).await? {
            Outcome::Done(held) => return Ok(held),
            Outcome::Lost(AllocatorMoved) => {}
        }
    }
    Err(StoreError::Unavailable("other processes allocate ids all the time".to_owned()))
}

/// Releases a block: its holder returns it, or the controller takes it from a
/// process that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseBlock {
    /// What its ids are for.
    pub kind: IdKind,
    /// The block, as read.
    pub block: Versioned<IdBlock>,
}

/// The block was written by another since it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block has changed")]
pub struct BlockChanged;

impl From<HeldBlock> for ReleaseBlock {
    fn from(HeldBlock { kind, block }: HeldBlock) -> Self {
        Self { kind, block }
    }
}

impl Operation for ReleaseBlock {
    type Done = ();
    type Lost = BlockChanged;

    fn txn(&self, keys: &Keys) -> Txn {
        let key = keys.id_block(self.kind, self.block.value.first);
        let txn = Txn::default().require(self.block.unchanged(key.clone()));
        match self.kind {
            // Ledgers may have been created under these ids: they are reclaimed.
            IdKind::Ledgers => {
                let released = IdBlock { holder: None, ..self.block.value.clone() };
                txn.put(key, released.encode())
            }
            // Nothing is kept under a producer's id that is not in the log.
            IdKind::Producers => txn.delete(key),
        }
    }

    fn done(&self, _at: Revision) {}

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.id_block(self.kind, self.block.value.first)]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<(), BlockChanged>, StoreError> {
        let [block] = found else { return Err(incomplete_evidence()) };
        let Some(block) = Versioned::<IdBlock>::read_option(block.as_ref())? else {
            return Ok(Verdict::done(()));
        };
        Ok(if block.value.holder.is_none() {
            Verdict::done(())
        } else if block.revision == self.block.revision {
            Verdict::Pending
        } else {
            Verdict::lost(BlockChanged)
        })
    }
}

/// Forgets a released block, once nothing is left of the ids that were not
/// published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveBlock {
    /// What its ids were for.
    pub kind: IdKind,
    /// The block, as read: released.
    pub block: Versioned<IdBlock>,
}

impl Operation for RemoveBlock {
    type Done = ();
    type Lost = BlockChanged;

    fn txn(&self, keys: &Keys) -> Txn {
        let key = keys.id_block(self.kind, self.block.value.first);
        Txn::default().require(self.block.unchanged(key.clone())).delete(key)
    }

    fn done(&self, _at: Revision) {}

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.id_block(self.kind, self.block.value.first)]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<(), BlockChanged>, StoreError> {
        match found {
            [None] => Ok(Verdict::done(())),
            [Some(block)] if block.mod_revision == self.block.revision => Ok(Verdict::Pending),
            [Some(_)] => Ok(Verdict::lost(BlockChanged)),
            _ => Err(incomplete_evidence()),
        }
    }
}
