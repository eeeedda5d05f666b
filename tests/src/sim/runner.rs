//! Runs of many seeds, on all processors.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quire_ledger::fault::Fault;

use super::hits::Hits;
use super::plan::Plan;
use super::trace::Trace;
use super::violation::{Invariant, Violation};
use super::world::{Report, World};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub from: u64,
    pub seeds: u64,
    pub operations: u64,
    /// A fault that is planted in the machines.
    pub fault: Option<Fault>,
    /// Whether the first violation ends it.
    pub stop_at_first: bool,
}

/// What many runs came to.
#[derive(Debug, Default)]
pub struct Summary {
    pub runs: u64,
    pub operations: u64,
    pub acknowledged: u64,
    pub hits: Hits,
    /// The runs that broke a promise, by seed.
    pub failed: Vec<Failed>,
}

/// A run that broke a promise.
#[derive(Clone, Debug)]
pub struct Failed {
    pub seed: u64,
    pub violation: Violation,
    /// The last lines of its trace.
    pub last: String,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, operations: u64, fault: Option<Fault>, trace: Trace) -> Report {
    plant(fault);
    let report = catch_unwind(AssertUnwindSafe(|| World::new(Plan::new(seed, operations), trace).run()));
    plant(None);
    report.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let detail = format!("a machine panicked: {}", text.unwrap_or_default());
        Report {
            seed,
            violation: Some(Violation { invariant: Invariant::Liveness, detail }),
            trace: Trace::default(),
            hits: Hits::default(),
            operations: 0,
            acknowledged: 0,
        }
    })
}

#[cfg(feature = "planted-faults")]
fn plant(fault: Option<Fault>) {
    quire_ledger::fault::plant(fault);
}

#[cfg(not(feature = "planted-faults"))]
fn plant(fault: Option<Fault>) {
    assert!(fault.is_none(), "faults can be planted only with the feature planted-faults");
}

/// Runs many seeds.
#[must_use]
pub fn run_all(batch: Batch) -> Summary {
    let next = AtomicU64::new(batch.from);
    let summary = Mutex::new(Summary::default());
    let end = batch.from + batch.seeds;
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let report = run(seed, batch.operations, batch.fault, Trace::default());
            let Ok(mut summary) = summary.lock() else { return };
            summary.add(report);
            if batch.stop_at_first && !summary.failed.is_empty() {
                next.store(end, Ordering::Relaxed);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut summary = summary.into_inner().unwrap_or_default();
    summary.failed.sort_by_key(|failed| failed.seed);
    summary
}

impl Summary {
    fn add(&mut self, report: Report) {
        self.runs += 1;
        self.operations += report.operations;
        self.acknowledged += report.acknowledged;
        self.hits.add(&report.hits);
        if let Some(violation) = report.violation {
            let last = report.trace.last().to_owned();
            self.failed.push(Failed { seed: report.seed, violation, last });
        }
    }
}
