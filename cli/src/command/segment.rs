//! `quire segment`

use quire_proto::v1;
use serde::Serialize;

use super::connect;
use super::ledger::LedgerView;
use crate::cli::{Common, Segment, SegmentList};
use crate::failure::Failure;
use crate::output::{self, human_bytes};

/// # Errors
/// What the server refused.
pub(crate) async fn run(command: &Segment, common: &Common) -> Result<(), Failure> {
    match command {
        Segment::List(arguments) => list(arguments, common).await,
    }
}

async fn list(arguments: &SegmentList, common: &Common) -> Result<(), Failure> {
    let admin = connect::admin(common).await?;
    let segments =
        admin.list_segments(&arguments.topic, arguments.partition).await.map_err(connect::failure)?;
    let views: Vec<_> = segments.into_iter().map(SegmentView::from).collect();
    output::emit(common.output, &views, |views| {
        output::columns(
            ["PARTITION", "SEGMENT", "BASE-OFFSET", "NEXT-OFFSET", "LEDGER", "STATE", "SIZE", "REPLICAS"],
            views.iter().map(SegmentView::row),
        )
    })
}

#[derive(Debug, Serialize)]
struct SegmentView {
    partition: u32,
    sequence: u64,
    base_offset: u64,
    ledger: LedgerView,
}

impl From<v1::Segment> for SegmentView {
    fn from(segment: v1::Segment) -> Self {
        SegmentView {
            partition: segment.partition,
            sequence: segment.sequence,
            base_offset: segment.base_offset,
            ledger: LedgerView::from(segment.ledger.unwrap_or_default()),
        }
    }
}

impl SegmentView {
    fn row(&self) -> [String; 8] {
        let ledger = &self.ledger;
        [
            self.partition.to_string(),
            self.sequence.to_string(),
            self.base_offset.to_string(),
            ledger.next_offset.map_or("-".to_owned(), |offset| offset.to_string()),
            ledger.id.to_string(),
            ledger.state.to_owned(),
            ledger.bytes.map_or("-".to_owned(), human_bytes),
            ledger.replicas.join(","),
        ]
    }
}
