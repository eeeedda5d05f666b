use quire_metadata::bookie::LogPosition;
use quire_metadata::id_block::IdBlock;
use quire_metadata::store::Revision;
use quire_metadata::typed::Versioned;

use super::*;
use crate::bookies::fake;

const TARGET: Target = Target { replicas: 1, ack_quorum: 1 };

/// A ledger on the first bookie.
pub fn spare(ledger: u64) -> Spare {
    spare_on(ledger, &[fake::bookie(1)])
}

/// A ledger on these bookies, any of which is enough.
pub fn spare_on(ledger: u64, bookies: &[BookieId]) -> Spare {
    let block = IdBlock { first: 1, count: 10, holder: None, attempt: Nonce::default() };
    let block = Versioned { value: block, revision: Revision(1) };
    Spare {
        ledger: LedgerId(ledger),
        ensemble: Ensemble::new(bookies, 1).unwrap(),
        block: Arc::new(HeldBlock { kind: IdKind::Ledgers, block }),
    }
}

/// A bookie that is registered.
pub fn registered(read_only: bool) -> BookieLiveness {
    BookieLiveness {
        address: String::new(),
        generation: 1,
        durable: LogPosition::default(),
        read_only,
        free_bytes: 0,
    }
}

#[tokio::test]
async fn a_spare_on_a_bookie_that_takes_no_appends_is_of_no_use() {
    let context = fake::lonely();
    let pool = LedgerPool::new(Arc::clone(&context));
    for (first_is_full, taken) in [(false, Some(LedgerId(3))), (true, None)] {
        let live = [(1, first_is_full), (2, false)];
        let live = live.map(|(n, read_only)| (fake::bookie(n), registered(read_only)));
        context.bookies.set_live(live.into());
        pool.put_back(TARGET, spare(3));
        assert_eq!(pool.take_spare(TARGET).map(|spare| spare.ledger), taken);
    }
}

#[tokio::test]
async fn a_full_bookie_does_not_count_for_the_copies_that_could_be_had() {
    let context = fake::lonely();
    let pool = LedgerPool::new(Arc::clone(&context));
    let live = [(1, false), (2, true)].map(|(n, read_only)| (fake::bookie(n), registered(read_only)));
    context.bookies.set_live(live.into());
    let target = Target { replicas: 2, ack_quorum: 1 };
    pool.put_back(target, spare(3));
    assert!(pool.take_spare(target).is_some());
}

#[tokio::test]
async fn no_more_spares_are_kept_than_a_pool_has_room_for() {
    let pool = LedgerPool::new(fake::lonely());
    let (first, last) = (spare(1), spare(2));
    pool.put_back(TARGET, first.clone());
    (1..SPARES_MAX).for_each(|_| pool.put_back(TARGET, spare(3)));
    pool.put_back(TARGET, last.clone());
    assert_eq!(pool.lock().spares[&TARGET].len(), SPARES_MAX);
    assert_eq!(Arc::strong_count(&first.block), 2, "its block is in use");
    assert_eq!(Arc::strong_count(&last.block), 1, "its block can be released");
}
