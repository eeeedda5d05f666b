//! What a bookie takes, given the space that is left (L6).

use std::sync::Arc;

use quire_ledger::replica::Admission;

use crate::disk::Disk;
use crate::log::pool::FilePool;
use crate::shared::Shared;

/// When which part of the disk is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Water {
    pub(crate) high: f64,
    pub(crate) low: f64,
    pub(crate) headroom_bytes: u64,
    pub(crate) reserve_bytes: u64,
}

impl Water {
    /// What to take, given what is taken now (L6). `used`: the part of the disk
    /// in use; `left`: bytes that can still be written.
    pub(crate) fn admission(&self, now: Admission, used: f64, left: u64) -> Admission {
        // Half of the reserve is for recovery, the other for fences.
        if left < self.reserve_bytes / 2 {
            Admission::Fences
        } else if (used >= self.high && left < self.headroom_bytes) || left < self.reserve_bytes {
            Admission::Recovery
        } else if used < self.low || left / 2 >= self.headroom_bytes || now == Admission::All {
            Admission::All
        } else {
            Admission::Recovery
        }
    }
}

/// The space of a bookie's disk. The upkeep looks at it every now and then, and
/// the log thread whenever it has begun a file: what a fast writer fills
/// between two looks of the upkeep would else be more than the reserve.
pub(crate) struct Space<D: Disk> {
    pub(crate) disk: D,
    pub(crate) pool: Arc<FilePool>,
    pub(crate) water: Water,
    pub(crate) shared: Arc<Shared>,
}

impl<D: Disk> Space<D> {
    /// Looks, and tells what to take from now on if that has changed. Files
    /// that wait count as free.
    pub(crate) fn look(&self) -> Option<Admission> {
        let space = self.disk.space().ok()?;
        let left = space.free + self.pool.ready() as u64 * self.pool.file_bytes();
        let used = space.part_in_use(left);
        metrics::gauge!("quire_bookie_disk_free_bytes").set(left as f64);
        let now = self.shared.admission();
        let next = self.water.admission(now, used, left);
        if now == next {
            return None;
        }
        if next < Admission::All {
            tracing::warn!(left, ?next, "the disk is nearly full: the bookie takes no new entries");
        } else {
            tracing::info!(left, "the bookie takes new entries again");
        }
        metrics::gauge!("quire_bookie_read_only").set(f64::from(u8::from(next < Admission::All)));
        self.shared.set_admission(next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l6_a_full_disk_is_read_only_until_it_is_below_the_low_water_mark() {
        let water = Water { high: 0.95, low: 0.90, headroom_bytes: 2000, reserve_bytes: 100 };
        let mut now = Admission::All;
        for (used, left, expected) in [
            (0.50, 1000, Admission::All),
            (0.94, 1000, Admission::All),
            (0.95, 1000, Admission::Recovery),
            (0.92, 1000, Admission::Recovery),
            (0.98, 49, Admission::Fences),
            (0.98, 60, Admission::Recovery),
            (0.89, 1000, Admission::All),
            (0.50, 99, Admission::Recovery),
            (0.99, 3999, Admission::Recovery),
            (0.99, 4000, Admission::All),
            (0.99, 2000, Admission::All),
            (0.99, 1999, Admission::Recovery),
        ] {
            now = water.admission(now, used, left);
            assert_eq!(now, expected, "{used} {left}");
        }
    }
}
