//! Disks that lie, under a whole process: a flipped bit, an older copy of
//! either disk. It is noticed: the process says why it does not start, or a
//! reader is told that something is missing. What is served is right, and the
//! end is never below what was acknowledged.

use std::collections::BTreeSet;

use quire_bookie::disk::sim::Copy;
use quire_bookie::disk::{Access, Disk, SimDisk};
use quire_bookie::log::scan;
use quire_cli::standalone::Error;
use quire_ledger::record::Kind;
use quire_metadata::operations::bookie_start::StartRefused;
use quire_proto::v1::ErrorReason;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::book::{Place, Told};
use crate::load::Load;
use crate::node::{Boot, Node};
use crate::reading::{Found, Reader};
use crate::world::World;

/// Flipped bits of one seed.
const FLIPS: u32 = 12;

/// Both disks, with no power.
struct Copies {
    disk: Copy,
    metadata: Vec<u8>,
}

impl World {
    /// The power goes with nothing under way, and is back.
    fn cut_at_rest(&mut self, node: Node) {
        self.machine.cut();
        node.kill();
        self.cuts += 1;
        self.machine.restore();
    }

    fn copies(&self) -> Copies {
        Copies { disk: self.machine.disk.copy(), metadata: self.machine.metadata.copy() }
    }

    fn set_back(&mut self, copies: &Copies) {
        self.machine.disk.set_back(&copies.disk);
        self.machine.metadata.set_back(&copies.metadata);
        self.lost = false;
    }

    /// Once damage is noticed the process starts all the same, and always will.
    fn start_again(&mut self) {
        match self.try_boot() {
            Boot::Ready(node) => self.cut_at_rest(node),
            Boot::Refused(error) => panic!("it starts once and not again: {error}"),
            Boot::Dark => panic!("the power is on"),
        }
    }

    /// Lets the clients work until so many more records are acknowledged.
    fn work(&self, node: &Node, records: usize) {
        let enough = self.load.book().acked() + records;
        node.wait("records are acknowledged", || self.load.book().acked() >= enough);
    }
}

/// Whether a reader was told of something that is missing; what is read is
/// right, and what is not read is not silently so.
fn survey(load: &Load) -> bool {
    let told = load.told();
    load.run(async |mut reader| {
        let mut missing = false;
        for place in told.places() {
            missing |= survey_partition(&mut reader, &told, &place).await;
        }
        missing
    })
}

async fn survey_partition(reader: &mut Reader, told: &Told, place: &Place) -> bool {
    let acked = told.acked(place);
    let mut at = 0;
    let mut read = Vec::new();
    let mut refused = BTreeSet::new();
    // Behind what is missing other records may be there: further and further on.
    let mut skip = 1;
    loop {
        match reader.fetch(place, at).await {
            Found::Records(records, next) => {
                for offset in acked.range(at..next).map(|(&offset, _)| offset) {
                    assert!(
                        records.iter().any(|(found, _)| *found == offset),
                        "{place:?}: {offset} is left out"
                    );
                }
                read.extend(records);
                at = next;
            }
            Found::End(end) => {
                let last = acked.keys().next_back().copied();
                assert!(
                    last.is_none_or(|last| last < end),
                    "{place:?} ends at {end}, {last:?} was acknowledged"
                );
                break;
            }
            Found::Error(reason, message) => {
                let named = matches!(reason, ErrorReason::DataUnavailable | ErrorReason::NotReady);
                assert!(named, "{place:?} at {at}: {reason:?} {message}");
                refused.insert(at);
                let Some((&next, _)) = acked.range(at + 1..).nth(skip - 1) else { break };
                at = next;
                skip *= 2;
            }
        }
    }
    told.check_records(place, &read);
    let read: BTreeSet<u64> = read.into_iter().map(|(offset, _)| offset).collect();
    // With nothing refused all is there.
    assert!(!refused.is_empty() || acked.keys().all(|offset| read.contains(offset)), "{place:?}");
    !refused.is_empty()
}

/// A bit to flip, and whether the boot must notice it.
struct Flip {
    name: String,
    byte: u64,
    bit: u8,
    at_boot: bool,
}

/// In the newest file any bit of a batch below the durable mark; in an older
/// one, which a boot does not read whole, a bit of an entry.
fn any_flip(random: &mut StdRng, disk: &SimDisk) -> Option<Flip> {
    let mut logs = disk.list().unwrap();
    logs.retain(|name| name.ends_with(".log"));
    let newest = random.random_bool(0.6);
    let name = if newest { logs.last() } else { logs.choose(random) }?.clone();
    let newest = Some(&name) == logs.last();
    let file = disk.open(&name, Access::Direct).unwrap();
    let header = scan::file_header(&*file)?;
    let mut batches = Vec::new();
    scan::scan(&*file, &header, |batch| batches.push(batch));
    let mark = batches.iter().map(|batch| batch.header.mark).max()?;
    batches.retain(|batch| batch.header.sequence < mark);
    let batch = batches.choose(random)?;
    let byte = if newest {
        batch.position + random.random_range(0..u64::from(batch.header.length))
    } else {
        let entries = batch.records.iter().flatten().filter(|record| record.header.kind == Kind::Append);
        let record = entries.collect::<Vec<_>>().choose(random).copied()?;
        record.position + random.random_range(0..record.header.record_len() as u64)
    };
    Some(Flip { name, byte, bit: random.random_range(0..8), at_boot: newest })
}

