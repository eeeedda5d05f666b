//! New ledgers: ids out of blocks that this process holds, created durably on
//! all their replicas before anybody names them (B2), a few of them ahead of
//! need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use quire_ledger::ensemble::Ensemble;
use quire_ledger::message::{Refusal, Request, Response};
use quire_metadata::bookie::BookieLiveness;
use quire_metadata::id_block::IdKind;
use quire_metadata::operations::ids::{self, HeldBlock, ReleaseBlock};
use quire_metadata::store::StoreError;
use quire_proto::id::{BookieId, LedgerId, Nonce};
use rand::seq::SliceRandom;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use uuid::Uuid;

use crate::context::Context;

/// Ids of one block.
const BLOCK: u64 = 256;

/// A block is drawn from for this long, then returned.
const BLOCK_AGE: Duration = Duration::from_secs(3600);

/// Ledgers kept ready for each kind of topic.
const SPARES: usize = 2;

/// Ledgers kept of each kind when some are given back. Any more are dropped, and go
/// with their block.
const SPARES_MAX: usize = 64;

/// Ledgers that one creation tries before it answers that none can be had.
const ATTEMPTS: usize = 4;

/// What a topic asks of its ledgers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// R.
    pub replicas: u32,
    /// A.
    pub ack_quorum: u32,
}

/// A ledger that exists on all its replicas and that nobody names yet.
#[derive(Clone, Debug)]
pub struct Spare {
    pub ledger: LedgerId,
    pub ensemble: Ensemble,
    /// Must still be held when the ledger is published (W3).
    pub block: Arc<HeldBlock>,
}

/// Why there is no ledger now.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoLedger {
    /// Fewer bookies than the ack quorum take ledgers.
    #[error("{available} of the {needed} bookies that are needed can take a ledger")]
    Bookies { available: usize, needed: usize },
    /// Enough bookies are alive, but their disks are full.
    #[error(
        "the disks of {full} bookies are full and {needed} that can be written to are needed: free space or add bookies"
    )]
    Full { full: usize, needed: usize },
    /// Bookies are there but did not create it.
    #[error("no ledger could be created: {0}")]
    Refused(String),
    /// No ids are to be had.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A bookie that did not create a ledger.
struct NotCreated {
    bookie: BookieId,
    cause: String,
    /// Because its disk is full.
    is_full: bool,
}

#[derive(Debug)]
struct Block {
    held: Arc<HeldBlock>,
    next: u64,
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    block: Option<Block>,
    /// No more ids are drawn; released when no spare is of it any more.
    retired: Vec<Arc<HeldBlock>>,
    spares: HashMap<Target, Vec<Spare>>,
    filling: bool,
}

/// Makes and keeps spare ledgers.
#[derive(Debug)]
pub struct LedgerPool {
    context: Arc<Context>,
    state: Mutex<State>,
    /// One allocation at a time: whoever comes second finds its block.
    allocating: Semaphore,
}

