//! A broker's ledgers to be: ids out of blocks that it holds, created on all
//! their replicas before anybody names them (B2), some ahead of need.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use quire_broker::pool::{NoLedger, Spare};
use quire_ledger::ensemble::Ensemble;
use quire_ledger::message::{Refusal, Request, Response};
use quire_metadata::id_block::IdKind;
use quire_metadata::operations::ids::{self, HeldBlock};
use quire_metadata::store::StoreError;
use quire_proto::id::{BookieId, LedgerId};

use super::broker::{Done, Purpose};
use super::history::PartitionNumber;
use super::network::ProcessNumber;
use super::violation::Checked;
use super::world::{Happening, World, note};

/// Spare ledgers of one broker, and what is under way.
#[derive(Debug, Default)]
pub struct Pool {
    spares: VecDeque<Spare>,
    block: Option<(HeldBlock, u64)>,
    allocating: bool,
    creating: BTreeMap<LedgerId, Creating>,
    /// Partitions that want a ledger.
    wanted: BTreeSet<PartitionNumber>,
    /// Bookies that refused lately.
    avoid: BTreeSet<BookieId>,
    /// A pause before the next attempt is running.
    resting: bool,
}

#[derive(Debug)]
struct Creating {
    ensemble: Ensemble,
    block: HeldBlock,
    missing: BTreeSet<BookieId>,
    failed: bool,
}

/// An attempt to create a ledger is over.
#[derive(Debug)]
pub struct Creation {
    /// Who is to be told: either there is a spare now, or there is none.
    pub wanted_by: Vec<PartitionNumber>,
}

impl Pool {
    /// A spare ledger.
    pub fn take(&mut self) -> Option<Spare> {
        self.spares.pop_front()
    }

    /// A ledger that was not used.
    pub fn put_back(&mut self, spare: Spare) {
        self.spares.push_back(spare);
    }

    /// A partition wants no ledger any more.
    pub fn forget(&mut self, number: PartitionNumber) {
        self.wanted.remove(&number);
    }

    fn draw(&mut self) -> Option<(LedgerId, HeldBlock)> {
        let (block, next) = self.block.as_mut()?;
        if !block.block.value.ids().contains(next) {
            self.block = None;
            return None;
        }
        let id = LedgerId(*next);
        *next += 1;
        Some((id, block.clone()))
    }
}

