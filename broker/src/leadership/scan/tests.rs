use bytes::Bytes;

use super::*;
use crate::bookies::fake::{bookie, record, segment};
use crate::leadership::promotion::tests::snapshot;

const LEDGER: u64 = 9;

/// The scan of a ledger that holds a snapshot of what is below offset 4 and then
/// a record an entry.
struct Case {
    scan: Scan,
    now: Millis,
}

impl Case {
    fn new(entries: u64, replicas: &[u128]) -> Self {
        let scan = Scan::new(&segment(LEDGER, 4, entries, replicas), Options::default());
        Self { scan, now: Millis(0) }
    }

    /// Answers the next read, after the pause if there is one.
    #[track_caller]
    fn answer(
        &mut self,
        answer: impl FnOnce(BookieId, Read) -> Result<Response, String>,
    ) -> Result<(), ReadFailed> {
        self.now = self.scan.deadline().unwrap_or(self.now);
        let (bookie, read) = self.scan.next(self.now).expect("there is something to read");
        self.scan.answered(self.now, answer(bookie, read))
    }

    /// Accepts the loss that is reported.
    #[track_caller]
    fn accept_loss(&mut self) {
        let loss = self.scan.unreadable().cloned().expect("a loss is reported");
        self.scan.accept_loss(&loss);
    }
}

/// An entry of the ledger.
fn entry(at: u64) -> Record {
    if at == 0 { snapshot(LEDGER, 4) } else { record(LedgerId(LEDGER), EntryId(at), 3 + at) }
}

/// The same with a flipped bit in its header.
fn damaged(at: u64) -> Record {
    let record = entry(at);
    let mut bytes = record.payload.to_bytes().to_vec();
    bytes[EntryHeader::FIXED_LEN - 1] ^= 1;
    Record { payload: Bytes::from(bytes).into(), ..record }
}

/// What is asked for up to this entry, which is damaged.
fn rotten_at(rotten: u64, read: &Read) -> Result<Response, String> {
    Ok(Response::Entries((read.from.0..rotten).map(entry).chain([damaged(rotten)]).collect()))
}

/// What is asked for, all of it.
fn all(read: &Read) -> Result<Response, String> {
    let entries = read.from.0..read.from.0 + u64::from(read.max_entries);
    Ok(Response::Entries(entries.map(entry).collect()))
}

#[test]
fn a_header_that_is_damaged_on_one_replica_is_read_from_another() {
    let mut case = Case::new(4, &[1, 2]);
    let failed = case.answer(|_, read| rotten_at(2, &read)).expect_err("it is damaged");
    assert_eq!((failed.entry, failed.is_wrong, failed.is_last), (EntryId(2), true, false));
    case.answer(|asked, read| {
        assert_eq!((asked, read.from), (bookie(2), EntryId(2)), "what is known is not read again");
        all(&read)
    })
    .unwrap();
    assert!(case.scan.is_done());
    let headers = case.scan.into_headers();
    assert_eq!((headers.lost, headers.next_offset), (0, Some(Offset(7))));
}

#[test]
fn an_entry_whose_checksum_does_not_match_is_named_and_not_those_before_it() {
    let mut case = Case::new(4, &[1, 2]);
    let mut whole = entry(2);
    whole.header.prefix_len = whole.header.payload_len;
    whole.header.payload_crc ^= 1;
    let answer = Ok(Response::Entries(vec![entry(0), entry(1), whole]));
    let failed = case.answer(|_, _| answer).expect_err("it is damaged");
    assert_eq!((failed.entry, failed.is_wrong), (EntryId(2), true));
}

#[test]
fn a_header_that_is_damaged_everywhere_is_the_only_one_that_is_left_out() {
    for replicas in [&[1][..], &[1, 2]] {
        let mut case = Case::new(4, replicas);
        for _replica in replicas {
            _ = case.answer(|_, read| rotten_at(2, &read)).expect_err("it is damaged");
        }
        assert_eq!(case.scan.unreadable().map(|unreadable| unreadable.entry), Some(EntryId(2)));
        assert!(case.scan.deadline().is_some(), "there is a pause");
        case.accept_loss();
        for _replica in replicas {
            _ = case.answer(|_, read| rotten_at(2, &read)).expect_err("it is damaged");
        }
        case.answer(|_, read| {
            assert_eq!(read.from, EntryId(3));
            all(&read)
        })
        .unwrap();
        let headers = case.scan.into_headers();
        assert_eq!((headers.lost, headers.lost_at_end, headers.next_offset), (1, 0, Some(Offset(7))));
        let restored = headers.restored.expect("the snapshot is known");
        assert_eq!((restored.next_offset, restored.running_max_ms), (Offset(7), 5));
    }
}

#[test]
fn an_accepted_loss_is_that_of_one_entry() {
    let mut case = Case::new(4, &[1, 2]);
    let mut reported = Vec::new();
    while !case.scan.is_done() {
        if let Some(loss) = case.scan.unreadable().cloned()
            && !reported.contains(&loss.entry)
        {
            reported.push(loss.entry);
            case.scan.accept_loss(&loss);
        }
        _ = case.answer(|_, read| match read.from.0 {
            0 => Ok(Response::Entries(vec![entry(0)])),
            from @ (1 | 2) => rotten_at(from, &read),
            _ => all(&read),
        });
    }
    assert_eq!(reported, [EntryId(1), EntryId(2)]);
    let headers = case.scan.into_headers();
    assert_eq!((headers.lost, headers.next_offset), (2, Some(Offset(7))));
}