fn flips(seed: u64) -> (u32, u32) {
    let (mut world, node) = World::begin(seed);
    let operations = world.random.random_range(200..400);
    world.cut(node, operations);
    world.machine.restore();
    let node = world.boot(0.0);
    world.work(&node, 300);
    world.load.finish();
    world.load.check();
    world.cut_at_rest(node);
    let copies = world.copies();
    let (mut flipped, mut noticed) = (0, 0);
    for _ in 0..FLIPS {
        world.set_back(&copies);
        let Some(Flip { name, byte, bit, at_boot }) = any_flip(&mut world.random, &world.machine.disk) else {
            continue;
        };
        world.machine.disk.flip_bit(&name, byte, bit);
        let seen = match world.try_boot() {
            Boot::Ready(node) => {
                let missing = survey(&world.load);
                let seen = missing || node.bookie_says_damaged();
                world.cut_at_rest(node);
                if world.lost {
                    world.start_again();
                }
                seen
            }
            Boot::Refused(_) => {
                world.machine.cut();
                world.machine.restore();
                true
            }
            Boot::Dark => panic!("the power is on"),
        };
        assert!(seen || !at_boot, "{name}: bit {bit} of byte {byte}");
        flipped += 1;
        noticed += u32::from(seen);
    }
    (flipped, noticed)
}

#[test]
fn a_flipped_bit_is_noticed_and_never_served_nor_taken_for_the_end() {
    let (flipped, noticed) =
        (100..103).map(flips).fold((0, 0), |sum, (flipped, noticed)| (sum.0 + flipped, sum.1 + noticed));
    // A bit of a ledger that was deleted since matters to nobody.
    assert!(flipped >= 30 && noticed * 10 >= flipped * 7, "{noticed} of {flipped}");
}

/// What is refused, and why.
#[track_caller]
fn refusal(world: &mut World) -> quire_bookie::Error {
    match world.try_boot() {
        Boot::Refused(Error::Bookie(why)) => why,
        Boot::Refused(error) => panic!("{error}"),
        Boot::Ready(_) | Boot::Dark => panic!("it starts"),
    }
}

#[test]
fn a_flipped_bit_in_the_bookies_identity_is_refused() {
    let (mut world, node) = World::begin(110);
    world.work(&node, 10);
    world.load.finish();
    world.cut_at_rest(node);
    let length = world.machine.disk.get("identity").unwrap().unwrap().len() as u64;
    let byte = world.random.random_range(0..length - 1);
    world.machine.disk.flip_bit("identity", byte, 0);
    let why = refusal(&mut world);
    assert!(matches!(why, quire_bookie::Error::Malformed { .. }), "{why}");
}

/// L4, by the position that the bookie had published: as far as that reaches. A
/// disk that goes back to a moment after the last publication (two seconds at
/// most) looks like one whose power was cut.
#[test]
fn a_bookies_disk_that_was_set_back_within_a_run_is_noticed() {
    for seed in 120..124 {
        let (mut world, node) = World::begin(seed);
        world.work(&node, 100);
        let old = world.machine.disk.copy();
        world.work(&node, 300);
        world.load.finish();
        node.wait_for_publication();
        world.cut_at_rest(node);
        world.machine.disk.set_back(&old);
        match world.try_boot() {
            Boot::Ready(node) => {
                assert!(node.bookie_says_damaged(), "seed {seed}");
                assert!(survey(&world.load), "seed {seed}: readers are told");
                world.cut_at_rest(node);
                world.start_again();
            }
            Boot::Refused(error) => panic!("{error}"),
            Boot::Dark => panic!("the power is on"),
        }
    }
}

/// B1, by the generation.
#[test]
fn a_disk_of_an_earlier_run_is_refused() {
    let (mut world, node) = World::begin(130);
    world.work(&node, 100);
    let old = world.copies();
    world.cut(node, 50);
    world.machine.restore();
    let node = world.boot(0.0);
    world.work(&node, 100);
    world.load.finish();
    world.cut_at_rest(node);
    let new = world.copies();

    world.machine.disk.set_back(&old.disk);
    let why = refusal(&mut world);
    let behind = |why: &quire_bookie::Error| match why {
        quire_bookie::Error::Refused { why, .. } => Some(*why),
        _ => None,
    };
    assert!(matches!(behind(&why), Some(StartRefused::Behind { .. })), "{why}");

    world.machine.cut();
    world.machine.restore();
    world.machine.disk.set_back(&new.disk);
    world.machine.metadata.set_back(&old.metadata);
    let why = refusal(&mut world);
    assert!(matches!(behind(&why), Some(StartRefused::RegistryBehind { .. })) || is_behind(&why), "{why}");
}

const fn is_behind(why: &quire_bookie::Error) -> bool {
    matches!(why, quire_bookie::Error::MetadataBehind { .. })
}

/// Metadata of the same run passes B1. If a record was acknowledged in a ledger
/// that was published since, the bookie has it and the metadata does not: B9.
/// If none was, the chains that the metadata has are whole but for seals, and
/// their last ledgers are recovered: harmless.
#[test]
fn metadata_that_was_set_back_within_a_run_is_noticed_or_harmless() {
    let mut noticed = 0;
    for seed in 140..148 {
        let (mut world, node) = World::begin(seed);
        world.work(&node, 100);
        let old = world.machine.metadata.copy();
        let more = world.random.random_range(0..1_200);
        world.work(&node, more);
        world.load.finish();
        world.cut_at_rest(node);
        world.machine.metadata.set_back(&old);
        match world.try_boot() {
            Boot::Ready(node) => {
                world.load.check_what_is_left();
                node.kill();
            }
            Boot::Refused(Error::Bookie(why)) => {
                assert!(is_behind(&why), "seed {seed}: {why}");
                noticed += 1;
            }
            Boot::Refused(error) => panic!("seed {seed}: {error}"),
            Boot::Dark => panic!("the power is on"),
        }
    }
    assert!(noticed >= 3, "{noticed}");
}
