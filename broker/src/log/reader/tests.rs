use futures_util::FutureExt;
use quire_ledger::message::{Request, Response};
use quire_proto::id::{Epoch, LedgerId, PartitionId};

use super::*;
use crate::bookies::fake::{bookies, record, segment};
use crate::testing::topic;

/// A chain of two segments of three entries each, with one record in each, of
/// which this one cannot be read; whether its header can makes no difference.
async fn check(lost: u64, from: u64, next: Result<u64, ErrorReason>) {
    for header_is_left in [true, false] {
        check_with(header_is_left, lost, from, next).await;
    }
}

async fn check_with(header_is_left: bool, lost: u64, from: u64, next: Result<u64, ErrorReason>) {
    let bookies = bookies(move |_, request| {
        let Request::Read(read) = request else { panic!("{request:?} is no read") };
        let offset = |entry: u64| (read.ledger.0 - 1) * 3 + entry;
        let entries = read.from.0..3.min(read.from.0 + u64::from(read.max_entries));
        let given: Vec<_> = entries
            .take_while(|entry| (header_is_left && read.prefix) || offset(*entry) != lost)
            .map(|entry| record(read.ledger, EntryId(entry), offset(entry)))
            .collect();
        let answer = if given.is_empty() { Response::Absent } else { Response::Entries(given) };
        async move { Ok(answer) }.boxed()
    });
    let log = PartitionLog::new(PartitionId::default(), topic());
    let segments = vec![segment(1, 0, 3, &[1]), segment(2, 3, 3, &[1])];
    assert_eq!(segments[0].ledger, LedgerId(1));
    log.leading(Epoch(1), segments, Offset(6));
    let reader = Reader::new(Arc::new(Cold::new(bookies, 1 << 20)));
    let size = {
        let mut one = Batches::default();
        let first = if lost == 0 { 1 } else { 0 };
        reader.read(&log, Offset(first), 1, &mut one, &mut Turn::default()).await.unwrap();
        one.bytes as u64
    };
    let mut out = Batches::default();
    let read = reader.read(&log, Offset(from), 1 << 20, &mut out, &mut Turn::default()).await;
    if let Err(failure) = &read {
        let way_on = format!("fetching from {}", lost + 1);
        assert!(failure.message.ends_with(&way_on), "{failure:?}");
    }
    assert_eq!(read.map(|next| next.0).map_err(|failure| failure.reason), next, "{lost} is lost");
    assert_eq!(out.bytes as u64 / size, next.map_or(0, |next| next - from), "batches from {from}");
}

#[tokio::test]
async fn what_was_read_before_a_failure_is_good_and_the_offset_fits_it() {
    check(7, 0, Ok(6)).await;
    check(2, 0, Ok(2)).await;
    check(5, 0, Ok(5)).await;
    check(5, 4, Ok(5)).await;
    check(3, 1, Ok(3)).await;
    check(5, 5, Err(ErrorReason::DataUnavailable)).await;
    check(0, 0, Err(ErrorReason::DataUnavailable)).await;
}
