//! Runs the simulator by hand.
#![expect(clippy::print_stdout, reason = "a program's output")]

use std::process::ExitCode;

use clap::Parser;
use quire_ledger::fault::Fault;
use quire_tests::sim::runner::{Batch, run, run_all};
use quire_tests::sim::trace::Trace;

/// Runs the shipped machines under virtual time, with faults, and checks every
/// promise. The same seed gives the same run.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Steps of workload and trouble of each run.
    #[arg(long, default_value_t = 1000)]
    operations: u64,
    /// A fault to plant, by its name; needs the feature planted-faults.
    #[arg(long)]
    fault: Option<String>,
    /// Prints the whole trace of each run, while it runs.
    #[arg(long)]
    trace: bool,
    /// Prints how often each fault and branch occurred.
    #[arg(long)]
    hits: bool,
    /// Stops at the first broken promise.
    #[arg(long)]
    first: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let fault = match arguments.fault.as_deref().map(fault_named) {
        Some(None) => {
            println!("there is no such fault; there are: {:?}", Fault::ALL);
            return ExitCode::FAILURE;
        }
        found => found.flatten(),
    };
    if arguments.trace {
        for seed in arguments.from..arguments.from + arguments.seeds {
            let report = run(seed, arguments.operations, fault, Trace::echoing());
            println!("seed {seed}: {:?}", report.violation);
        }
        return ExitCode::SUCCESS;
    }
    let batch = Batch {
        from: arguments.from,
        seeds: arguments.seeds,
        operations: arguments.operations,
        fault,
        stop_at_first: arguments.first,
    };
    let summary = run_all(batch);
    for failed in &summary.failed {
        println!("seed {} breaks {}\n{}", failed.seed, failed.violation, failed.last);
    }
    if arguments.hits {
        println!("{}", summary.hits);
    }
    println!(
        "{} runs, {} operations, {} batches acknowledged, {} runs broke a promise",
        summary.runs,
        summary.operations,
        summary.acknowledged,
        summary.failed.len()
    );
    if summary.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fault_named(name: &str) -> Option<Fault> {
    Fault::ALL.into_iter().find(|fault| format!("{fault:?}") == name)
}
