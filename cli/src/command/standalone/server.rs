//! The server that the arguments ask for, and how it is.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quire_bookie::{Bookie, Health as BookieHealth};
use quire_broker::Broker;
use quire_cli::standalone::{self, Error, Options, Storage};
use quire_metadata::embedded::OpenError;
use quire_metadata::key::Keys;

use super::descriptors;
use super::http::Health;
use crate::cli::Standalone;
use crate::failure::{Exit, Failure};
use crate::value::ByteSize;

/// Starts it. `address` is where clients reach the broker.
///
/// # Errors
/// With what was tried and what to do.
pub(super) async fn start(
    arguments: &Standalone,
    address: String,
) -> Result<standalone::Standalone, Failure> {
    check(arguments)?;
    let options = Options { bookie: bookie_options(arguments), broker: broker_options(arguments, address) };
    let started = async {
        let storage = Storage::open(&arguments.data).await?;
        Box::pin(standalone::Standalone::start(options, storage)).await
    };
    started.await.map_err(|error| failure(arguments, error))
}

/// Refuses what does not go together before anything is made on disk.
fn check(arguments: &Standalone) -> Result<(), Failure> {
    let tuning = &arguments.tuning;
    Keys::new(&arguments.cluster).map_err(|error| Failure::usage(format!("--cluster: {error}")))?;
    let (memory, file) = (tuning.memory_bytes.bytes(), tuning.bookie_file_bytes.bytes());
    if let Some(tail) = tuning.tail_cache_bytes.map(ByteSize::bytes).filter(|tail| *tail > memory) {
        let text = format!(
            "--tail-cache-bytes of {tail} bytes is part of --memory-bytes, {memory} bytes, and cannot be above it"
        );
        return Err(Failure::usage(text));
    }
    if !(1 << 20..=1 << 32).contains(&file) || !file.is_multiple_of(64 << 10) {
        let text = format!("--bookie-file-bytes of {file} bytes: it must be 1MiB to 4GiB, in whole 64KiB");
        return Err(Failure::usage(text));
    }
    if tuning.bookie_low_water > tuning.bookie_high_water {
        let (low, high) = (tuning.bookie_low_water, tuning.bookie_high_water);
        let text =
            format!("--bookie-low-water of {low} percent is above --bookie-high-water, {high} percent");
        return Err(Failure::usage(text));
    }
    Ok(())
}

fn bookie_options(arguments: &Standalone) -> quire_bookie::Options {
    let tuning = &arguments.tuning;
    quire_bookie::Options {
        file_bytes: tuning.bookie_file_bytes.bytes(),
        cache_bytes: tuning.bookie_cache_bytes.bytes(),
        tail_bytes: tuning.bookie_tail_bytes.bytes(),
        reserve_bytes: tuning.bookie_reserve_bytes.bytes(),
        high_water: f64::from(tuning.bookie_high_water) / 100.0,
        low_water: f64::from(tuning.bookie_low_water) / 100.0,
        headroom_bytes: tuning.bookie_headroom_bytes.bytes(),
        scrub_bytes_per_second: tuning.bookie_scrub_bytes.bytes(),
        ..quire_bookie::Options::new(&arguments.data)
    }
}

fn broker_options(arguments: &Standalone, address: String) -> quire_broker::Options {
    let tuning = &arguments.tuning;
    quire_broker::Options {
        cluster: arguments.cluster.clone(),
        address,
        shards: usize::try_from(tuning.shards).unwrap_or(usize::MAX),
        memory_bytes: tuning.memory_bytes.len(),
        tail_cache_bytes: tuning.tail_cache_bytes.map_or(tuning.memory_bytes.len() / 2, ByteSize::len),
        request_bytes: tuning.request_bytes.len(),
        answer_bytes: tuning.answer_bytes.len(),
        connections_max: descriptors::connections(
            usize::try_from(tuning.connections_max).unwrap_or(usize::MAX),
            descriptors::raise(),
        ),
        read_cache_bytes: tuning.read_cache_bytes.len(),
        roll_entries: tuning.roll_entries,
        idle_seal: Duration::from_millis(tuning.idle_seal_ms),
        producer_expiry: Duration::from_millis(tuning.producer_expiry_ms),
        // Copies on one disk would only be written more often.
        default_replicas: 1,
        ..quire_broker::Options::default()
    }
}

fn failure(arguments: &Standalone, error: Error) -> Failure {
    match error {
        Error::ClusterName(_)
        | Error::Broker(quire_broker::Error::Option { .. })
        | Error::Bookie(quire_bookie::Error::Option(_)) => Failure::usage(error),
        Error::Directory(..) => {
            Failure::new(Exit::CannotStart, error).remedy("give a directory that can be written to --data")
        }
        Error::Metadata(OpenError::InUse(_)) => {
            let data = arguments.data.display();
            let cause = format!("the data directory {data} is in use by another process");
            Failure::message(Exit::CannotStart, cause)
                .remedy("stop that process, or choose another directory with --data")
        }
        Error::Bookie(quire_bookie::Error::OtherCluster { .. }) => {
            let remedy = "give the --cluster that the directory was made with, or another --data";
            Failure::new(Exit::CannotStart, error).remedy(remedy)
        }
        Error::Bookie(quire_bookie::Error::Disk { ref source, .. }) => {
            let remedy = disk_remedy(source.kind());
            Failure::new(Exit::CannotStart, error).remedy(remedy)
        }
        Error::Metadata(ref metadata) if metadata.io_kind().is_some() => {
            let remedy = metadata.io_kind().map_or("", disk_remedy);
            Failure::new(Exit::CannotStart, error).remedy(remedy)
        }
        Error::Metadata(_)
        | Error::BookieMissing { .. }
        | Error::Bookie(quire_bookie::Error::Malformed { .. }) => Failure::new(Exit::CannotStart, error)
            .remedy("restore the whole data directory from a backup, or begin anew with an empty one"),
        // These say themselves what to do.
        error => Failure::new(Exit::CannotStart, error),
    }
}

/// Nothing is lost by an operation that failed: the same directory serves when
/// the disk does.
const fn disk_remedy(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space on the disk of --data, then start again: nothing is lost"
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            "make --data writable, then start again: nothing is lost"
        }
        _ => "see to the disk of --data, then start again",
    }
}

/// What health checks see, from before the server is there on.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    parts: OnceLock<(Bookie, Arc<Broker>)>,
}

impl Readiness {
    pub(super) fn started(&self, server: &standalone::Standalone) {
        // Called once; a second call would change nothing.
        let _ = self.parts.set((server.bookie.clone(), Arc::clone(&server.broker)));
    }
}

impl Health for Readiness {
    fn ready(&self) -> Result<(), String> {
        let (bookie, broker) = self.parts.get().ok_or("starting")?;
        // A full disk is no reason to send readers elsewhere.
        if let BookieHealth::Failed(why) = bookie.health() {
            return Err(format!("the bookie failed: {why}"));
        }
        if broker.ready() { Ok(()) } else { Err("the broker is not ready".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn the_bookies_headroom_is_what_was_asked_for() {
        for (arguments, expected) in [
            (&["quire", "standalone"][..], 8 << 30),
            (&["quire", "standalone", "--bookie-headroom-bytes", "1GiB"], 1 << 30),
        ] {
            let Command::Standalone(standalone) = Cli::parse_from(arguments).command else { unreachable!() };
            assert_eq!(bookie_options(&standalone).headroom_bytes, expected);
        }
    }
}
