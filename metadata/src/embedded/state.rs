//! The state of the embedded store: keys, revisions, history, leases. Pure: time
//! is a number that is passed in, and changes are prepared first and applied
//! once whoever drives it has made them durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::store::{
    Event, Guard, KeyValue, LeaseId, PAGE_KEYS_MAX, Page, Revision, StoreError, Txn, TxnOutcome, Write,
};

/// How much history is kept for watches and reads of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Revisions, at most.
    pub revisions: usize,
    /// Bytes of keys and values, at most, before and after each change.
    pub bytes: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { revisions: 10_000, bytes: 16 << 20 }
    }
}

/// The whole state of a store.
#[derive(Clone, Debug)]
pub struct State {
    revision: Revision,
    keys: BTreeMap<String, KeyValue>,
    history: History,
    leases: Leases,
}

/// One key before and after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Delta {
    key: String,
    before: Option<KeyValue>,
    after: Option<KeyValue>,
}

/// All that changes at one revision. Prepared by a [`Stage`], and applied in
/// the order of preparation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    revision: Revision,
    deltas: Vec<Delta>,
}

impl Change {
    /// The revision of the change.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// Every key that changes, with what it is afterwards; none: deleted.
    pub fn keys(&self) -> impl Iterator<Item = (&str, Option<&KeyValue>)> {
        self.deltas.iter().map(|delta| (&*delta.key, delta.after.as_ref()))
    }
}

impl State {
    /// An empty store, at revision 1.
    #[must_use]
    pub fn new(retention: Retention) -> Self {
        Self::restore(Revision(1), BTreeMap::new(), retention)
    }

    /// A store with these keys, of this revision. The past is not known.
    #[must_use]
    pub fn restore(revision: Revision, keys: BTreeMap<String, KeyValue>, retention: Retention) -> Self {
        Self { revision, keys, history: History::new(revision, retention), leases: Leases::default() }
    }

    /// The present revision.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// The key, if it exists.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.keys.get(key)
    }

    /// A page of a range: see [`crate::store::Store::range`].
    ///
    /// # Errors
    /// `Compacted` or `Invalid`.
    pub fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        if limit == 0 {
            return Err(StoreError::Invalid("a range with limit 0".to_owned()));
        }
        let revision = at.unwrap_or(self.revision);
        let then = self.history.overlay(prefix, revision, self.revision)?;
        let limit = limit.min(PAGE_KEYS_MAX);
        let start = if from > prefix { from } else { prefix };
        let now = prefixed(&self.keys, prefix, start).filter(|(key, _)| !then.contains_key(key.as_str()));
        let past = then.iter().filter(|(key, _)| **key >= start).filter_map(|(_, value)| *value);
        let mut keys: Vec<_> = now.map(|(_, value)| value).take(limit + 1).chain(past).cloned().collect();
        keys.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let more = keys.len() > limit;
        keys.truncate(limit);
        Ok(Page { keys, revision, more })
    }

    /// Events of keys that start with `prefix`, from revision `from` on, of at
    /// most `limit` revisions that are looked through; and the revision to go
    /// on from.
    ///
    /// # Errors
    /// `Compacted`.
    pub fn events(
        &self,
        prefix: &str,
        from: Revision,
        limit: usize,
    ) -> Result<(Vec<Vec<Event>>, Revision), StoreError> {
        self.history.events(prefix, from, limit)
    }

    /// The first revision whose events are kept.
    #[must_use]
    pub fn first_kept(&self) -> Revision {
        self.history.first_kept()
    }

    /// Runs a transaction at once, for a store that has nothing to make durable.
    ///
    /// # Errors
    /// `Invalid` or `LeaseExpired`.
    pub fn transact(&mut self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        let mut stage = Stage::default();
        let outcome = stage.transact(self, txn)?;
        self.apply_all(stage);
        Ok(outcome)
    }

    /// Applies all that was prepared.
    pub fn apply_all(&mut self, stage: Stage) {
        stage.changes.into_iter().for_each(|change| self.apply(change));
    }

    fn apply(&mut self, change: Change) {
        debug_assert_eq!(change.revision.0, self.revision.0 + 1, "changes are applied in their order");
        self.revision = change.revision;
        for Delta { key, before, after } in &change.deltas {
            self.leases.moved(key, before.as_ref(), after.as_ref());
            match after {
                Some(value) => self.keys.insert(key.clone(), value.clone()),
                None => self.keys.remove(key),
            };
        }
        self.history.push(change);
    }

    /// Grants a lease that lives until `ttl` after `now`.
    pub fn grant(&mut self, ttl: Duration, now: Duration) -> LeaseId {
        self.leases.grant(ttl, now)
    }

    /// Starts the lease's time anew.
    ///
    /// # Errors
    /// `LeaseExpired` when it has ended.
    pub fn keep_alive(&mut self, lease: LeaseId, now: Duration) -> Result<(), StoreError> {
        self.leases.keep_alive(lease, now)
    }

    /// Leases whose time has run out at `now`: to be ended by
    /// [`Stage::end_lease`].
    #[must_use]
    pub fn expired(&self, now: Duration) -> Vec<LeaseId> {
        self.leases.expired(now)
    }

    /// When the next lease runs out, if none is kept alive.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        self.leases.held.values().map(|lease| lease.deadline).min()
    }

    /// Forgets a lease whose keys are gone.
    pub fn forget_lease(&mut self, lease: LeaseId) {
        self.leases.held.remove(&lease);
    }
}

