//! What a process keeps its data on: the metadata file and the bookie's
//! directory.

use std::path::Path;

use quire_bookie::directory::Directory;
use quire_bookie::disk::{Disk, RealDisk};
use quire_metadata::embedded::EmbeddedStore;

use crate::standalone::Error;

/// The metadata's file in the data directory.
const METADATA: &str = "metadata.redb";
/// The bookie's directory in the data directory.
const BOOKIE: &str = "bookie";

/// Where metadata and records are kept. Nobody else has it open.
#[derive(Debug)]
pub struct Storage<D: Disk = RealDisk> {
    /// The metadata.
    pub store: EmbeddedStore,
    /// The bookie's files.
    pub bookie: Directory<D>,
}

impl Storage {
    /// Opens a data directory, or makes it.
    ///
    /// # Errors
    /// When it is in use, cannot be made, read or written.
    pub async fn open(data: &Path) -> Result<Self, Error> {
        let data = data.to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            std::fs::create_dir_all(&data).map_err(|error| Error::Directory(data.clone(), error))?;
            let store = EmbeddedStore::open(&data.join(METADATA))?;
            let bookie = Directory::open(&data.join(BOOKIE))?;
            Ok(Self { store, bookie })
        });
        opened.await.map_err(|_| Error::Stopping)?
    }
}
