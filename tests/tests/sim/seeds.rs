//! The promises hold under every kind of trouble, and a seed names a run.

use quire_tests::sim::plan::{Plan, Profile};
use quire_tests::sim::runner::{Batch, run, run_all};
use quire_tests::sim::trace::Trace;

use super::from_environment;

/// What must occur in any thousand runs: a run that passes says nothing of
/// trouble that it never met.
const OCCUR: &[&str] = &[
    "a bit flipped",
    "a block was released",
    "a bookie booted with a mark",
    "a bookie crashed while it booted",
    "a bookie lost power",
    "a bookie paused",
    "a bookie was held for sick",
    "a bookie was struck after it answered",
    "a bookie's power is cut in a commit",
    "a bookie's process died",
    "a boot found damage",
    "a broker and a bookie were parted",
    "a broker crashed",
    "a broker went on after a pause",
    "a certain answer",
    "a creation was refused below a mark",
    "a disk was set back",
    "a leader was challenged",
    "a leader was deposed",
    "a ledger of a released block was reclaimed",
    "a ledger was deleted on a bookie",
    "a ledger was recovered",
    "a link broke",
    "a producer gave a batch up",
    "a producer sent again",
    "a read from bookies",
    "a read from the tail",
    "a recovery was blocked",
    "a replica was distrusted",
    "a replica was given up",
    "a roll found its block released",
    "a roll was wanted",
    "a writer was refused below a mark",
    "an answer to a producer lost",
    "an append came twice",
    "an append was lost",
    "an import was completed",
    "an uncertain answer",
    "everybody fell idle",
    "everything moved again after healing",
    "no ensemble was to be had",
    "targets were named",
    "the store was away",
    "the store: a late transaction applied",
    "the store: a transaction twice",
    "the store: an answer lost",
    "troubles piled up",
];

#[test]
fn every_seed_keeps_every_promise() {
    let seeds = from_environment("QUIRE_SIM_SEEDS", 1_000);
    let from = from_environment("QUIRE_SIM_FROM", 0);
    let batch = Batch { from, seeds, operations: 1_000, fault: None, stop_at_first: false };
    let summary = run_all(batch);
    for failed in &summary.failed {
        println!("seed {} breaks {}\n{}", failed.seed, failed.violation, failed.last);
    }
    let failed: Vec<_> = summary.failed.iter().map(|failed| failed.seed).collect();
    assert!(failed.is_empty(), "seeds that break a promise: {failed:?}");
    assert_eq!((summary.runs, summary.operations), (seeds, seeds * 1_000));
    println!("{}", summary.hits);
    if seeds >= 1_000 {
        let missing: Vec<_> = OCCUR.iter().filter(|name| summary.hits.of(name) == 0).collect();
        assert!(missing.is_empty(), "never occurred: {missing:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    for seed in 0..from_environment("QUIRE_SIM_SEEDS", 1_000).div_ceil(40) {
        let traces = [(); 2].map(|()| run(seed, 1_000, None, Trace::default()).trace);
        assert!(traces[0].text().len() > 10_000, "seed {seed} has a trace");
        if let Some((line, (first, second))) =
            traces[0].text().lines().zip(traces[1].text().lines()).enumerate().find(|(_, (a, b))| a != b)
        {
            panic!("seed {seed} differs in line {line}:\n{first}\n{second}");
        }
        assert_eq!(traces[0].text().len(), traces[1].text().len(), "seed {seed}");
    }
}

#[test]
fn plans_cover_every_setting() {
    let plans: Vec<_> = (0..1_000).map(|seed| Plan::new(seed, 1_000)).collect();
    for replicas in 1..=3 {
        for ack_quorum in 1..=replicas {
            let found = plans.iter().any(|plan| (plan.replicas, plan.ack_quorum) == (replicas, ack_quorum));
            assert!(found, "n = {replicas}, A = {ack_quorum}");
        }
    }
    for profile in [Profile::Mixed, Profile::FrailDisks, Profile::Restarts, Profile::Absences] {
        assert!(plans.iter().filter(|plan| plan.profile == profile).count() > 50, "{profile:?}");
    }
    for brokers in 2..=3 {
        assert!(plans.iter().any(|plan| plan.brokers == brokers && plan.partitions == 2));
    }
}
