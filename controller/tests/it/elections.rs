//! One controller at a time, always another ready.

use std::time::Duration;

use quire_controller::{Controller, Options};
use quire_metadata::process::Controller as Elected;
use quire_metadata::store::Store;

use crate::world::{World, bookie, eventually, process, stays};

fn elected(world: &World) -> Option<u128> {
    let found = world.read::<Elected>(&world.keys.controller())?;
    Some(found.value.process.nonce.0.as_u128())
}

fn says(controller: &Controller) -> bool {
    *controller.elected().borrow()
}

#[tokio::test(start_paused = true)]
async fn one_is_elected_and_another_follows() {
    let world = World::new();
    let mut controllers: Vec<_> = (1..=3).map(|run| (run, world.controller(run))).collect();
    while !controllers.is_empty() {
        eventually(|| controllers.iter().any(|(_, controller)| says(controller))).await;
        let office = elected(&world).unwrap();
        stays(|| {
            let saying = controllers.iter().filter(|(_, controller)| says(controller));
            elected(&world) == Some(office) && saying.map(|(run, _)| *run).eq([office])
        })
        .await;
        let at = controllers.iter().position(|(run, _)| *run == office).unwrap();
        controllers.remove(at).1.shutdown().await;
        assert_ne!(elected(&world), Some(office), "the office is given up at once");
    }
    assert_eq!(elected(&world), None);
}

#[tokio::test(start_paused = true)]
async fn who_lost_the_office_stops_and_stands_again() {
    let world = World::new();
    let controller = world.controller(1);
    eventually(|| says(&controller)).await;
    let lease = world.get(&world.keys.controller()).unwrap().lease.unwrap();
    world.store.revoke(lease).await.unwrap();
    let again = || world.get(&world.keys.controller()).and_then(|found| found.lease);
    eventually(|| says(&controller) && again().is_some_and(|again| again != lease)).await;
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn who_is_not_elected_does_nothing() {
    let world = World::new();
    world.put(world.keys.controller(), {
        use quire_metadata::typed::Typed;
        Elected { process: process("another", 9) }.encode()
    });
    let controller = world.controller(1);
    world.intend_delete(1, &[1]);
    stays(|| world.intent(1).is_some() && world.bookies.requests(bookie(1)) == 0).await;
    world.remove(world.keys.controller());
    eventually(|| world.intent(1).is_none()).await;
    controller.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_waited_for() {
    let world = World::new();
    world.store.fail_requests(20);
    let controller = world.controller(1);
    eventually(|| says(&controller)).await;
    controller.shutdown().await;
}

#[test]
fn settings_out_of_range_are_refused() {
    let world = World::new();
    let with = |change: &dyn Fn(&mut Options)| {
        let mut options = world.options(1);
        change(&mut options);
        options.check()
    };
    assert_eq!(with(&|_| {}), Ok(()));
    assert!(with(&|options| options.lease = Duration::from_millis(999)).is_err());
    assert!(with(&|options| options.jobs_at_once = 0).is_err());
    assert!(with(&|options| options.request_timeout = Duration::ZERO).is_err());
    assert!(with(&|options| options.retry_min = Duration::ZERO).is_err());
    assert!(with(&|options| options.retry_min = options.retry_max * 2).is_err());
}