impl World {
    /// A slot wants a ledger.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn need_ledger(&mut self, at: usize, number: PartitionNumber) -> Checked {
        self.brokers[at].pool.wanted.insert(number);
        self.serve_pool(at)
    }

    fn serve_pool(&mut self, at: usize) -> Checked {
        let pool = &mut self.brokers[at].pool;
        if pool.wanted.is_empty() {
            return Ok(());
        }
        if !pool.spares.is_empty() {
            let wanted_by = pool.wanted.pop_first().into_iter().collect();
            self.creation_done(at, Creation { wanted_by })?;
            return self.serve_pool(at);
        }
        if pool.creating.is_empty() && !pool.allocating && !pool.resting { self.create(at) } else { Ok(()) }
    }

    fn create(&mut self, at: usize) -> Checked {
        let Some((ledger, block)) = self.brokers[at].pool.draw() else { return self.allocate(at) };
        let avoid = self.brokers[at].pool.avoid.clone();
        let mut usable: Vec<BookieId> = self
            .bookies
            .iter()
            .filter(|bookie| bookie.is_up() && !avoid.contains(&bookie.id))
            .map(|bookie| bookie.id)
            .collect();
        if usable.len() < self.plan.ack_quorum {
            let (available, needed) = (usable.len(), self.plan.ack_quorum);
            return self.no_ensemble(at, &NoLedger::Bookies { available, needed });
        }
        for place in (1..usable.len()).rev() {
            let other = self.random.index(place + 1);
            usable.swap(place, other);
        }
        usable.truncate(self.plan.replicas.max(self.plan.ack_quorum));
        let Ok(ensemble) = Ensemble::new(&usable, self.plan.ack_quorum) else { return Ok(()) };
        note!(self, "broker {at} creates ledger {ledger} on {} bookies", usable.len());
        let missing = usable.iter().copied().collect();
        let creating = Creating { ensemble, block, missing, failed: false };
        self.brokers[at].pool.creating.insert(ledger, creating);
        let creator = self.brokers[at].process.nonce;
        for bookie in usable {
            self.call(at, bookie, Request::Create { ledger, creator }, Purpose::Create(ledger))?;
        }
        Ok(())
    }

    fn allocate(&mut self, at: usize) -> Checked {
        let (keys, count, attempt) = (self.keys.clone(), self.plan.block, self.random.nonce());
        let broker = &mut self.brokers[at];
        if std::mem::replace(&mut broker.pool.allocating, true) {
            return Ok(());
        }
        let (gate, process) = (broker.gate.clone(), broker.process.clone());
        broker.tasks.start(async move {
            let held = ids::allocate_block(&gate, &keys, IdKind::Ledgers, count, &process, attempt).await;
            Done::Block(held)
        });
        self.poll(at)
    }

    /// A block of ids is there, or not.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn block_allocated(&mut self, at: usize, result: Result<HeldBlock, StoreError>) -> Checked {
        let pool = &mut self.brokers[at].pool;
        pool.allocating = false;
        match result {
            Ok(held) => {
                let first = held.block.value.first;
                pool.block = Some((held, first));
                self.serve_pool(at)
            }
            Err(_) => {
                self.rest(at);
                Ok(())
            }
        }
    }

    fn rest(&mut self, at: usize) {
        let broker = &mut self.brokers[at];
        if !std::mem::replace(&mut broker.pool.resting, true) {
            let pause = self.random.between(5_000..=40_000);
            self.scheduler.after(pause, Happening::PoolRetries(broker.number));
        }
    }

    /// A pause of the pool is over.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn pool_retries(&mut self, process: ProcessNumber) -> Checked {
        let Some(at) = self.awake(process, || Happening::PoolRetries(process)) else { return Ok(()) };
        self.brokers[at].pool.resting = false;
        self.brokers[at].pool.avoid.clear();
        self.serve_pool(at)
    }

    /// No ensemble is to be had now: who wants one is told, and the pool goes
    /// on trying.
    fn no_ensemble(&mut self, at: usize, cause: &NoLedger) -> Checked {
        self.hits.hit("no ensemble was to be had");
        self.rest(at);
        let wanted: Vec<_> = self.brokers[at].pool.wanted.iter().copied().collect();
        let now = self.clock();
        for number in wanted {
            let mut out = Vec::new();
            if let Some(slot) = self.brokers[at].slots.get_mut(&number) {
                slot.no_ledger(now, cause.clone(), &mut out);
            } else {
                self.brokers[at].pool.wanted.remove(&number);
            }
            self.effects(at, number, out)?;
        }
        Ok(())
    }

    /// A bookie's answer to a creation.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn created(
        &mut self,
        at: usize,
        ledger: LedgerId,
        bookie: BookieId,
        result: Result<Response, String>,
    ) -> Checked {
        let pool = &mut self.brokers[at].pool;
        let Some(creating) = pool.creating.get_mut(&ledger) else { return Ok(()) };
        creating.missing.remove(&bookie);
        match result {
            Ok(Response::Created) => {}
            other => {
                creating.failed = true;
                pool.avoid.insert(bookie);
                if let Ok(Response::Refused(Refusal::Marked(below))) = other {
                    self.hits.hit("a creation was refused below a mark");
                    if pool.block.as_ref().is_some_and(|(_, next)| *next < below.0) {
                        pool.block = None;
                    }
                    pool.spares.retain(|spare| spare.ledger >= below);
                }
            }
        }
        let pool = &mut self.brokers[at].pool;
        if pool.creating.get(&ledger).is_none_or(|creating| !creating.missing.is_empty()) {
            return Ok(());
        }
        let Some(creating) = pool.creating.remove(&ledger) else { return Ok(()) };
        if creating.failed {
            self.rest(at);
            return self.serve_pool(at);
        }
        pool.spares.push_back(Spare { ledger, ensemble: creating.ensemble, block: Arc::new(creating.block) });
        self.serve_pool(at)
    }
}
