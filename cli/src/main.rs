//! `quire`: the server and the commands of operators and users, in one program.
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line: every command, flag and default |
//! | [`settings`] | flag, environment, file, default: which one counts |
//! | [`value`] | the types of arguments: sizes, positions, addresses |
//! | [`command`] | what each command does |
//! | [`output`] | tables and JSON on stdout, notes and progress on stderr |
//! | [`failure`] | what failed, what to do about it, the exit code |
//! | [`logging`] | `tracing` to stderr |
//! | [`interrupt`] | SIGINT and SIGTERM |

mod cli;
mod command;
mod failure;
mod interrupt;
mod logging;
mod output;
mod settings;
mod value;

use std::process::ExitCode;

use clap::FromArgMatches;

use crate::cli::Cli;
use crate::failure::{Exit, Failure};

// The default allocator of glibc costs a third of the throughput when buffers
// of a mebibyte come and go between threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run() {
        Ok(()) => Exit::Success.into(),
        Err(failure) => failure.report(),
    }
}

fn run() -> Result<(), Failure> {
    let matches = settings::load(std::env::args_os().collect(), std::env::vars_os().collect())?;
    let cli = Cli::from_arg_matches(&matches).map_err(Failure::from_clap)?;
    command::run(&cli)
}