/// Changes that are prepared but not applied: each sees those before it.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    changes: Vec<Change>,
    staged: BTreeMap<String, Option<KeyValue>>,
    ended: BTreeSet<LeaseId>,
}

impl Stage {
    /// What was prepared, in order.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Prepares a transaction.
    ///
    /// # Errors
    /// `Invalid` or `LeaseExpired`.
    pub fn transact(&mut self, state: &State, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        txn.check()?;
        let revision = self.revision(state);
        if !txn.guards.iter().all(|guard| self.holds(state, guard)) {
            return Ok(TxnOutcome::Refused(revision));
        }
        let next = Revision(revision.0 + 1);
        let mut deltas = Vec::new();
        for write in &txn.writes {
            self.prepare(state, write, next, &mut deltas)?;
        }
        if deltas.is_empty() {
            return Ok(TxnOutcome::Applied(revision));
        }
        self.stage(Change { revision: next, deltas });
        Ok(TxnOutcome::Applied(next))
    }

    /// Prepares the end of a lease: its keys are deleted.
    ///
    /// # Errors
    /// `LeaseExpired` when it has ended.
    pub fn end_lease(&mut self, state: &State, lease: LeaseId) -> Result<(), StoreError> {
        self.check_lease(state, lease)?;
        self.ended.insert(lease);
        let revision = Revision(self.revision(state).0 + 1);
        let held = state.leases.held.get(&lease).map(|lease| lease.keys.iter()).into_iter().flatten();
        // Also keys that were bound to it in this stage.
        let candidates: BTreeSet<&String> = held.chain(self.staged.keys()).collect();
        let deltas: Vec<_> = candidates
            .into_iter()
            .filter_map(|key| self.get(state, key))
            .filter(|found| found.lease == Some(lease))
            .map(delete)
            .collect();
        if !deltas.is_empty() {
            self.stage(Change { revision, deltas });
        }
        Ok(())
    }

    /// The deletion of these keys, in one change.
    #[must_use]
    pub fn deleting(state: &State, keys: Vec<String>) -> Self {
        let found = keys.iter().filter_map(|key| state.keys.get(key));
        let deltas: Vec<_> = found.map(delete).collect();
        let mut stage = Self::default();
        if !deltas.is_empty() {
            stage.stage(Change { revision: Revision(state.revision.0 + 1), deltas });
        }
        stage
    }

    fn revision(&self, state: &State) -> Revision {
        self.changes.last().map_or(state.revision, |last| last.revision)
    }

