//! A directory of the file system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fdatasync, statvfs};

use super::{Access, BLOCK, Disk, DiskFile, Space};

/// A file system's block beyond this is its hint for throughput, not what it
/// writes atomically.
const BLOCK_MAX: usize = 64 << 10;

/// A data directory.
#[derive(Clone, Debug)]
pub struct RealDisk {
    dir: PathBuf,
    block: usize,
    direct: bool,
}

/// A file of the directory.
#[derive(Debug)]
pub struct RealFile {
    file: File,
    len: u64,
}

impl RealDisk {
    /// Opens a directory that exists, and finds out whether its file system
    /// can go past the page cache.
    ///
    /// # Errors
    /// When the directory cannot be read or written.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let block = usize::try_from(statvfs(dir)?.f_bsize).unwrap_or(BLOCK);
        let block = if block.is_power_of_two() && block <= BLOCK_MAX { block.max(BLOCK) } else { BLOCK };
        let disk = Self { dir: dir.to_owned(), block, direct: can_go_direct(dir)? };
        if !disk.direct {
            tracing::warn!(dir = %dir.display(), "the file system has no direct I/O, going through the page cache");
        }
        Ok(disk)
    }

    fn open_options(&self, access: Access) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if self.direct && access == Access::Direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        options
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Tries on a file of its own: some file systems refuse the flag when opening,
/// some only when writing.
fn can_go_direct(dir: &Path) -> io::Result<bool> {
    let path = dir.join("direct.probe");
    _ = fs::remove_file(&path);
    let mut buffer = super::AlignedBuffer::new(BLOCK);
    buffer.resize(BLOCK);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let direct = options
        .clone()
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(&path)
        .and_then(|file| file.write_all_at(buffer.as_slice(), 0));
    _ = fs::remove_file(&path);
    match direct {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
        Err(error) => Err(error),
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn block(&self) -> usize {
        self.block
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<RealFile>> {
        let file = self.open_options(access).open(self.path(name))?;
        let len = file.metadata()?.len();
        Ok(Arc::new(RealFile { file, len }))
    }

    fn create(&self, name: &str, len: u64, access: Access) -> io::Result<Arc<RealFile>> {
        let path = self.path(name);
        let file = self.open_options(access).create_new(true).open(&path)?;
        let reserved = match fallocate(&file, FallocateFlags::empty(), 0, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(len),
            other => other.map_err(io::Error::from),
        };
        if let Err(error) = reserved {
            _ = fs::remove_file(path);
            return Err(error);
        }
        Ok(Arc::new(RealFile { file, len }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn get(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path(name)) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn space(&self) -> io::Result<Space> {
        let stat = statvfs(&self.dir)?;
        Ok(Space {
            used: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize),
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

impl DiskFile for RealFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&self.file)?)
    }
}
