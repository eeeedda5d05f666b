//! Measures how fast one core encodes, seals, checks and reads batches.
//!
//! ```text
//! cargo run --release -p quire-proto --example encode
//! ```

#![allow(clippy::print_stdout, clippy::cast_precision_loss)] // what it is for

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use quire_proto::batch::{Batch, Builder, NO_HEADERS, Producer};
use quire_proto::codec::Compression;

const BATCH_BYTES: usize = 256 << 10;
const LASTS: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:<8} {:>6} {:<10} {:>12} {:>10}", "what", "bytes", "codec", "records/s", "MB/s");
    for size in [16, 100, 1024, 16 << 10] {
        measure(size, Compression::None)?;
    }
    for compression in &Compression::ALL[1..] {
        measure(1024, *compression)?;
    }
    Ok(())
}

fn measure(size: usize, compression: Compression) -> Result<(), Box<dyn Error>> {
    // Half of it repeats: what compresses about two to one.
    let value: Vec<u8> = (0..size).map(|at| if at % 64 < 32 { b'x' } else { noise(at) }).collect();
    let mut builder = Builder::with_capacity(BATCH_BYTES);
    let sealed = fill(&mut builder, &value, compression)?;
    report("encode", size, compression, &sealed, || {
        fill(&mut builder, &value, compression).map(|batch| drop(black_box(batch)))
    })?;
    report("check", size, compression, &sealed, || Ok(black_box(&sealed).check(BATCH_BYTES * 2)?))?;
    report("read", size, compression, &sealed, || {
        sealed.verify_crc()?;
        let mut records = sealed.records(BATCH_BYTES * 2)?;
        while let Some(record) = records.next_view()? {
            black_box(record.value);
        }
        Ok(())
    })
}

fn fill(builder: &mut Builder, value: &[u8], compression: Compression) -> Result<Batch, Box<dyn Error>> {
    while builder.size_with(1_700_000_000_000, None, Some(value), NO_HEADERS) <= BATCH_BYTES {
        builder.append(1_700_000_000_000, None, Some(black_box(value)), NO_HEADERS)?;
    }
    builder.seal(compression, Producer::NONE).ok_or_else(|| "no records".into())
}

fn noise(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]
}

fn report(
    what: &str,
    size: usize,
    compression: Compression,
    sample: &Batch,
    mut once: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let (began, mut rounds) = (Instant::now(), 0_u32);
    while began.elapsed() < LASTS {
        once()?;
        rounds += 1;
    }
    let records = f64::from(rounds) * f64::from(sample.header.record_count) / began.elapsed().as_secs_f64();
    let megabytes = records * size as f64 / 1e6;
    println!("{what:<8} {size:>6} {:<10} {records:>12.0} {megabytes:>10.0}", compression.name());
    Ok(())
}
