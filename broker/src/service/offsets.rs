//! ListOffsets: earliest, latest, by time.

use quire_proto::id::Offset;
use quire_proto::v1;

use crate::failure::{self, Failure};
use crate::log::PartitionLog;
use crate::service::Door;

impl Door {
    /// The offset that is asked for in one partition.
    pub async fn list_offset(&self, asked: v1::ListOffsetsPartition) -> v1::ListOffsetsResult {
        let v1::ListOffsetsPartition { topic, topic_id, partition, at } = asked;
        let result = v1::ListOffsetsResult { topic, partition, ..v1::ListOffsetsResult::default() };
        match self.find_offset(&result.topic, &topic_id, partition, at).await {
            Ok((offset, leader_epoch)) => {
                v1::ListOffsetsResult { offset: offset.map(|offset| offset.0), leader_epoch, ..result }
            }
            Err(failure) => v1::ListOffsetsResult { error: Some(failure.into()), ..result },
        }
    }

    async fn find_offset(
        &self,
        topic: &str,
        topic_id: &[u8],
        partition: u32,
        at: Option<v1::list_offsets_partition::At>,
    ) -> Result<(Option<Offset>, u64), Failure> {
        use v1::list_offsets_partition::At;
        self.check_open()?;
        let (_, log) = self.partition(topic, topic_id, partition)?;
        self.check_fresh()?;
        let offset = match at {
            Some(At::Earliest(_)) => Some(log.earliest()?),
            Some(At::Latest(_)) => Some(log.bounds()?.latest),
            Some(At::TimestampMs(timestamp_ms)) => {
                log.bounds()?;
                self.reader.offset_of(&log, timestamp_ms).await?
            }
            None => return Err(failure::invalid("say which offset: earliest, latest or timestamp_ms")),
        };
        Ok((offset, epoch_at(&log, offset)))
    }
}

/// The epoch that the record at this offset was written under; of the next
/// offset, the present one.
fn epoch_at(log: &PartitionLog, offset: Option<Offset>) -> u64 {
    let now = log.standing().1.0;
    let Some(offset) = offset else { return now };
    let segments = log.segments();
    let holder = segments.iter().find(|segment| (segment.base_offset..segment.next_offset).contains(&offset));
    holder.map_or(now, |segment| segment.epoch.0)
}
