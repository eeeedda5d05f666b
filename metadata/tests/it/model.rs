//! The state against a naive model that keeps a copy of everything at each
//! revision.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_metadata::embedded::State;
use quire_metadata::embedded::state::{Retention, Stage};
use quire_metadata::store::{Event, Guard, KeyValue, LeaseId, Revision, StoreError, Txn, TxnOutcome, Write};

type Snapshot = BTreeMap<String, KeyValue>;

/// Index = revision; 0 stands for the time before the first.
struct Model {
    snapshots: Vec<Snapshot>,
    leases: BTreeMap<LeaseId, Duration>,
}

const TTL: Duration = Duration::from_secs(3);

impl Model {
    fn now(&self) -> &Snapshot {
        self.snapshots.last().unwrap()
    }

    fn revision(&self) -> Revision {
        Revision(self.snapshots.len() as u64 - 1)
    }

    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::Absent(key) => !self.now().contains_key(key),
            Guard::Present(key) => self.now().contains_key(key),
            Guard::Unchanged(key, at) => self.now().get(key).is_some_and(|found| found.mod_revision == *at),
            Guard::Equals(key, value) => self.now().get(key).is_some_and(|found| found.value == value),
        }
    }

    fn transact(&mut self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        txn.check()?;
        if !txn.guards.iter().all(|guard| self.holds(guard)) {
            return Ok(TxnOutcome::Refused(self.revision()));
        }
        let next = Revision(self.revision().0 + 1);
        let mut snapshot = self.now().clone();
        let mut changed = false;
        for write in &txn.writes {
            match write {
                Write::Put { key, value, lease } => {
                    if lease.is_some_and(|lease| !self.leases.contains_key(&lease)) {
                        return Err(StoreError::LeaseExpired);
                    }
                    let create_revision = snapshot.get(key).map_or(next, |found| found.create_revision);
                    let found = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision,
                        mod_revision: next,
                        lease: *lease,
                    };
                    snapshot.insert(key.clone(), found);
                    changed = true;
                }
                Write::Delete { key } => changed |= snapshot.remove(key).is_some(),
                Write::DeletePrefix { prefix } => {
                    let before = snapshot.len();
                    snapshot.retain(|key, _| !key.starts_with(prefix));
                    changed |= snapshot.len() != before;
                }
            }
        }
        if changed {
            self.snapshots.push(snapshot);
        }
        Ok(TxnOutcome::Applied(self.revision()))
    }

    fn end_lease(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
        let mut snapshot = self.now().clone();
        snapshot.retain(|_, found| found.lease != Some(lease));
        if snapshot.len() != self.now().len() {
            self.snapshots.push(snapshot);
        }
    }

    fn events(&self, prefix: &str, from: Revision) -> Vec<Vec<Event>> {
        let at = |revision: u64| &self.snapshots[usize::try_from(revision).unwrap()];
        (from.0..=self.revision().0)
            .map(|revision| {
                let (before, after) = (at(revision - 1), at(revision));
                let puts = after.values().filter(|found| found.mod_revision.0 == revision);
                let gone = before.keys().filter(|key| !after.contains_key(*key));
                let gone = gone.map(|key| Event::Delete { key: key.clone(), revision: Revision(revision) });
                let mut events: Vec<_> = puts.cloned().map(Event::Put).chain(gone).collect();
                events.retain(|event| key_of(event).starts_with(prefix));
                sorted(events)
            })
            .filter(|events| !events.is_empty())
            .collect()
    }
}

fn key_of(event: &Event) -> &str {
    match event {
        Event::Put(found) => &found.key,
        Event::Delete { key, .. } => key,
    }
}

fn sorted(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by(|a, b| key_of(a).cmp(key_of(b)));
    events
}

#[derive(Clone, Debug)]
enum Step {
    Transact(Txn),
    Grant,
    KeepAlive(LeaseId),
    Pass(Duration),
    Revoke(LeaseId),
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]", "[ab]/[abc]", "a/b/[ab]"]
}

fn any_value() -> impl Strategy<Value = bytes::Bytes> {
    "[xyz]{0,2}".prop_map(bytes::Bytes::from)
}

fn lease() -> impl Strategy<Value = LeaseId> {
    (1..6_u64).prop_map(LeaseId)
}

fn txn() -> impl Strategy<Value = Txn> {
    let guard = prop_oneof![
        key().prop_map(Guard::Absent),
        key().prop_map(Guard::Present),
        (key(), 0..40_u64).prop_map(|(key, at)| Guard::Unchanged(key, Revision(at))),
        (key(), any_value()).prop_map(|(key, value)| Guard::Equals(key, value)),
    ];
    let write = prop_oneof![
        4 => (key(), any_value(), proptest::option::of(lease()))
            .prop_map(|(key, value, lease)| Write::Put { key, value, lease }),
        2 => key().prop_map(|key| Write::Delete { key }),
        1 => key().prop_map(|prefix| Write::DeletePrefix { prefix }),
    ];
    (vec(guard, 0..2), vec(write, 0..4)).prop_map(|(guards, writes)| Txn { guards, writes })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => txn().prop_map(Step::Transact),
        2 => Just(Step::Grant),
        1 => lease().prop_map(Step::KeepAlive),
        1 => (0..2_000_u64).prop_map(|ms| Step::Pass(Duration::from_millis(ms))),
        1 => lease().prop_map(Step::Revoke),
    ]
}

