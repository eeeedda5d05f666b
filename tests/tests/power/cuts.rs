//! Power cuts under load, some with another one during the boot.

use rand::RngExt;

use crate::world::World;

/// Seeds of one test.
const SEEDS: u64 = 4;
/// Cuts of one seed, at least.
const CUTS: u32 = 13;

/// Writes and syncs between a boot and the next cut, at most.
const OPERATIONS: u64 = 300;

/// Cuts the power again and again; after each boot everything is read.
#[expect(clippy::print_stdout, reason = "how much was tried")]
fn live(seed: u64, lies: bool) -> u32 {
    let (mut world, mut node) = World::begin(seed);
    if lies {
        world.machine.lie();
    }
    loop {
        let operations = world.random.random_range(0..OPERATIONS);
        world.cut(node, operations);
        world.machine.restore();
        let enough = world.cuts >= CUTS;
        node = world.boot(if enough { 0.0 } else { 0.4 });
        world.load.check();
        if enough {
            break;
        }
    }
    world.load.finish();
    world.load.check();
    node.stop();
    // What was handed over is there, too, and so is what was refused: not.
    let node = world.boot(0.0);
    world.load.check();
    node.kill();
    let book = world.load.book();
    println!(
        "seed {seed}: {} cuts, {} of them during boots; {} records acknowledged, {} refused, {} unknown",
        world.cuts,
        world.boot_cuts,
        book.acked(),
        book.refused(),
        book.unknown(),
    );
    world.cuts
}

#[track_caller]
fn check(part: u64) {
    let seeds = part * SEEDS..(part + 1) * SEEDS;
    if let Ok(seed) = std::env::var("QUIRE_SIM_POWER_SEED") {
        let seed: u64 = seed.parse().expect("QUIRE_SIM_POWER_SEED is a number");
        if seeds.contains(&seed) {
            live(seed, false);
        }
        return;
    }
    let cuts: u32 = seeds.map(|seed| live(seed, false)).sum();
    assert!(cuts >= 50, "{cuts} cuts");
}

// Four parts, of more than 50 cuts each, so that they can run side by side.

#[test]
fn nothing_acknowledged_is_lost_and_nothing_refused_comes_back() {
    check(0);
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_refused_comes_back_2() {
    check(1);
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_refused_comes_back_3() {
    check(2);
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_refused_comes_back_4() {
    check(3);
}

/// What the tests above are worth.
#[test]
fn a_disk_that_does_not_sync_is_found() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = (0..4).any(|seed| std::panic::catch_unwind(|| live(seed, true)).is_err());
    std::panic::set_hook(hook);
    assert!(found);
}
