//! A disk that loses what was not synced.
//!
//! Files live in memory as pages. Writes are seen at once by whoever reads, and
//! survive the end of the process, but a power cut drops or tears, sector by
//! sector, whatever was written since the last sync; names that were made,
//! changed or removed since the directory was synced are kept only up to some
//! point. The disk can be told to cut the power at any of its operations, can be
//! set back to an older copy, and can flip a bit.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_bookie::disk::{Access, BLOCK, Disk, DiskFile, Space};

use super::random::Random;

const PAGE: usize = 4096;
const PAGE_LEN: u64 = PAGE as u64;
/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

type Page = Arc<[u8; PAGE]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Inode(u64);

#[derive(Clone, Debug, Default)]
struct Content {
    len: u64,
    /// Pages that are not all zero.
    pages: BTreeMap<u64, Page>,
}

#[derive(Clone, Debug)]
struct Write {
    offset: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Stored {
    durable: Content,
    /// As the process sees it.
    seen: Content,
    unsynced: Vec<Write>,
}

#[derive(Clone, Debug)]
enum Naming {
    Add(String, Inode),
    Rename(String, String),
    Remove(String),
}

/// What is on the platters: what is left when everything else is lost.
#[derive(Clone, Debug)]
pub struct Image {
    names: BTreeMap<String, Inode>,
    contents: BTreeMap<Inode, Content>,
}

/// Where a bit flipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    pub file: String,
    pub offset: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Handles of an earlier run of the process are worth nothing.
    run: u64,
    /// Operations that still succeed before the power is cut.
    fuse: Option<u64>,
    dead: bool,
    next: u64,
    names: BTreeMap<String, Inode>,
    durable_names: BTreeMap<String, Inode>,
    unsynced_names: Vec<Naming>,
    files: BTreeMap<Inode, Stored>,
    total: u64,
    operations: u64,
}

/// A simulated disk. Clones are handles of one run of one process.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    run: u64,
}

/// A file of a simulated disk.
#[derive(Debug)]
pub struct SimFile {
    disk: SimDisk,
    inode: Inode,
    len: u64,
}

impl SimDisk {
    /// An empty disk of this many bytes.
    #[must_use]
    pub fn new(total: u64) -> Self {
        let state = State { total, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), run: 0 }
    }

    /// Cuts the power when so many more operations have been done. The
    /// operation that meets the cut fails; whether it happened is open.
    pub fn cut_after(&self, operations: u64) {
        self.lock().fuse = Some(operations);
    }

    /// Whether the power is cut.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Operations that changed something, so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// The process ended and another run begins: nothing is lost, but handles
    /// of before are dead.
    #[must_use]
    pub fn next_run(&self) -> Self {
        let mut state = self.lock();
        state.run += 1;
        state.fuse = None;
        state.dead = false;
        Self { state: Arc::clone(&self.state), run: state.run }
    }

    /// The power is cut: what was not synced is dropped or torn. Another run
    /// begins.
    #[must_use]
    pub fn power_cut(&self, random: &mut Random) -> Self {
        let mut state = self.lock();
        state.lose_names(random);
        for stored in state.files.values_mut() {
            stored.lose(random);
        }
        drop(state);
        self.next_run()
    }

    /// What is durable now.
    #[must_use]
    pub fn image(&self) -> Image {
        let state = self.lock();
        let contents = state.files.iter().map(|(inode, stored)| (*inode, stored.durable.clone())).collect();
        Image { names: state.durable_names.clone(), contents }
    }

    /// Sets the disk back to an older copy. Another run begins.
    #[must_use]
    pub fn set_back(&self, image: &Image) -> Self {
        let mut state = self.lock();
        state.names.clone_from(&image.names);
        state.durable_names.clone_from(&image.names);
        state.unsynced_names.clear();
        let stored = |(inode, content): (&Inode, &Content)| {
            let stored = Stored { durable: content.clone(), seen: content.clone(), unsynced: Vec::new() };
            (*inode, stored)
        };
        state.files = image.contents.iter().map(stored).collect();
        drop(state);
        self.next_run()
    }

    /// Flips one bit of what is durable and not zero, in a file whose name
    /// matches, in one of the `newest` last pages, files taken in the order of
    /// their names. Nothing: there is no such byte.
    pub fn flip_bit(
        &self,
        random: &mut Random,
        newest: usize,
        matches: impl Fn(&str) -> bool,
    ) -> Option<Flip> {
        let mut state = self.lock();
        let files: Vec<_> = state.durable_names.iter().filter(|(name, _)| matches(name)).collect();
        let mut candidates = Vec::new();
        for (name, inode) in files {
            let pages =
                state.files.get(inode).map(|stored| stored.durable.pages.keys()).into_iter().flatten();
            candidates.extend(pages.map(|page| (name.clone(), *inode, *page)));
        }
        candidates.drain(..candidates.len().saturating_sub(newest));
        let (file, inode, page) = random.pick(&candidates)?.clone();
        let stored = state.files.get_mut(&inode)?;
        let bytes = stored.durable.pages.get(&page)?;
        let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        let at = *random.pick(&used)?;
        let bit = 1 << random.index(8);
        for content in [&mut stored.durable, &mut stored.seen] {
            if let Some(page) = content.pages.get_mut(&page) {
                Arc::make_mut(page)[at] ^= bit;
            }
        }
        Some(Flip { file, offset: page * PAGE_LEN + at as u64 })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if this run is the present one and there is power.
    fn read(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.run != self.run || state.dead { Err(no_power()) } else { Ok(state) }
    }

    /// As [`Self::read`], for an operation that changes something. Tells
    /// whether the power goes while it is done.
    fn change(&self) -> io::Result<(MutexGuard<'_, State>, bool)> {
        let mut state = self.read()?;
        state.operations += 1;
        let cut = state.fuse == Some(0);
        state.dead |= cut;
        state.fuse = state.fuse.map(|left| left.saturating_sub(1));
        Ok((state, cut))
    }
}

