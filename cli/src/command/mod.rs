//! What each command does.
//!
//! - [`standalone`]: a whole server in one process.
//! - [`topic`], [`segment`], [`ledger`]: what there is, and changing it.
//! - [`produce`], [`consume`]: records from stdin and to stdout.
//! - [`mod@bench`][]: measurements.
//! - [`completion`]: for shells.
//!
//! Shared: [`connect`] (the way to the brokers), [`batching`] (producer
//! options), [`pace`] (when records are due).

mod batching;
mod bench;
mod completion;
mod connect;
mod consume;
mod ledger;
mod pace;
mod produce;
mod segment;
mod standalone;
mod topic;

use crate::cli::{Cli, Command};
use crate::failure::{Exit, Failure};
use crate::logging;

/// Runs the command that was given.
///
/// # Errors
/// What the command failed of.
pub(crate) fn run(cli: &Cli) -> Result<(), Failure> {
    let common = &cli.common;
    if let Command::Completion(arguments) = &cli.command {
        return completion::run(arguments);
    }
    logging::install(common.log, &common.log_level)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Failure::new(Exit::Failure, anyhow::Error::new(error).context("cannot start the async runtime"))
    })?;
    let result = runtime.block_on(async {
        match &cli.command {
            Command::Standalone(arguments) => standalone::run(arguments, common).await,
            Command::Topic(command) => topic::run(command, common).await,
            Command::Produce(arguments) => produce::run(arguments, common).await,
            Command::Consume(arguments) => consume::run(arguments, common).await,
            Command::Segment(command) => segment::run(command, common).await,
            Command::Ledger(command) => ledger::run(command, common).await,
            Command::Bench(command) => bench::run(command, common).await,
            Command::Completion(_) => Ok(()),
        }
    });
    // What still runs then has nothing left to do for anyone.
    runtime.shutdown_background();
    result
}
