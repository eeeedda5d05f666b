//! Each rule that is broken on purpose is found.

use quire_ledger::fault::Fault;
use quire_tests::sim::runner::{Batch, run_all};

/// Every fault must be found within this many seeds.
const SEEDS: u64 = 1_000;

#[expect(clippy::print_stdout, reason = "which seed found it")]
#[track_caller]
fn check(fault: Fault) {
    let batch = Batch { from: 0, seeds: SEEDS, operations: 1_000, fault: Some(fault), stop_at_first: true };
    let summary = run_all(batch);
    let Some(found) = summary.failed.first() else {
        panic!("{fault:?} was not found in {SEEDS} seeds:\n{}", summary.hits);
    };
    println!("{fault:?}: seed {} breaks {}", found.seed, found.violation);
}

macro_rules! found {
    ($($name:ident: $fault:ident,)*) => {
        $(
            #[test]
            fn $name() {
                check(Fault::$fault);
            }
        )*

        #[test]
        fn every_fault_has_its_case() {
            let cases = [$(Fault::$fault),*];
            let missing: Vec<_> = Fault::ALL.iter().filter(|fault| !cases.contains(fault)).collect();
            assert!(missing.is_empty(), "{missing:?}");
        }
    };
}

found! {
    acknowledging_a_pending_duplicate: DuplicateAcknowledgedWhilePending,
    a_rolls_end_beyond_committed: RollEndBeyondCommitted,
    acknowledging_before_the_roll_has_applied: AckBeforeRollApplied,
    acknowledging_after_a_roll_was_issued: AckAfterRollIssued,
    a_snapshot_of_uncommitted_entries: SnapshotOfUncommitted,
    state_rebuilt_beyond_the_end: StateRebuiltBeyondEnd,
    an_epoch_resumed: EpochResumed,
    fewer_fences: FewerFences,
    a_fence_that_is_not_durable: FenceNotDurable,
    publishing_from_a_released_block: PublishFromReleasedBlock,
    no_mark: NoMark,
    no_bar: NoBar,
    a_bar_judged_by_holdings: BarByHoldings,
    an_uncertain_answer_counted: UncertainCounted,
    create_clearing_a_mark: CreateClearsMark,
    a_mark_that_is_cleared: MarkCleared,
    a_seal_below_the_greatest_length: SealBelowGreatest,
    an_import_target_counted: ImportTargetCounted,
    a_naming_transaction_without_its_guards: NamingWithoutGuards,
    a_boot_that_continues_a_file: BootContinuesFile,
    unsynced_bytes_counted_after_a_restart: UnsyncedCounted,
}
