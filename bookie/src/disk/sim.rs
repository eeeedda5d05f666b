//! A disk in memory that does to a bookie what disks do: at a power cut it
//! drops, tears and reorders what was not synced, it flips bits, refuses to
//! read or write, runs full, and is set back to an older copy. Seeded: the same
//! seed does the same.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Access, BLOCK, Disk, DiskFile, Space};

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// A simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// An open file of a simulated disk.
pub struct SimFile {
    state: Arc<Mutex<State>>,
    inode: u64,
    len: u64,
    /// Handles from before a power cut are dead.
    life: u64,
}

/// A copy of a disk at one time, to set it back to.
#[derive(Clone, Debug)]
pub struct Copy {
    names: BTreeMap<String, u64>,
    contents: BTreeMap<u64, Vec<u8>>,
}

struct State {
    random: StdRng,
    /// The names as the running system sees them, and as they are on the disk.
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    pending_names: Vec<NameChange>,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    life: u64,
    capacity: u64,
    faults: Faults,
    writes: u64,
}

/// What goes wrong next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The sync after so many more fails; what it would have synced may be
    /// there or not.
    pub sync_fails_after: Option<u32>,
    /// After so many more writes and syncs the power is gone: all further calls
    /// fail.
    pub dies_after: Option<u32>,
    /// Reads of this many are refused, one in so many; 0 for none.
    pub read_fails_one_in: u32,
}