    fn get<'a>(&'a self, state: &'a State, key: &str) -> Option<&'a KeyValue> {
        match self.staged.get(key) {
            Some(staged) => staged.as_ref(),
            None => state.keys.get(key),
        }
    }

    fn holds(&self, state: &State, guard: &Guard) -> bool {
        match guard {
            Guard::Absent(key) => self.get(state, key).is_none(),
            Guard::Present(key) => self.get(state, key).is_some(),
            Guard::Unchanged(key, revision) => {
                self.get(state, key).is_some_and(|found| found.mod_revision == *revision)
            }
            Guard::Equals(key, value) => self.get(state, key).is_some_and(|found| found.value == *value),
        }
    }

    fn prepare(
        &self,
        state: &State,
        write: &Write,
        revision: Revision,
        deltas: &mut Vec<Delta>,
    ) -> Result<(), StoreError> {
        match write {
            Write::Put { key, value, lease } => {
                if let Some(lease) = lease {
                    self.check_lease(state, *lease)?;
                }
                let before = self.get(state, key).cloned();
                let after = put(key, value, *lease, revision, before.as_ref());
                deltas.push(Delta { key: key.clone(), before, after: Some(after) });
            }
            Write::Delete { key } => deltas.extend(self.get(state, key).map(delete)),
            Write::DeletePrefix { prefix } => {
                let live = prefixed(&state.keys, prefix, prefix).map(|(key, _)| key);
                let staged = prefixed(&self.staged, prefix, prefix).map(|(key, _)| key);
                let keys: BTreeSet<&String> = live.chain(staged).collect();
                deltas.extend(keys.into_iter().filter_map(|key| self.get(state, key)).map(delete));
            }
        }
        Ok(())
    }

    fn check_lease(&self, state: &State, lease: LeaseId) -> Result<(), StoreError> {
        let alive = state.leases.held.contains_key(&lease) && !self.ended.contains(&lease);
        if alive { Ok(()) } else { Err(StoreError::LeaseExpired) }
    }

    fn stage(&mut self, change: Change) {
        for delta in &change.deltas {
            self.staged.insert(delta.key.clone(), delta.after.clone());
        }
        self.changes.push(change);
    }
}

fn delete(found: &KeyValue) -> Delta {
    Delta { key: found.key.clone(), before: Some(found.clone()), after: None }
}

fn put(
    key: &str,
    value: &Bytes,
    lease: Option<LeaseId>,
    at: Revision,
    before: Option<&KeyValue>,
) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: value.clone(),
        create_revision: before.map_or(at, |before| before.create_revision),
        mod_revision: at,
        lease,
    }
}

fn prefixed<'a, V>(
    map: &'a BTreeMap<String, V>,
    prefix: &'a str,
    from: &str,
) -> impl Iterator<Item = (&'a String, &'a V)> {
    map.range::<str, _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded))
        .take_while(move |(key, _)| key.starts_with(prefix))
}

/// The changes of the latest revisions, without a gap up to the present.
#[derive(Clone, Debug)]
struct History {
    changes: VecDeque<Change>,
    bytes: usize,
    retention: Retention,
    /// The last revision whose change is not kept.
    compacted: Revision,
}

impl History {
    const fn new(present: Revision, retention: Retention) -> Self {
        Self { changes: VecDeque::new(), bytes: 0, retention, compacted: present }
    }

    const fn first_kept(&self) -> Revision {
        Revision(self.compacted.0 + 1)
    }

    fn push(&mut self, change: Change) {
        self.bytes += size(&change);
        self.changes.push_back(change);
        while self.changes.len() > self.retention.revisions || self.bytes > self.retention.bytes {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.bytes -= size(&oldest);
            self.compacted = oldest.revision;
        }
    }