#[test]
fn a_scan_of_the_ledger_begun_anew_does_not_report_an_accepted_loss_again() {
    let losses = [reported().scan.unreadable().cloned().expect("it is reported")];
    let mut case = reported();
    case.scan = Scan::new(&segment(LEDGER, 4, 3, &[1, 2]), Options::default()).leaving_out(&losses);
    while !case.scan.is_done() {
        assert_eq!(case.scan.unreadable(), None);
        _ = case.answer(|asked, read| match read.from {
            EntryId(2) => all(&read),
            _ => silent(asked, &read),
        });
    }
    assert_eq!(case.scan.into_headers().lost, 1);
}

#[test]
fn a_round_of_the_replicas_begins_with_the_entry_that_they_are_asked_for() {
    let mut case = Case::new(4, &[1, 2]);
    _ = case.answer(|_, _| Ok(Response::Absent)).expect_err("it is not there");
    let failed = case.answer(|_, read| rotten_at(2, &read)).expect_err("it is damaged");
    assert!(!failed.is_last, "the first replica was asked for another entry");
    case.answer(|_, read| all(&read)).unwrap();
    assert!(case.scan.is_done());
}

#[test]
fn each_damaged_entry_of_the_ledger_has_its_pause_though_others_can_be_read() {
    let mut case = Case::new(4, &[1, 2]);
    let mut rounds = 0;
    for _answer in 0..10 {
        rounds += u32::from(case.scan.deadline().is_some());
        // One entry fits an answer.
        _ = case.answer(|_, read| match read.from.0 {
            from @ 0..2 => Ok(Response::Entries(vec![entry(from)])),
            from => rotten_at(from, &read),
        });
    }
    assert_eq!(rounds, 3, "after two entries there are four rounds, and the last is followed by a pause");
}

/// The first replica does not answer, the others cannot give entry 1.
fn silent(asked: BookieId, read: &Read) -> Result<Response, String> {
    match (asked, read.from) {
        (asked, _) if asked == bookie(1) => Err("away".to_owned()),
        (_, EntryId(0)) => Ok(Response::Entries(vec![entry(0)])),
        _ => Ok(Response::Unknown("damaged".to_owned())),
    }
}

/// A scan of three entries that has reported that replica.
fn reported() -> Case {
    let mut case = Case::new(3, &[1, 2]);
    let patience = Options::default().patience_ms;
    while case.scan.unreadable().is_none() {
        assert!(case.now < Millis(patience + 5_000), "it is never reported");
        _ = case.answer(|asked, read| silent(asked, &read));
    }
    assert!(case.now >= Millis(patience), "it may come back");
    case
}

#[test]
fn a_replica_that_is_silent_for_long_is_reported_and_not_waited_for_once_that_is_accepted() {
    let mut case = reported();
    let text = case.scan.unreadable().map(ToString::to_string).unwrap_or_default();
    let silent_one = format!("bookie {} does not answer and may still have it", bookie(1));
    assert!(text.contains("entry 1 of ledger 9") && text.contains(&silent_one), "{text}");
    assert!(text.contains("damaged"), "{text}");
    case.accept_loss();
    let mut asked_again = 0;
    while case.scan.unreadable().is_some() {
        _ = case.answer(|asked, read| {
            asked_again += u32::from(asked == bookie(1));
            silent(asked, &read)
        });
    }
    assert_eq!(asked_again, 1, "once more");
    case.answer(|asked, read| {
        assert_eq!((asked, read.from), (bookie(2), EntryId(2)));
        all(&read)
    })
    .unwrap();
    assert_eq!(case.scan.into_headers().lost, 1);
}

#[test]
fn a_replica_that_is_back_when_loss_is_accepted_gives_what_it_has() {
    let mut case = reported();
    case.accept_loss();
    while !case.scan.is_done() {
        _ = case.answer(|asked, read| if asked == bookie(1) { all(&read) } else { silent(asked, &read) });
    }
    assert_eq!(case.scan.into_headers().lost, 0);
}

#[test]
fn a_replica_that_was_not_named_is_waited_for_though_loss_is_accepted() {
    let mut case = reported();
    case.accept_loss();
    for _answer in 0..6 {
        let failed = case.answer(|_, _| Err("away".to_owned())).expect_err("it is away");
        assert_eq!(failed.entry, EntryId(1), "it is not left out");
    }
    let silences = case.scan.unreadable().map(|unreadable| unreadable.silences.len());
    assert_eq!(silences, Some(1), "now the other one is reported");
}

#[test]
fn a_ledger_without_any_replica_is_left_out_whole_once_that_is_accepted() {
    let mut case = Case::new(3_000_000, &[1, 2]);
    while case.scan.unreadable().is_none() {
        _ = case.answer(|_, _| Err("away".to_owned()));
    }
    case.accept_loss();
    for _replica in 0..2 {
        _ = case.answer(|_, _| Err("away".to_owned())).expect_err("it is away");
    }
    assert!(case.scan.is_done());
    let headers = case.scan.into_headers();
    assert_eq!((headers.lost, headers.lost_at_end), (3_000_000, 3_000_000));
}