#[derive(Default)]
struct Inode {
    /// As the running system sees it.
    current: Vec<u8>,
    /// As it surely is on the disk.
    durable: Vec<u8>,
    /// Written and not synced.
    pending: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
enum NameChange {
    Create(String, u64),
    Rename(String, String),
    Remove(String),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Create(name, inode) => _ = names.insert(name.clone(), *inode),
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Remove(name) => _ = names.remove(name),
        }
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").finish_non_exhaustive()
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("inode", &self.inode).finish_non_exhaustive()
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimDisk {
    /// An empty disk of this many bytes.
    #[must_use]
    pub fn new(seed: u64, capacity: u64) -> Self {
        let state = State {
            random: StdRng::seed_from_u64(seed),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            inodes: BTreeMap::new(),
            next_inode: 1,
            life: 0,
            capacity,
            faults: Faults::default(),
            writes: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Arranges what goes wrong.
    pub fn set_faults(&self, faults: Faults) {
        locked(&self.state).faults = faults;
    }

    /// Number of writes and syncs so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        locked(&self.state).writes
    }

    /// Cuts the power: of what was not synced some stays, in whole sectors and
    /// any order; names change in order, up to some point. Open files are dead.
    /// The disk then works again.
    pub fn cut_power(&self) {
        let mut state = locked(&self.state);
        let state = &mut *state;
        state.life += 1;
        state.faults = Faults::default();
        let keep = state.random.random_range(0..=state.pending_names.len());
        for change in state.pending_names.drain(..).take(keep) {
            change.apply(&mut state.durable_names);
        }
        state.names = state.durable_names.clone();
        for inode in state.inodes.values_mut() {
            // Nothing, a bit, or nearly all of it.
            let chance = [0.0, 0.5, 0.9, 1.0][state.random.random_range(0..4)];
            for (offset, bytes) in inode.pending.drain(..) {
                for (at, sector) in bytes.chunks(SECTOR).enumerate() {
                    if state.random.random_bool(chance) {
                        let from = offset + at * SECTOR;
                        inode.durable[from..from + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            inode.current.clone_from(&inode.durable);
        }
        state.forget_nameless();
    }

    /// The process dies and the power stays: what was not synced is still seen,
    /// and may yet be lost. Open files are dead.
    pub fn kill_process(&self) {
        let mut state = locked(&self.state);
        state.life += 1;
        state.faults = Faults::default();
    }

    /// Flips one bit of what is durable in a file.
    ///
    /// # Panics
    /// When there is no such byte.
    pub fn flip_bit(&self, name: &str, byte: u64, bit: u8) {
        let mut state = locked(&self.state);
        let Some(&inode) = state.names.get(name) else { panic!("no file {name}") };
        let Some(inode) = state.inodes.get_mut(&inode) else { panic!("no content of {name}") };
        let at = usize::try_from(byte).unwrap_or(usize::MAX);
        inode.current[at] ^= 1 << bit;
        inode.durable[at] ^= 1 << bit;
    }

    /// A copy of what is durable.
    #[must_use]
    pub fn copy(&self) -> Copy {
        let state = locked(&self.state);
        let contents = state.inodes.iter().map(|(&id, inode)| (id, inode.durable.clone())).collect();
        Copy { names: state.durable_names.clone(), contents }
    }

    /// Sets the disk back to a copy. Open files are dead.
    pub fn set_back(&self, copy: &Copy) {
        let mut state = locked(&self.state);
        state.life += 1;
        state.faults = Faults::default();
        state.pending_names.clear();
        state.names = copy.names.clone();
        state.durable_names = copy.names.clone();
        state.inodes = copy
            .contents
            .iter()
            .map(|(&id, content)| {
                let inode = Inode { current: content.clone(), durable: content.clone(), pending: Vec::new() };
                (id, inode)
            })
            .collect();
    }
}

impl State {
    fn used(&self) -> u64 {
        self.inodes.values().map(|inode| inode.current.len() as u64).sum()
    }

    /// Counts a write or sync, and fails it when the power is gone.
    fn spend(&mut self) -> io::Result<()> {
        self.writes += 1;
        match &mut self.faults.dies_after {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        self.spend()?;
        change.apply(&mut self.names);
        self.pending_names.push(change);
        Ok(())
    }

    fn forget_nameless(&mut self) {
        let State { names, durable_names, inodes, .. } = self;
        inodes.retain(|id, _| {
            names.values().any(|named| named == id) || durable_names.values().any(|named| named == id)
        });
    }
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

impl Disk for SimDisk {
    type File = SimFile;

    fn block(&self) -> usize {
        BLOCK
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(locked(&self.state).names.keys().cloned().collect())
    }

    fn open(&self, name: &str, _: Access) -> io::Result<Arc<SimFile>> {
        let state = locked(&self.state);
        let inode = *state.names.get(name).ok_or_else(|| not_found(name))?;
        let len = state.inodes.get(&inode).map_or(0, |inode| inode.current.len() as u64);
        Ok(Arc::new(SimFile { state: Arc::clone(&self.state), inode, len, life: state.life }))
    }

    fn create(&self, name: &str, len: u64, _: Access) -> io::Result<Arc<SimFile>> {
        let mut state = locked(&self.state);
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if state.used() + len > state.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = state.next_inode;
        state.next_inode += 1;
        state.change_name(NameChange::Create(name.to_owned(), inode))?;
        let content = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let file = Inode { current: content.clone(), durable: content, pending: Vec::new() };
        state.inodes.insert(inode, file);
        Ok(Arc::new(SimFile { state: Arc::clone(&self.state), inode, len, life: state.life }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = locked(&self.state);
        if !state.names.contains_key(from) {
            return Err(not_found(from));
        }
        state.change_name(NameChange::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = locked(&self.state);
        if !state.names.contains_key(name) {
            return Err(not_found(name));
        }
        state.change_name(NameChange::Remove(name.to_owned()))
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = locked(&self.state);
        state.spend()?;
        let state = &mut *state;
        for change in state.pending_names.drain(..) {
            change.apply(&mut state.durable_names);
        }
        state.forget_nameless();
        Ok(())
    }

    fn get(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let state = locked(&self.state);
        let inode = state.names.get(name).and_then(|inode| state.inodes.get(inode));
        Ok(inode.map(|inode| inode.current.clone()))
    }

    fn space(&self) -> io::Result<Space> {
        let state = locked(&self.state);
        Ok(Space { used: state.used(), free: state.capacity.saturating_sub(state.used()) })
    }
}

impl SimFile {
    fn with<T>(&self, run: impl FnOnce(&mut State, u64) -> io::Result<T>) -> io::Result<T> {
        let mut state = locked(&self.state);
        if state.life != self.life {
            return Err(io::Error::other("the file was open when the power was cut"));
        }
        run(&mut state, self.inode)
    }

    fn range(&self, offset: u64, length: usize) -> io::Result<std::ops::Range<usize>> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.checked_add(length).filter(|&end| end as u64 <= self.len);
        end.map(|end| start..end).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let range = self.range(offset, buffer.len())?;
        self.with(|state, inode| {
            let one_in = state.faults.read_fails_one_in;
            if one_in > 0 && state.random.random_ratio(1, one_in) {
                return Err(io::Error::other("the disk refuses to read"));
            }
            let inode = state.inodes.get(&inode).ok_or(io::ErrorKind::NotFound)?;
            buffer.copy_from_slice(&inode.current[range]);
            Ok(())
        })
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let range = self.range(offset, buffer.len())?;
        self.with(|state, inode| {
            let spent = state.spend();
            let inode = state.inodes.get_mut(&inode).ok_or(io::ErrorKind::NotFound)?;
            // A write that the power cut short may have reached the disk.
            inode.pending.push((range.start, buffer.to_vec()));
            spent?;
            inode.current[range].copy_from_slice(buffer);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state, inode| {
            state.spend()?;
            match &mut state.faults.sync_fails_after {
                Some(0) => return Err(io::Error::other("the disk refuses to sync")),
                Some(left) => *left -= 1,
                None => {}
            }
            let inode = state.inodes.get_mut(&inode).ok_or(io::ErrorKind::NotFound)?;
            for (offset, bytes) in inode.pending.drain(..) {
                inode.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_synced_survives_a_cut_and_what_is_not_may_be_torn() {
        let mut torn = 0;
        for seed in 0..50 {
            let disk = SimDisk::new(seed, 1 << 20);
            let file = disk.create("a", 8192, Access::Direct).unwrap();
            file.write_at(&[1; 4096], 0).unwrap();
            file.sync().unwrap();
            disk.sync_dir().unwrap();
            file.write_at(&[2; 4096], 4096).unwrap();
            disk.cut_power();
            assert!(file.read_at(&mut [0], 0).is_err(), "open files are dead");
            let content = disk.get("a").unwrap().unwrap();
            assert_eq!(content[..4096], [1; 4096]);
            let kept = content[4096..].iter().filter(|&&byte| byte == 2).count();
            assert_eq!(kept % SECTOR, 0);
            torn += usize::from(kept > 0 && kept < 4096);
        }
        assert!(torn > 0, "some cut tears");
    }

    #[test]
    fn names_are_lost_until_the_directory_is_synced() {
        let mut lost = 0;
        for seed in 0..50 {
            let disk = SimDisk::new(seed, 1 << 20);
            disk.put("a", b"old").unwrap();
            disk.create("b", 3, Access::Direct).unwrap().write_at(b"new", 0).unwrap();
            disk.rename("b", "a").unwrap();
            disk.cut_power();
            lost += usize::from(disk.get("a").unwrap().unwrap() == b"old");
        }
        assert!((1..50).contains(&lost), "{lost}");
    }

    #[test]
    fn a_disk_is_set_back_to_a_copy() {
        let disk = SimDisk::new(1, 1 << 20);
        disk.put("a", b"one").unwrap();
        let copy = disk.copy();
        disk.put("a", b"two").unwrap();
        disk.set_back(&copy);
        assert_eq!(disk.get("a").unwrap().unwrap(), b"one");
    }

    #[test]
    fn a_full_disk_makes_no_files() {
        let disk = SimDisk::new(1, 10);
        assert!(disk.create("a", 10, Access::Direct).is_ok());
        let error = disk.create("b", 1, Access::Direct).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
