use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quire_ledger::link::{AppendSink, LinkError};
use quire_ledger::message::ReplicaState;
use quire_proto::id::{EntryId, PartitionIndex};
use tokio::time::timeout;

use super::*;
use crate::bookies::fake::{self, Appends};
use crate::log::PartitionLog;
use crate::pool::tests::{registered, spare, spare_on};
use crate::shard::inbox::Sink;
use crate::shard::leader::tests::Case;

/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(20);

type Answer = BoxFuture<'static, Result<Response, LinkError>>;

const TARGET: Target = Target { replicas: 1, ack_quorum: 1 };

fn shard(context: Arc<Context>) -> Shard {
    let pool = LedgerPool::new(Arc::clone(&context));
    Shard::new(context, pool, Inbox::new(1), Arc::default())
}

/// The shard leads a partition whose ledger is open on these bookies and holds
/// what is not acknowledged.
fn lead(shard: &mut Shard, partition: u32, bookies: &[BookieId]) -> Arc<PartitionLog> {
    let id = PartitionId { index: PartitionIndex(partition), ..PartitionId::default() };
    let ledger = u64::from(partition) + 1;
    let (Case { leader, .. }, _) = Case::open_of(id, spare_on(ledger, bookies));
    let log = Arc::clone(leader.log());
    let at = shard.slots.len();
    shard.slots.push(Some(Slot { leader, target: TARGET, dirty: false, armed: None }));
    shard.index.insert(id, at);
    shard.ledgers.insert(LedgerId(ledger), at);
    log
}

/// Lets the shard have its link to the first bookie.
async fn link(shard: &mut Shard) -> Arc<dyn BookieLink> {
    shard.links.ensure(fake::bookie(1));
    let arrived = timeout(PATIENCE, shard.inbox.take()).await.expect("the link is made");
    shard.arrived(arrived);
    shard.links.get(fake::bookie(1)).unwrap().0
}

#[tokio::test]
async fn a_ledger_that_came_too_late_is_given_back() {
    let context = fake::lonely();
    context.bookies.set_live([(fake::bookie(1), registered(false))].into());
    let mut shard = shard(context);
    let partition = PartitionId::default();
    shard.control(Control::Ledger { partition, epoch: Epoch(1), target: TARGET, spare: spare(7) });
    assert_eq!(shard.pool.take(TARGET).await.unwrap().ledger, LedgerId(7));
}

#[tokio::test]
async fn a_link_that_breaks_at_an_append_is_broken_for_all_partitions() {
    let appends = Arc::new(Appends { breaks: AtomicBool::new(true), ..Appends::default() });
    let context = fake::context(&appends, |bookie, _| async move { Err(fake::away(bookie)) }.boxed());
    let mut shard = shard(context);
    link(&mut shard).await;
    let waiting = lead(&mut shard, 0, &[fake::bookie(1)]);
    let sending = lead(&mut shard, 1, &[fake::bookie(1)]);
    let send = fake::append(LedgerId(2));
    shard.with(1, |_, _, effects| effects.push(Effect::Send { bookie: fake::bookie(1), append: send }));
    let running = tokio::spawn(shard.run());
    // Both want another ledger, and there is no bookie for one.
    let both = async {
        while waiting.stuck().is_none() || sending.stuck().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, both).await.expect("both partitions hear of it");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_state_could_not_be_asked_for_is_asked_again() {
    let fails = |bookie| async move { Err(fake::away(bookie)) }.boxed();
    let is_silent = |_| std::future::pending().boxed();
    let firsts: [fn(BookieId) -> Answer; 2] = [fails, is_silent];
    for first in firsts {
        let asked = Arc::new(AtomicUsize::new(0));
        let appends = Arc::new(Appends::default());
        let context = fake::context(&appends, {
            let asked = Arc::clone(&asked);
            move |bookie, request| {
                assert!(matches!(request, Request::State { .. }), "{request:?}");
                let durable = EntryId(0);
                let state = ReplicaState { fence: Epoch(1), durable, committed: durable, certain: true };
                match asked.fetch_add(1, Ordering::SeqCst) {
                    0 => first(bookie),
                    _ => async move { Ok(Response::State(state)) }.boxed(),
                }
            }
        });
        let mut shard = shard(context);
        let link = link(&mut shard).await;
        // The other replica keeps the ledger going.
        lead(&mut shard, 0, &[fake::bookie(1), fake::bookie(2)]);
        shard.inbox.control(Control::Linked { link, number: 1 });
        let running = tokio::spawn(shard.run());
        let resumed = async {
            while appends.count.load(Ordering::SeqCst) < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, resumed).await.expect("the snapshot and the entry are sent again");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        running.abort();
    }
}

#[tokio::test]
async fn a_link_that_broke_before_the_shard_had_it_is_made_again() {
    let mut shard = shard(fake::lonely());
    let bookie = fake::bookie(1);
    shard.links.ensure(bookie);
    let made = timeout(PATIENCE, shard.inbox.take()).await.expect("the link is made");
    Sink { inbox: Arc::clone(&shard.inbox), link: 1 }.broken(bookie);
    let broken = timeout(PATIENCE, shard.inbox.take()).await.expect("it broke");
    shard.arrived(broken);
    shard.arrived(made);
    assert!(shard.links.get(bookie).is_err(), "it is dead");
    let next = timeout(PATIENCE, shard.inbox.take()).await.expect("another is made");
    shard.arrived(next);
    assert!(matches!(shard.links.get(bookie), Ok((_, 2))));
}
