//! How records are gathered into batches, from the command line.

use std::time::Duration;

use quire_client::producer::{BATCH_BYTES, LINGER_MAX};
use quire_client::{Acks, Compression, ProducerOptions};

use crate::cli::{self, Batching};
use crate::failure::Failure;
use crate::output;

/// The producer's options; completions are reported.
///
/// # Errors
/// When they do not go together.
pub(crate) fn options(batching: &Batching) -> Result<ProducerOptions, Failure> {
    if !BATCH_BYTES.contains(&batching.batch_bytes.len()) {
        let (least, most) = BATCH_BYTES.into_inner();
        return Err(Failure::usage(format!("--batch-bytes must be {least} to {most} bytes")));
    }
    let linger = Duration::from_millis(batching.linger_ms.into());
    if linger > LINGER_MAX {
        return Err(Failure::usage(format!("--linger-ms must be at most {}", LINGER_MAX.as_millis())));
    }
    if batching.buffer_bytes.len() / 2 < batching.batch_bytes.len() {
        return Err(Failure::usage("--buffer-bytes must be at least twice --batch-bytes"));
    }
    if batching.delivery_timeout_ms <= batching.linger_ms {
        return Err(Failure::usage("--delivery-timeout-ms must be above --linger-ms"));
    }
    let delivery_timeout = Duration::from_millis(batching.delivery_timeout_ms.into());
    Ok(ProducerOptions {
        acks: match batching.acks {
            cli::Acks::All => Acks::All,
            cli::Acks::Leader => Acks::Leader,
            cli::Acks::None => Acks::None,
        },
        compression: match batching.compression {
            cli::Compression::None => Compression::None,
            cli::Compression::Gzip => Compression::Gzip,
            cli::Compression::Snappy => Compression::Snappy,
            cli::Compression::Lz4 => Compression::Lz4,
            cli::Compression::Zstd => Compression::Zstd,
        },
        linger,
        batch_bytes: batching.batch_bytes.len(),
        memory_bytes: batching.buffer_bytes.len(),
        max_block: delivery_timeout,
        delivery_timeout,
        completions: true,
        ..ProducerOptions::default()
    })
}

/// Says what weaker acknowledgements mean.
pub(crate) fn warn(options: &ProducerOptions) {
    let acks = match options.acks {
        Acks::All => return,
        Acks::Leader => {
            "leader: a record is acknowledged once it is durable on one bookie, and may still be lost"
        }
        Acks::None => "none: records are not acknowledged, and may be lost",
    };
    output::note(format_args!("acks={acks}; idempotence is off: a retry may repeat a record"));
}