/// The state, driven as a store drives it.
struct Driven {
    state: State,
    now: Duration,
}

impl Driven {
    fn end_lease(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let mut stage = Stage::default();
        stage.end_lease(&self.state, lease)?;
        self.state.apply_all(stage);
        self.state.forget_lease(lease);
        Ok(())
    }
}

fn compare_step(model: &mut Model, driven: &mut Driven, step: &Step) -> Result<(), TestCaseError> {
    match step {
        Step::Transact(txn) => prop_assert_eq!(model.transact(txn), driven.state.transact(txn)),
        Step::Grant => {
            let lease = driven.state.grant(TTL, driven.now);
            model.leases.insert(lease, driven.now + TTL);
        }
        Step::KeepAlive(lease) => {
            let expected = model.leases.get_mut(lease).map(|deadline| *deadline = driven.now + TTL);
            prop_assert_eq!(expected.is_some(), driven.state.keep_alive(*lease, driven.now).is_ok());
        }
        Step::Pass(by) => {
            driven.now += *by;
            for lease in driven.state.expired(driven.now) {
                prop_assert!(model.leases[&lease] <= driven.now);
                prop_assert!(driven.end_lease(lease).is_ok());
                model.end_lease(lease);
            }
            prop_assert!(model.leases.values().all(|deadline| *deadline > driven.now));
        }
        Step::Revoke(lease) => {
            let alive = model.leases.contains_key(lease);
            prop_assert_eq!(driven.end_lease(*lease).is_ok(), alive);
            if alive {
                model.end_lease(*lease);
            }
        }
    }
    Ok(())
}

fn compare_past(model: &Model, state: &State, prefix: &str, limit: usize) -> Result<(), TestCaseError> {
    for revision in 1..model.snapshots.len() {
        let at = Revision(revision as u64);
        let kept = at.0 + 1 >= state.first_kept().0;
        let page = state.range(prefix, "", limit, Some(at));
        prop_assert_eq!(page.is_ok(), kept);
        if let Ok(page) = page {
            let all: Vec<_> =
                model.snapshots[revision].values().filter(|found| found.key.starts_with(prefix)).collect();
            prop_assert_eq!(page.keys.iter().collect::<Vec<_>>(), &all[..all.len().min(limit)]);
            prop_assert_eq!((page.more, page.revision), (all.len() > limit, at));
        }
        match state.events(prefix, at, usize::MAX) {
            Ok((events, next)) => {
                prop_assert!(at >= state.first_kept());
                prop_assert_eq!(next, Revision(state.revision().0 + 1));
                let events: Vec<_> = events.into_iter().map(sorted).collect();
                prop_assert_eq!(events, model.events(prefix, at));
            }
            Err(error) => {
                prop_assert!(at < state.first_kept());
                prop_assert_eq!(error, StoreError::Compacted(state.first_kept()));
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_state_is_as_the_model_says(
        steps in vec(step(), 1..60),
        revisions in 1..40_usize,
        prefix in "[ab]?/?",
        limit in 1..5_usize,
    ) {
        let mut model = Model { snapshots: vec![Snapshot::new(); 2], leases: BTreeMap::new() };
        let state = State::new(Retention { revisions, bytes: 1 << 20 });
        let mut driven = Driven { state, now: Duration::ZERO };
        for step in &steps {
            compare_step(&mut model, &mut driven, step)?;
            prop_assert_eq!(model.revision(), driven.state.revision());
        }
        for (key, found) in model.now() {
            prop_assert_eq!(driven.state.get(key), Some(found));
        }
        compare_past(&model, &driven.state, &prefix, limit)?;
    }

    /// Changes prepared together are those that one after another give.
    #[test]
    fn staging_together_changes_nothing(txns in vec(txn(), 1..20), leases in 0..4_u64, ended in lease()) {
        let mut one = State::new(Retention::default());
        (0..leases).for_each(|_| { one.grant(TTL, Duration::ZERO); });
        let mut other = one.clone();
        let mut stage = Stage::default();
        for (i, txn) in txns.iter().enumerate() {
            if i == txns.len() / 2 {
                let mut alone = Stage::default();
                let ends = alone.end_lease(&one, ended);
                prop_assert_eq!(&ends, &stage.end_lease(&other, ended));
                one.apply_all(alone);
                if ends.is_ok() {
                    one.forget_lease(ended);
                }
            }
            prop_assert_eq!(one.transact(txn), stage.transact(&other, txn));
        }
        other.apply_all(stage);
        other.forget_lease(ended);
        prop_assert_eq!(one.range("", "", 1_000, None), other.range("", "", 1_000, None));
        prop_assert_eq!(one.events("", Revision(2), 1_000), other.events("", Revision(2), 1_000));
    }
}
