//! Logs by `tracing`, on stderr: for people by default, JSON on demand.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;
use crate::failure::Failure;

/// Installs the log of this process.
///
/// # Errors
/// When `filter` is no list of `target=level` directives.
pub(crate) fn install(format: LogFormat, filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::usage(format!("invalid value '{filter}' for --log-level: {error}")).remedy(LEVEL_HELP)
    })?;
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // Where a line cannot be written there is nobody to be told of it, and nothing ends for it.
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => subscriber.with_ansi(colour).with_target(colour).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}

const LEVEL_HELP: &str = "give error, warn, info, debug or trace, or directives such as info,quire_broker=debug, to \
     --log-level, QUIRE_LOG_LEVEL, or log_level in the configuration file";
