//! One power supply for two disks: the bookie's, and that of the metadata file.
//! When it goes, no operation of either ends any more; what was not synced is
//! then dropped or torn by a seeded choice.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_bookie::disk::sim::SimFile;
use quire_bookie::disk::{Access, Disk, DiskFile, SimDisk, Space};
use quire_metadata::embedded::SimBackend;
use redb::StorageBackend;
use tokio::sync::watch;

const DISK_BYTES: u64 = 512 << 20;

/// A machine's disks and their power.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) disk: SimDisk,
    pub(crate) metadata: SimBackend,
    supply: Arc<Supply>,
}

#[derive(Debug)]
struct Supply {
    state: Mutex<State>,
    /// The last life whose power has gone.
    ended: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    life: u64,
    on: bool,
    /// Writes and syncs until the power goes.
    left: Option<u64>,
    /// Writes and syncs of this life.
    spent: u64,
    /// The bookie's log files say that they are synced, and are not.
    lies: bool,
}

/// Of one life: dead when its power has gone.
#[derive(Clone, Debug)]
struct Plug {
    supply: Arc<Supply>,
    life: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    /// One that the cut interrupts may have reached the disk, whole or in parts.
    Write,
    /// One that the cut interrupts has not ended.
    Sync,
}

impl Supply {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self, state: &mut State) {
        state.on = false;
        self.ended.send_replace(state.life);
    }
}

impl Machine {
    pub(crate) fn new(seed: u64) -> Self {
        let state = State { life: 1, on: true, left: None, spent: 0, lies: false };
        let supply = Supply { state: Mutex::new(state), ended: watch::Sender::new(0) };
        Self {
            disk: SimDisk::new(seed, DISK_BYTES),
            metadata: SimBackend::new(seed),
            supply: Arc::new(supply),
        }
    }

    /// The disks as a process of this life has them.
    pub(crate) fn plug_in(&self) -> (PoweredDisk, PoweredBackend) {
        let plug = Plug { supply: Arc::clone(&self.supply), life: self.supply.locked().life };
        let disk = PoweredDisk { disk: self.disk.clone(), plug: plug.clone() };
        (disk, PoweredBackend { backend: self.metadata.clone(), plug })
    }

    /// The power goes with the write or sync after so many more.
    pub(crate) fn cut_after(&self, operations: u64) {
        let mut state = self.supply.locked();
        if state.on {
            state.left = Some(operations);
        }
    }

    /// From now on the bookie's log files are not synced, and say that they are.
    pub(crate) fn lie(&self) {
        self.supply.locked().lies = true;
    }

    /// As if no cut had been arranged.
    pub(crate) fn cut_never(&self) {
        self.supply.locked().left = None;
    }

    /// Both disks stop at this instant.
    pub(crate) fn cut(&self) {
        let mut state = self.supply.locked();
        self.supply.cut(&mut state);
    }

    /// The power is back. Who was plugged in before stays without.
    pub(crate) fn restore(&self) {
        let mut state = self.supply.locked();
        assert!(!state.on, "the power is on");
        self.disk.cut_power();
        self.metadata.cut_power();
        *state = State { life: state.life + 1, on: true, left: None, spent: 0, ..*state };
    }

    pub(crate) fn is_on(&self) -> bool {
        self.supply.locked().on
    }

    /// Writes and syncs of this life.
    pub(crate) fn spent(&self) -> u64 {
        self.supply.locked().spent
    }

    /// Waits until the power of this life has gone.
    pub(crate) fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let life = self.supply.locked().life;
        let mut ended = self.supply.ended.subscribe();
        async move {
            // The sender lives as long as a machine does.
            _ = ended.wait_for(|ended| *ended >= life).await;
        }
    }
}

impl Plug {
    fn run<T>(&self, kind: Kind, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let gone = || io::Error::other("the power is gone");
        let mut state = self.supply.locked();
        if !state.on || state.life != self.life {
            return Err(gone());
        }
        if kind == Kind::Read {
            return act();
        }
        state.spent += 1;
        match &mut state.left {
            Some(0) => {
                if kind == Kind::Write {
                    _ = act();
                }
                self.supply.cut(&mut state);
                Err(gone())
            }
            Some(left) => {
                *left -= 1;
                act()
            }
            None => act(),
        }
    }
}

/// The bookie's disk.
#[derive(Clone, Debug)]
pub(crate) struct PoweredDisk {
    disk: SimDisk,
    plug: Plug,
}

/// A file of it.
#[derive(Debug)]
pub(crate) struct PoweredFile {
    file: Arc<SimFile>,
    access: Access,
    plug: Plug,
}

impl PoweredDisk {
    fn powered(&self, file: Arc<SimFile>, access: Access) -> Arc<PoweredFile> {
        Arc::new(PoweredFile { file, access, plug: self.plug.clone() })
    }
}

impl Disk for PoweredDisk {
    type File = PoweredFile;

    fn block(&self) -> usize {
        self.disk.block()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.plug.run(Kind::Read, || self.disk.list())
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<PoweredFile>> {
        self.plug.run(Kind::Read, || self.disk.open(name, access)).map(|file| self.powered(file, access))
    }

    fn create(&self, name: &str, len: u64, access: Access) -> io::Result<Arc<PoweredFile>> {
        self.plug
            .run(Kind::Write, || self.disk.create(name, len, access))
            .map(|file| self.powered(file, access))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.plug.run(Kind::Write, || self.disk.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.plug.run(Kind::Write, || self.disk.remove(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.plug.run(Kind::Sync, || self.disk.sync_dir())
    }

    fn get(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.plug.run(Kind::Read, || self.disk.get(name))
    }

    fn space(&self) -> io::Result<Space> {
        self.plug.run(Kind::Read, || self.disk.space())
    }
}

impl DiskFile for PoweredFile {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.plug.run(Kind::Read, || self.file.read_at(buffer, offset))
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.plug.run(Kind::Write, || self.file.write_at(buffer, offset))
    }

    fn sync(&self) -> io::Result<()> {
        let lies = self.access == Access::Direct && self.plug.supply.locked().lies;
        self.plug.run(Kind::Sync, || if lies { Ok(()) } else { self.file.sync() })
    }
}

/// The disk of the metadata file.
#[derive(Debug)]
pub(crate) struct PoweredBackend {
    backend: SimBackend,
    plug: Plug,
}

impl StorageBackend for PoweredBackend {
    fn len(&self) -> io::Result<u64> {
        self.plug.run(Kind::Read, || self.backend.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.plug.run(Kind::Read, || self.backend.read(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.plug.run(Kind::Write, || self.backend.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.plug.run(Kind::Sync, || self.backend.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.plug.run(Kind::Write, || self.backend.write(offset, data))
    }
}
