//! Blocks of ids: released when their holder is gone, and reclaimed once
//! released. From the release on no id of a block can be published; an id that
//! is then found without a `ledgers` key, twice in linearizable reads, was
//! never published or is deleted: whatever a bookie created under it can go.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use quire_metadata::id_block::{IdBlock, IdKind};
use quire_metadata::key::Key;
use quire_metadata::operations::ids::{ReleaseBlock, RemoveBlock};
use quire_metadata::process::{Broker, Process};
use quire_metadata::store::{KeyValue, PAGE_KEYS_MAX};
use quire_metadata::typed::Versioned;
use quire_metadata::view;
use quire_proto::id::{BookieId, LedgerId};

use crate::absence::Presence;
use crate::queue::Next;
use crate::term::Term;
use crate::work::{Job, Stopped, run_elected};

/// The job of all blocks of one kind of ids.
pub(crate) struct ReclaimBlocks {
    term: Arc<Term>,
    kind: IdKind,
    /// Bookies that have deleted what was not published of a block, by the
    /// block's first id: not asked again by this controller.
    cleared: Mutex<HashMap<u64, HashSet<BookieId>>>,
}

impl ReclaimBlocks {
    pub(crate) fn new(term: Arc<Term>, kind: IdKind) -> Self {
        Self { term, kind, cleared: Mutex::default() }
    }
}

#[async_trait]
impl Job for ReclaimBlocks {
    const NAME: &'static str = "reclaim-blocks";

    fn prefix(&self) -> String {
        self.term.options.keys.id_blocks(self.kind)
    }

    async fn run(&self, _key: &Key, value: &KeyValue) -> Result<Next, Stopped> {
        let block = Versioned::<IdBlock>::read(value)?;
        match &block.value.holder {
            Some(holder) => {
                let holder = holder.clone();
                self.release(block, &holder).await
            }
            None => self.reclaim(block).await,
        }
    }
}

impl ReclaimBlocks {
    /// Releases the block when its holder has been gone for the grace period.
    async fn release(&self, block: Versioned<IdBlock>, holder: &Process) -> Result<Next, Stopped> {
        let grace = self.term.options.process_grace;
        match self.term.presence(holder.nonce) {
            // Woken when brokers come or go.
            Presence::Present => return Ok(Next::Wait(None)),
            Presence::Gone(absence) if absence < grace => {
                return Ok(Next::Wait(Some(grace.saturating_sub(absence))));
            }
            Presence::Gone(_) => {}
        }
        if self.is_alive(holder).await? {
            return Ok(Next::Wait(Some(grace.max(Duration::from_secs(1)))));
        }
        let first = block.value.first;
        if run_elected(&self.term, ReleaseBlock { kind: self.kind, block }).await?.is_none() {
            return Ok(Next::Failed);
        }
        self.term.forget(holder.nonce);
        tracing::info!(%holder, first, kind = %self.kind, "released a block of a process that is gone");
        Ok(Next::Done)
    }

    /// Looks at the key itself: what is followed may be late.
    async fn is_alive(&self, holder: &Process) -> Result<bool, Stopped> {
        let key = self.term.options.keys.broker(&holder.broker);
        let broker = view::get::<Broker>(&*self.term.store, &key).await?;
        Ok(broker.is_some_and(|broker| broker.value.process == *holder))
    }

    async fn reclaim(&self, block: Versioned<IdBlock>) -> Result<Next, Stopped> {
        let first = block.value.first;
        if self.kind == IdKind::Ledgers && !self.clear(&block.value).await? {
            return Ok(Next::Failed);
        }
        if run_elected(&self.term, RemoveBlock { kind: self.kind, block }).await?.is_none() {
            return Ok(Next::Failed);
        }
        self.cleared.lock().unwrap_or_else(PoisonError::into_inner).remove(&first);
        metrics::counter!("quire_controller_blocks_reclaimed_total").increment(1);
        Ok(Next::Done)
    }

    /// Deletes what was not published from every bookie of the registry. False
    /// when some bookie did not confirm.
    async fn clear(&self, block: &IdBlock) -> Result<bool, Stopped> {
        let mut published = self.published(block).await?;
        published.extend(self.published(block).await?);
        let ranges = unpublished(block, &published);
        let bookies = self.term.registered().await?;
        let cleared = self.cleared(block.first);
        let left: Vec<BookieId> = bookies.into_iter().filter(|bookie| !cleared.contains(bookie)).collect();
        let asked = left.into_iter().map(|bookie| self.clear_bookie(block.first, bookie, &ranges));
        Ok(join_all(asked).await.into_iter().all(|confirmed| confirmed))
    }

    async fn clear_bookie(&self, block: u64, bookie: BookieId, ranges: &[(LedgerId, LedgerId)]) -> bool {
        for (first, last) in ranges {
            if self.term.bookies.delete(bookie, *first, *last).await.is_err() {
                return false;
            }
        }
        let mut cleared = self.cleared.lock().unwrap_or_else(PoisonError::into_inner);
        cleared.entry(block).or_default().insert(bookie)
    }

    fn cleared(&self, block: u64) -> HashSet<BookieId> {
        let cleared = self.cleared.lock().unwrap_or_else(PoisonError::into_inner);
        cleared.get(&block).cloned().unwrap_or_default()
    }

    /// The ids of the block that have a `ledgers` key.
    async fn published(&self, block: &IdBlock) -> Result<HashSet<u64>, Stopped> {
        let keys = &self.term.options.keys;
        let ids = block.ids();
        let mut published = HashSet::new();
        let mut from = keys.ledger(LedgerId(ids.start));
        loop {
            let page = self.term.store.range(&keys.ledgers(), &from, PAGE_KEYS_MAX, None).await?;
            let found = page.keys.iter().filter_map(|found| match keys.parse(&found.key) {
                Some(Key::Ledger(ledger)) => Some(ledger.0),
                _ => None,
            });
            published.extend(found.filter(|id| ids.contains(id)));
            let last = page.keys.last().filter(|last| page.more && last.key < keys.ledger(LedgerId(ids.end)));
            let Some(last) = last else { return Ok(published) };
            from = format!("{}\0", last.key);
        }
    }
}

/// The ids of the block that are not published, as ranges, both ends included.
fn unpublished(block: &IdBlock, published: &HashSet<u64>) -> Vec<(LedgerId, LedgerId)> {
    let mut ranges: Vec<(LedgerId, LedgerId)> = Vec::new();
    for id in block.ids().filter(|id| !published.contains(id)) {
        match ranges.last_mut() {
            Some((_, last)) if last.0 + 1 == id => *last = LedgerId(id),
            _ => ranges.push((LedgerId(id), LedgerId(id))),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use quire_proto::id::Nonce;

    use super::*;

    #[track_caller]
    fn check(published: &[u64], expected: &[(u64, u64)]) {
        let block = IdBlock { first: 10, count: 5, holder: None, attempt: Nonce::default() };
        let ranges = unpublished(&block, &published.iter().copied().collect());
        let expected: Vec<_> =
            expected.iter().map(|(first, last)| (LedgerId(*first), LedgerId(*last))).collect();
        assert_eq!(ranges, expected);
    }

    #[test]
    fn ranges_leave_out_what_is_published() {
        check(&[], &[(10, 14)]);
        check(&[10, 14], &[(11, 13)]);
        check(&[12], &[(10, 11), (13, 14)]);
        check(&[11, 12, 13], &[(10, 10), (14, 14)]);
        check(&[10, 11, 12, 13, 14], &[]);
        check(&[9, 15], &[(10, 14)]);
    }
}