fn no_power() -> io::Error {
    io::Error::other("the power is cut")
}

fn done(cut: bool) -> io::Result<()> {
    if cut { Err(no_power()) } else { Ok(()) }
}

impl State {
    fn name(&mut self, naming: Naming) {
        naming.apply(&mut self.names);
        self.unsynced_names.push(naming);
    }

    fn find(&self, name: &str) -> io::Result<Inode> {
        self.names.get(name).copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))
    }

    fn used(&self) -> u64 {
        self.names.values().filter_map(|inode| self.files.get(inode)).map(|stored| stored.seen.len).sum()
    }

    fn add(&mut self, content: Content) -> Inode {
        let inode = Inode(self.next);
        self.next += 1;
        let durable = Content { len: content.len, pages: BTreeMap::new() };
        self.files.insert(inode, Stored { durable, seen: content, unsynced: Vec::new() });
        inode
    }

    /// Directory operations reach the disk in order: some first ones are kept.
    fn lose_names(&mut self, random: &mut Random) {
        let kept = random.index(self.unsynced_names.len() + 1);
        let unsynced = std::mem::take(&mut self.unsynced_names);
        unsynced.iter().take(kept).for_each(|naming| naming.apply(&mut self.durable_names));
        self.names.clone_from(&self.durable_names);
        let live: std::collections::BTreeSet<_> = self.names.values().copied().collect();
        self.files.retain(|inode, _| live.contains(inode));
    }

    fn sync_names(&mut self) {
        self.unsynced_names.clear();
        self.durable_names.clone_from(&self.names);
        let live: std::collections::BTreeSet<_> = self.names.values().copied().collect();
        self.files.retain(|inode, _| live.contains(inode));
    }
}

impl Naming {
    fn apply(&self, names: &mut BTreeMap<String, Inode>) {
        match self {
            Self::Add(name, inode) => _ = names.insert(name.clone(), *inode),
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Remove(name) => _ = names.remove(name),
        }
    }
}

impl Stored {
    fn write(&mut self, bytes: &[u8], offset: u64) {
        self.seen.write(bytes, offset);
        self.unsynced.push(Write { offset, bytes: bytes.to_vec() });
    }

    fn sync(&mut self) {
        for Write { offset, bytes } in self.unsynced.drain(..) {
            self.durable.write(&bytes, offset);
        }
    }