impl LedgerPool {
    /// An empty pool.
    #[must_use]
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context, state: Mutex::default(), allocating: Semaphore::new(1) })
    }

    /// A ledger for this target. Cancel-safe: a ledger that was being made is
    /// left to the sweep of its block.
    ///
    /// # Errors
    /// [`NoLedger`]: try again when bookies change, or later.
    pub async fn take(self: &Arc<Self>, target: Target) -> Result<Spare, NoLedger> {
        let spare = self.take_spare(target);
        let taken = match spare {
            Some(spare) => spare,
            None => self.create(target).await?,
        };
        self.refill(target);
        Ok(taken)
    }

    /// Takes a ledger back that was not published. One that there is no room for
    /// is left to the sweep of its block.
    pub fn put_back(&self, target: Target, spare: Spare) {
        let mut state = self.lock();
        let spares = state.spares.entry(target).or_default();
        if spares.len() < SPARES_MAX {
            spares.push(spare);
        }
    }

    /// Returns all blocks, once nothing is published from them any more.
    pub async fn release(&self) {
        let retired = {
            let mut state = self.lock();
            state.spares.clear();
            let block = state.block.take().map(|block| block.held);
            let mut retired = std::mem::take(&mut state.retired);
            retired.extend(block);
            retired
        };
        for block in retired {
            if let Some(block) = Arc::into_inner(block) {
                self.release_block(block).await;
            }
        }
    }

    /// A spare whose bookies are all still alive and take appends.
    fn take_spare(&self, target: Target) -> Option<Spare> {
        let live = self.context.bookies.live();
        let live = live.borrow();
        let mut state = self.lock();
        let spares = state.spares.get_mut(&target)?;
        let is_writable = |found: Option<&BookieLiveness>| found.is_some_and(|found| !found.read_only);
        let writable = live.values().filter(|found| is_writable(Some(found))).count();
        let best = (target.replicas as usize).min(writable);
        let usable = |spare: &Spare| {
            let replicas = spare.ensemble.replicas();
            replicas.len() >= best && replicas.iter().all(|bookie| is_writable(live.get(bookie)))
        };
        while let Some(spare) = spares.pop() {
            if usable(&spare) {
                return Some(spare);
            }
        }
        None
    }

    fn refill(self: &Arc<Self>, target: Target) {
        {
            let mut state = self.lock();
            let enough = state.spares.get(&target).is_some_and(|spares| spares.len() >= SPARES);
            if enough || state.filling || self.context.stop.is_cancelled() {
                return;
            }
            state.filling = true;
        }
        let pool = Arc::clone(self);
        self.context.spawn(async move {
            pool.fill(target).await;
            pool.lock().filling = false;
            pool.sweep().await;
        });
    }

    async fn fill(&self, target: Target) {
        for _ in 0..SPARES {
            if self.lock().spares.get(&target).is_some_and(|spares| spares.len() >= SPARES) {
                return;
            }
            match self.create(target).await {
                Ok(spare) => self.put_back(target, spare),
                Err(error) => {
                    tracing::debug!(%error, "no spare ledger was made");
                    return;
                }
            }
        }
    }

    async fn create(&self, target: Target) -> Result<Spare, NoLedger> {
        let mut avoid: Vec<BookieId> = Vec::new();
        let mut refused = String::new();
        // A bookie's registration tells later that its disk is full.
        let mut full = 0;
        for _ in 0..ATTEMPTS {
            let ensemble = match self.choose(target, &avoid) {
                Ok(ensemble) => ensemble,
                Err(error) if refused.is_empty() => return Err(error),
                Err(_) if full == avoid.len() => {
                    return Err(NoLedger::Full { full, needed: target.ack_quorum as usize });
                }
                Err(_) => break,
            };
            let (ledger, block) = self.draw().await?;
            let failed = self.create_on(ledger, ensemble.replicas()).await;
            if failed.is_empty() {
                return Ok(Spare { ledger, ensemble, block });
            }
            for NotCreated { bookie, cause, is_full } in failed {
                tracing::warn!(%ledger, %bookie, cause, "a bookie did not create a ledger");
                refused = format!("bookie {bookie}: {cause}");
                full += usize::from(is_full);
                avoid.push(bookie);
            }
        }
        Err(NoLedger::Refused(refused))
    }

    /// max(A, min(R, bookies that can take it)) bookies.
    fn choose(&self, target: Target, avoid: &[BookieId]) -> Result<Ensemble, NoLedger> {
        let live = self.context.bookies.live();
        let (full, mut usable): (Vec<BookieId>, Vec<BookieId>) = {
            let live = live.borrow();
            let candidates = live.iter().filter(|(bookie, _)| !avoid.contains(bookie));
            let (full, usable): (Vec<_>, Vec<_>) = candidates.partition(|(_, live)| live.read_only);
            (
                full.into_iter().map(|(bookie, _)| *bookie).collect(),
                usable.into_iter().map(|(bookie, _)| *bookie).collect(),
            )
        };
        let needed = target.ack_quorum as usize;
        let available = usable.len();
        if available < needed && available + full.len() >= needed {
            return Err(NoLedger::Full { full: full.len(), needed });
        }
        if available < needed {
            return Err(NoLedger::Bookies { available, needed });
        }
        usable.shuffle(&mut rand::rng());
        usable.truncate((target.replicas as usize).max(needed));
        Ensemble::new(&usable, needed).map_err(|error| NoLedger::Refused(error.to_string()))
    }

    /// Asks all bookies at once; tells which did not create it, and why.
    async fn create_on(&self, ledger: LedgerId, replicas: &[BookieId]) -> Vec<NotCreated> {
        let creator = self.context.process.nonce;
        let asked = replicas.iter().map(|&bookie| async move {
            let answer = self.context.bookies.call(bookie, Request::Create { ledger, creator }).await;
            (bookie, answer)
        });
        let answers = join_all(asked).await;
        answers
            .into_iter()
            .filter_map(|(bookie, answer)| match answer {
                Ok(Response::Created) => None,
                Ok(Response::Refused(refusal)) => {
                    if let Refusal::Marked(below) = refusal {
                        self.drop_below(below);
                    }
                    let is_full = matches!(refusal, Refusal::ReadOnly);
                    Some(NotCreated { bookie, cause: refusal.to_string(), is_full })
                }
                Ok(other) => {
                    Some(NotCreated { bookie, cause: format!("it answered {other:?}"), is_full: false })
                }
                Err(error) => Some(NotCreated { bookie, cause: error.cause, is_full: false }),
            })
            .collect()
    }

    /// The next id of a block that this process holds.
    async fn draw(&self) -> Result<(LedgerId, Arc<HeldBlock>), StoreError> {
        let mut turn = None;
        loop {
            if let Some(drawn) = self.lock().draw() {
                return Ok(drawn);
            }
            if turn.is_none() {
                // The semaphore is never closed. Look again once it is our turn.
                turn = self.allocating.acquire().await.ok();
                continue;
            }
            let held = self.allocate().await?;
            let next = held.block.value.first;
            self.lock().block = Some(Block { held: Arc::new(held), next, since: Instant::now() });
        }
    }

    async fn allocate(&self) -> Result<HeldBlock, StoreError> {
        let Context { store, keys, process, .. } = &*self.context;
        let attempt = Nonce(Uuid::new_v4());
        ids::allocate_block(&**store, keys, IdKind::Ledgers, BLOCK, process, attempt).await
    }

    /// A bookie lost a tail: ids below this one are of no use any more (B6).
    fn drop_below(&self, below: LedgerId) {
        let mut state = self.lock();
        if state.block.as_ref().is_some_and(|block| block.next < below.0) {
            state.retire();
        }
        for spares in state.spares.values_mut() {
            spares.retain(|spare| spare.ledger >= below);
        }
    }

    /// Releases retired blocks that nothing can be published from any more.
    async fn sweep(&self) {
        let unused: Vec<HeldBlock> = {
            let mut state = self.lock();
            let retired = std::mem::take(&mut state.retired);
            let (unused, used): (Vec<_>, Vec<_>) =
                retired.into_iter().partition(|block| Arc::strong_count(block) == 1);
            state.retired = used;
            unused.into_iter().filter_map(Arc::into_inner).collect()
        };
        for block in unused {
            self.release_block(block).await;
        }
    }

    async fn release_block(&self, block: HeldBlock) {
        if let Err(error) = self.context.settle(&ReleaseBlock::from(block)).await {
            tracing::warn!(%error, "a block of ledger ids was not returned");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn draw(&mut self) -> Option<(LedgerId, Arc<HeldBlock>)> {
        let block = self.block.as_mut()?;
        if !block.held.block.value.ids().contains(&block.next) || block.since.elapsed() > BLOCK_AGE {
            self.retire();
            return None;
        }
        let drawn = (LedgerId(block.next), Arc::clone(&block.held));
        block.next += 1;
        Some(drawn)
    }

    fn retire(&mut self) {
        self.retired.extend(self.block.take().map(|block| block.held));
    }
}

#[cfg(test)]
pub mod tests;
