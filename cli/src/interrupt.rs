//! SIGINT and SIGTERM: the first asks for an orderly stop, the second is the
//! user's impatience and ends the process.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::failure::{Exit, Failure};

/// A token that the first SIGINT or SIGTERM cancels.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub(crate) fn token() -> Result<CancellationToken, Failure> {
    let install = |kind| {
        signal(kind).map_err(|error| {
            Failure::new(Exit::Failure, anyhow::Error::new(error).context("cannot listen for signals"))
        })
    };
    let mut interrupt = install(SignalKind::interrupt())?;
    let mut terminate = install(SignalKind::terminate())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        cancelled.cancel();
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        std::process::exit(Exit::Interrupted as i32);
    });
    Ok(token)
}