    /// Every unsynced write is kept, dropped, or kept in some of its sectors.
    fn lose(&mut self, random: &mut Random) {
        for Write { offset, bytes } in std::mem::take(&mut self.unsynced) {
            match random.index(4) {
                0 => self.durable.write(&bytes, offset),
                1 => {}
                // The head arrived, the rest did not.
                2 => {
                    let sectors = random.index(bytes.len().div_ceil(SECTOR) + 1);
                    let head = (sectors * SECTOR).min(bytes.len());
                    self.durable.write(&bytes[..head], offset);
                }
                _ => {
                    for (sector, part) in bytes.chunks(SECTOR).enumerate() {
                        if random.chance(500) {
                            self.durable.write(part, offset + (sector * SECTOR) as u64);
                        }
                    }
                }
            }
        }
        self.seen = self.durable.clone();
    }
}

const fn within_page(at: u64) -> usize {
    (at % PAGE_LEN) as usize
}

impl Content {
    fn write(&mut self, bytes: &[u8], offset: u64) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = within_page(at);
            let part = (PAGE - within).min(bytes.len() - done);
            let source = &bytes[done..done + part];
            done += part;
            let number = at / PAGE_LEN;
            if !self.pages.contains_key(&number) && source.iter().all(|byte| *byte == 0) {
                continue;
            }
            let page = self.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + part].copy_from_slice(source);
            if page.iter().all(|byte| *byte == 0) {
                self.pages.remove(&number);
            }
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    fn read(&self, buffer: &mut [u8], offset: u64) {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let within = within_page(at);
            let part = (PAGE - within).min(buffer.len() - done);
            let target = &mut buffer[done..done + part];
            match self.pages.get(&(at / PAGE_LEN)) {
                Some(page) => target.copy_from_slice(&page[within..within + part]),
                None => target.fill(0),
            }
            done += part;
        }
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn block(&self) -> usize {
        BLOCK
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.read()?.names.keys().cloned().collect())
    }

    fn open(&self, name: &str, _: Access) -> io::Result<Arc<SimFile>> {
        let state = self.read()?;
        let inode = state.find(name)?;
        let len = state.files.get(&inode).map_or(0, |stored| stored.seen.len);
        Ok(Arc::new(SimFile { disk: self.clone(), inode, len }))
    }

    fn create(&self, name: &str, len: u64, _: Access) -> io::Result<Arc<SimFile>> {
        let (mut state, cut) = self.change()?;
        if state.names.contains_key(name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, name.to_owned()));
        }
        if state.used() + len > state.total {
            return Err(io::Error::new(io::ErrorKind::StorageFull, name.to_owned()));
        }
        let inode = state.add(Content { len, pages: BTreeMap::new() });
        state.name(Naming::Add(name.to_owned(), inode));
        done(cut)?;
        drop(state);
        Ok(Arc::new(SimFile { disk: self.clone(), inode, len }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (mut state, cut) = self.change()?;
        state.find(from)?;
        state.name(Naming::Rename(from.to_owned(), to.to_owned()));
        done(cut)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let (mut state, cut) = self.change()?;
        state.find(name)?;
        state.name(Naming::Remove(name.to_owned()));
        done(cut)
    }

    fn sync_dir(&self) -> io::Result<()> {
        let (mut state, cut) = self.change()?;
        done(cut)?;
        state.sync_names();
        Ok(())
    }

    fn get(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let state = self.read()?;
        let Ok(inode) = state.find(name) else { return Ok(None) };
        let Some(stored) = state.files.get(&inode) else { return Ok(None) };
        let mut content = vec![0; usize::try_from(stored.seen.len).unwrap_or_default()];
        stored.seen.read(&mut content, 0);
        Ok(Some(content))
    }

    fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let (mut state, cut) = self.change()?;
        let mut whole = Content::default();
        whole.write(content, 0);
        let inode = state.add(whole);
        if let Some(stored) = state.files.get_mut(&inode) {
            stored.durable = stored.seen.clone();
        }
        state.name(Naming::Add(name.to_owned(), inode));
        done(cut)?;
        state.sync_names();
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let state = self.read()?;
        Ok(Space { used: state.used(), free: state.total.saturating_sub(state.used()) })
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.read()?;
        if offset + buffer.len() as u64 > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let stored = state.files.get(&self.inode).ok_or(io::ErrorKind::NotFound)?;
        stored.seen.read(buffer, offset);
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let (mut state, cut) = self.disk.change()?;
        let stored = state.files.get_mut(&self.inode).ok_or(io::ErrorKind::NotFound)?;
        stored.write(buffer, offset);
        done(cut)
    }

    fn sync(&self) -> io::Result<()> {
        let (mut state, cut) = self.disk.change()?;
        done(cut)?;
        let stored = state.files.get_mut(&self.inode).ok_or(io::ErrorKind::NotFound)?;
        stored.sync();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(disk: &SimDisk) -> Vec<u8> {
        let file = disk.open("a", Access::Direct).unwrap();
        let mut content = vec![0; 8192];
        file.read_at(&mut content, 0).unwrap();
        content
    }

    #[test]
    fn what_was_synced_stays_and_what_was_not_is_torn_by_sectors() {
        let mut kept = [0; 3];
        for seed in 0..200 {
            let disk = SimDisk::new(1 << 20);
            let file = disk.create("a", 8192, Access::Direct).unwrap();
            file.write_at(&[1; 4096], 0).unwrap();
            file.sync().unwrap();
            disk.sync_dir().unwrap();
            file.write_at(&[2; 4096], 4096).unwrap();
            assert_eq!(written(&disk)[4096..], [2; 4096]);
            let disk = disk.power_cut(&mut Random::new(seed));
            let content = written(&disk);
            assert_eq!(content[..4096], [1; 4096]);
            let sectors: Vec<_> = content[4096..].chunks(SECTOR).map(|sector| sector[0]).collect();
            assert!(content[4096..].chunks(SECTOR).all(|sector| sector == [sector[0]; SECTOR]));
            let count = sectors.iter().filter(|byte| **byte == 2).count();
            kept[usize::from(count > 0) + usize::from(count == sectors.len())] += 1;
        }
        assert!(kept.iter().all(|times| *times > 10), "dropped, torn, kept: {kept:?}");
    }

    #[test]
    fn a_name_is_durable_once_its_directory_is_synced() {
        let lost = (0..100).filter(|seed| {
            let disk = SimDisk::new(1 << 20);
            disk.create("a", 4096, Access::Direct).unwrap().sync().unwrap();
            disk.sync_dir().unwrap();
            disk.create("b", 4096, Access::Direct).unwrap().sync().unwrap();
            let disk = disk.power_cut(&mut Random::new(*seed));
            let names = disk.list().unwrap();
            assert!(names.contains(&"a".to_owned()));
            names.len() == 1
        });
        assert!((20..80).contains(&lost.count()));
    }

    #[test]
    fn the_end_of_a_process_loses_nothing_but_its_handles() {
        let disk = SimDisk::new(1 << 20);
        let file = disk.create("a", 8192, Access::Direct).unwrap();
        file.write_at(&[3; 100], 50).unwrap();
        let next = disk.next_run();
        assert!(file.sync().is_err() && disk.list().is_err());
        assert_eq!(written(&next)[50..150], [3; 100]);
    }

    #[test]
    fn a_cut_fails_the_operation_that_meets_it_and_all_later_ones() {
        let disk = SimDisk::new(1 << 20);
        let file = disk.create("a", 8192, Access::Direct).unwrap();
        disk.cut_after(1);
        file.write_at(&[1; 512], 0).unwrap();
        assert!(file.sync().is_err());
        assert!(disk.is_dead() && disk.get("a").is_err());
    }

    #[test]
    fn a_disk_set_back_is_as_it_was() {
        let disk = SimDisk::new(1 << 20);
        let file = disk.create("a", 8192, Access::Direct).unwrap();
        disk.put("small", b"old").unwrap();
        let image = disk.image();
        file.write_at(&[9; 4096], 0).unwrap();
        file.sync().unwrap();
        disk.put("small", b"newer").unwrap();
        let disk = disk.set_back(&image);
        assert_eq!(written(&disk), [0; 8192]);
        assert_eq!(disk.get("small").unwrap().unwrap(), b"old");
    }

    #[test]
    fn a_flipped_bit_is_one_bit_of_something_durable() {
        let disk = SimDisk::new(1 << 20);
        let file = disk.create("a", 8192, Access::Direct).unwrap();
        file.write_at(&[1; 4096], 4096).unwrap();
        file.sync().unwrap();
        disk.sync_dir().unwrap();
        let flip = disk.flip_bit(&mut Random::new(5), 8, |name| name == "a").unwrap();
        let different: Vec<_> = (4096..8192).filter(|at| written(&disk)[*at] != 1).collect();
        assert_eq!(different, [usize::try_from(flip.offset).unwrap()]);
        assert_eq!(disk.flip_bit(&mut Random::new(5), 8, |name| name == "b"), None);
    }
}
