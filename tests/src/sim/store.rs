//! The metadata store of a run: the state of the embedded backend, reached
//! over a network that loses requests and answers.

use std::collections::BTreeMap;

use quire_metadata::embedded::State;
use quire_metadata::embedded::state::{Retention, Stage};
use quire_metadata::store::{Event, StoreError, Txn, TxnOutcome};

use super::gate::{Answer, Question};
use super::plan::{Plan, Trouble};
use super::random::Random;

/// The store.
#[derive(Debug)]
pub struct SimStore {
    state: State,
    /// Whether it cannot be reached at present.
    pub away: bool,
    /// Transactions by kind, for the trace.
    pub applied: BTreeMap<&'static str, u64>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered(Result<Answer, StoreError>),
    /// Its answer is lost: the asker gives up after a while, and does not know.
    Lost,
    /// As that, and it applies later, perhaps after the asker gave up.
    LostAndLate(Txn),
    /// It is answered, and applies a second time later.
    Twice(Result<Answer, StoreError>, Txn),
}

/// A request's fate and what changed at once.
pub type Served = (Fate, Vec<Event>);

impl Default for SimStore {
    /// An empty store.
    fn default() -> Self {
        Self { state: State::new(Retention::default()), away: false, applied: BTreeMap::new() }
    }
}

impl SimStore {
    /// The state, for looking without asking.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// A request arrives.
    pub fn serve(&mut self, question: Question, plan: &Plan, random: &mut Random) -> Served {
        if self.away {
            let fate = match question {
                // It was turned away, or its answer never came.
                Question::Transact(_) if random.chance(300) => Fate::Lost,
                _ => Fate::Answered(Err(StoreError::Unavailable("the store is away".to_owned()))),
            };
            return (fate, Vec::new());
        }
        match question {
            Question::Get(key) => {
                (Fate::Answered(Ok(Answer::Get(self.state.get(&key).cloned()))), Vec::new())
            }
            Question::Range { prefix, from, limit, revision } => {
                let page = self.state.range(&prefix, &from, limit, revision);
                (Fate::Answered(page.map(Answer::Range)), Vec::new())
            }
            Question::Transact(txn) => self.serve_transaction(txn, plan, random),
        }
    }

    fn serve_transaction(&mut self, txn: Txn, plan: &Plan, random: &mut Random) -> Served {
        let strikes = |trouble, random: &mut Random| random.chance(plan.weight(trouble) * 2);
        if strikes(Trouble::StoreUnknownNotApplied, random) {
            return (Fate::Lost, Vec::new());
        }
        if strikes(Trouble::StoreLate, random) {
            return (Fate::LostAndLate(txn), Vec::new());
        }
        let (outcome, changes) = self.apply(&txn);
        if strikes(Trouble::StoreUnknownApplied, random) {
            return (Fate::Lost, changes);
        }
        if strikes(Trouble::StoreTwice, random) {
            return (Fate::Twice(outcome.map(Answer::Transact), txn), changes);
        }
        (Fate::Answered(outcome.map(Answer::Transact)), changes)
    }

    /// Runs a transaction, and tells what changed.
    pub fn apply(&mut self, txn: &Txn) -> (Result<TxnOutcome, StoreError>, Vec<Event>) {
        let mut stage = Stage::default();
        let outcome = stage.transact(&self.state, txn);
        let changes = stage
            .changes()
            .iter()
            .flat_map(|change| {
                let revision = change.revision();
                change.keys().map(move |(key, after)| match after {
                    Some(after) => Event::Put(after.clone()),
                    None => Event::Delete { key: key.to_owned(), revision },
                })
            })
            .collect();
        self.state.apply_all(stage);
        (outcome, changes)
    }
}
