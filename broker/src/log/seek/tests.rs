use std::ops::Range;

use futures_util::FutureExt;
use quire_ledger::message::{Request, Response};
use quire_proto::v1::ErrorReason;

use super::*;
use crate::bookies::fake::{bookies, record, segment};

/// Entries of the segment, with one record in each.
const ENTRIES: u64 = 3 * HEADS;

/// A segment of which these entries cannot be read.
fn cold(lost: Range<u64>) -> Cold {
    let bookies = bookies(move |_, request| {
        let Request::Read(read) = request else { panic!("{request:?} is no read") };
        let entries = read.from.0..read.from.0 + u64::from(read.max_entries);
        let given: Vec<_> = entries
            .take_while(|entry| !lost.contains(entry))
            .map(|entry| record(read.ledger, EntryId(entry), entry))
            .collect();
        let answer = if given.is_empty() { Response::Absent } else { Response::Entries(given) };
        async move { Ok(answer) }.boxed()
    });
    Cold::new(bookies, 1 << 20)
}

async fn check(lost: Range<u64>, is_found: impl Fn(u64) -> bool) {
    let (cold, segment) = (cold(lost.clone()), segment(1, 0, ENTRIES, &[1]));
    let seek = Seek::new(&cold, &segment);
    for offset in [0, 1, HEADS - 1, HEADS, HEADS + 1, 2 * HEADS - 1, 2 * HEADS, ENTRIES - 1] {
        let expected = match is_found(offset) {
            true => Ok(Some(EntryId(offset))),
            false => Err(ErrorReason::DataUnavailable),
        };
        let found = seek.offset(Offset(offset)).await.map_err(|failure| failure.reason);
        assert_eq!(found, expected, "{offset} while {lost:?} are lost");
    }
}

#[tokio::test]
async fn an_offset_is_found_however_much_else_is_lost() {
    check(0..0, |_| true).await;
    check(0..1, |offset| offset != 0).await;
    check(HEADS..HEADS + 1, |offset| offset != HEADS).await;
    check(2 * HEADS - 1..2 * HEADS, |offset| offset != 2 * HEADS - 1).await;
    check(HEADS..2 * HEADS, |offset| !(HEADS..2 * HEADS).contains(&offset)).await;
    check(1..ENTRIES, |offset| offset == 0).await;
    check(0..ENTRIES - 1, |offset| offset == ENTRIES - 1).await;
    check(0..ENTRIES, |_| false).await;
}

/// Every record has the timestamp 5.
async fn check_time(lost: Range<u64>, timestamp_ms: i64, expected: Result<Option<u64>, ErrorReason>) {
    let (cold, segment) = (cold(lost.clone()), segment(1, 0, ENTRIES, &[1]));
    let found = Seek::new(&cold, &segment).timestamp(timestamp_ms).await;
    let found = found.map(|found| found.map(|offset| offset.0)).map_err(|failure| failure.reason);
    assert_eq!(found, expected, "{timestamp_ms} while {lost:?} are lost");
}

#[tokio::test]
async fn a_time_is_not_found_past_what_it_may_be_in() {
    let unknown = Err(ErrorReason::DataUnavailable);
    check_time(0..0, 5, Ok(Some(0))).await;
    check_time(1..ENTRIES, 5, Ok(Some(0))).await;
    check_time(0..1, 5, unknown).await;
    check_time(0..HEADS, 5, unknown).await;
    check_time(0..0, 6, Ok(None)).await;
    check_time(HEADS..HEADS + 1, 6, Ok(None)).await;
    check_time(ENTRIES - 1..ENTRIES, 6, unknown).await;
}