    /// Changes from this revision on.
    fn since(&self, from: Revision) -> Result<impl Iterator<Item = &Change>, StoreError> {
        let skip = from.0.checked_sub(self.first_kept().0);
        let skip = skip.ok_or_else(|| StoreError::Compacted(self.first_kept()))?;
        Ok(self.changes.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)))
    }

    fn events(
        &self,
        prefix: &str,
        from: Revision,
        limit: usize,
    ) -> Result<(Vec<Vec<Event>>, Revision), StoreError> {
        let mut batches = Vec::new();
        let mut next = from;
        for change in self.since(from)?.take(limit) {
            next = Revision(change.revision.0 + 1);
            let events: Vec<_> = change
                .deltas
                .iter()
                .filter(|delta| delta.key.starts_with(prefix))
                .map(|delta| event(delta, change.revision))
                .collect();
            if !events.is_empty() {
                batches.push(events);
            }
        }
        Ok((batches, next))
    }

    /// Keys that changed after a revision, as they were then.
    fn overlay(
        &self,
        prefix: &str,
        then: Revision,
        present: Revision,
    ) -> Result<BTreeMap<&str, Option<&KeyValue>>, StoreError> {
        if then > present {
            let (then, present) = (then.0, present.0);
            return Err(StoreError::Invalid(format!("a read at revision {then}, the store is at {present}")));
        }
        let mut overlay = BTreeMap::new();
        for delta in self.since(Revision(then.0 + 1))?.flat_map(|change| &change.deltas) {
            if delta.key.starts_with(prefix) {
                overlay.entry(&*delta.key).or_insert(delta.before.as_ref());
            }
        }
        Ok(overlay)
    }
}

fn event(delta: &Delta, revision: Revision) -> Event {
    match &delta.after {
        Some(after) => Event::Put(after.clone()),
        None => Event::Delete { key: delta.key.clone(), revision },
    }
}

fn size(change: &Change) -> usize {
    let of = |value: &Option<KeyValue>| value.as_ref().map_or(0, |value| value.key.len() + value.value.len());
    let overhead = size_of::<Delta>();
    change.deltas.iter().map(|delta| overhead + delta.key.len() + of(&delta.before) + of(&delta.after)).sum()
}

#[derive(Clone, Debug, Default)]
struct Leases {
    held: BTreeMap<LeaseId, Lease>,
    last: u64,
}

#[derive(Clone, Debug)]
struct Lease {
    ttl: Duration,
    deadline: Duration,
    keys: BTreeSet<String>,
}

impl Leases {
    fn grant(&mut self, ttl: Duration, now: Duration) -> LeaseId {
        self.last += 1;
        let ttl = whole_seconds(ttl);
        let lease = Lease { ttl, deadline: now.saturating_add(ttl), keys: BTreeSet::new() };
        self.held.insert(LeaseId(self.last), lease);
        LeaseId(self.last)
    }

    fn keep_alive(&mut self, lease: LeaseId, now: Duration) -> Result<(), StoreError> {
        let lease = self.held.get_mut(&lease).ok_or(StoreError::LeaseExpired)?;
        lease.deadline = now.saturating_add(lease.ttl);
        Ok(())
    }

    fn expired(&self, now: Duration) -> Vec<LeaseId> {
        self.held.iter().filter(|(_, lease)| lease.deadline <= now).map(|(id, _)| *id).collect()
    }

    fn moved(&mut self, key: &str, before: Option<&KeyValue>, after: Option<&KeyValue>) {
        let [before, after] = [before, after].map(|value| value.and_then(|value| value.lease));
        if let Some(lease) = before.and_then(|lease| self.held.get_mut(&lease)) {
            lease.keys.remove(key);
        }
        if let Some(lease) = after.and_then(|lease| self.held.get_mut(&lease)) {
            lease.keys.insert(key.to_owned());
        }
    }
}

/// Leases count in whole seconds, rounded up, at least one.
fn whole_seconds(ttl: Duration) -> Duration {
    let up = u64::from(ttl.subsec_nanos() > 0);
    Duration::from_secs(ttl.as_secs().saturating_add(up).max(1))
}
