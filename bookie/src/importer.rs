//! Repair (B7): a bookie that the metadata names as a ledger's target pulls its
//! entries from the replicas.

use std::sync::{Arc, OnceLock};

use quire_ledger::link::{AppendSink, BookieLink, Connector};
use quire_ledger::message::{AppendEvent, Read, Request, Response};
use quire_ledger::record::Record;
use quire_ledger::replica::Event;
use quire_metadata::key::Keys;
use quire_metadata::ledger::LedgerMetadata;
use quire_metadata::store::Store;
use quire_metadata::typed::Versioned;
use quire_proto::id::{BookieId, EntryId, LedgerId};
use tokio::sync::mpsc;

use crate::inbox::{Inbox, Message};
use crate::thread::ImportJob;

/// Imports under way at once.
pub(crate) const IMPORTS_MAX: usize = 4;

/// Asked of a peer at once.
const PULL_BYTES: u32 = 1 << 20;
const PULL_ENTRIES: u32 = 1024;

/// Pulls entries from peers.
#[derive(Debug)]
pub(crate) struct Importer {
    pub(crate) bookie: BookieId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keys: Keys,
    pub(crate) peers: OnceLock<Arc<dyn Connector>>,
    pub(crate) inbox: Arc<Inbox>,
}

/// An importer appends nothing to its peers, so that nothing comes.
#[derive(Debug)]
struct NoAppends;

impl AppendSink for NoAppends {
    fn deliver(&self, _: BookieId, _: AppendEvent) {}

    fn broken(&self, _: BookieId) {}
}

impl Importer {
    /// Whether the metadata names this bookie as a target; else what to answer.
    pub(crate) async fn allows(&self, ledger: LedgerId, end: EntryId) -> Result<(), Response> {
        let metadata = self.metadata(ledger).await.map_err(Response::Unknown)?;
        if !metadata.targets.contains(&self.bookie) {
            return Err(Response::Unknown(format!("ledger {ledger} does not name this bookie as a target")));
        }
        match metadata.sealed() {
            Some(sealed) if sealed.end != end => {
                Err(Response::Unknown(format!("ledger {ledger} ends at {}, not at {end}", sealed.end)))
            }
            _ => Ok(()),
        }
    }

    async fn metadata(&self, ledger: LedgerId) -> Result<LedgerMetadata, String> {
        let found = self.store.get(&self.keys.ledger(ledger)).await.map_err(|error| error.to_string())?;
        let versioned = Versioned::<LedgerMetadata>::read_option(found.as_ref());
        match versioned.map_err(|error| error.to_string())? {
            Some(versioned) => Ok(versioned.value),
            None => Err(format!("ledger {ledger} is not in the metadata")),
        }
    }

    /// Runs imports until the log thread ends.
    pub(crate) async fn run(self: Arc<Self>, mut jobs: mpsc::Receiver<ImportJob>) {
        let tasks = tokio_util::task::TaskTracker::new();
        let slots = Arc::new(tokio::sync::Semaphore::new(IMPORTS_MAX));
        while let Some(job) = jobs.recv().await {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let importer = Arc::clone(&self);
            tasks.spawn(async move {
                let _slot = slot;
                importer.import(job).await;
            });
        }
    }

    async fn import(&self, mut job: ImportJob) {
        let response = match self.pull(&mut job).await {
            Ok(()) => Response::Imported,
            Err(why) => Response::Unknown(why),
        };
        // Who asked may have given up; the import goes on when asked again.
        _ = job.respond.send(response);
    }

    async fn pull(&self, job: &mut ImportJob) -> Result<(), String> {
        let peers = self.peers.get().ok_or("this bookie has no way to reach its peers")?;
        let metadata = self.metadata(job.ledger).await?;
        let complete = metadata.sealed().map_or(&[][..], |sealed| &sealed.complete[..]);
        let mut sources: Vec<_> = metadata.replicas.iter().filter(|&&peer| peer != self.bookie).collect();
        sources.sort_by_key(|peer| !complete.contains(peer));
        let mut next = job.from;
        let mut why = "no replica of it is left".to_owned();
        for &source in sources {
            if next >= job.end {
                break;
            }
            match peers.connect(source, Arc::new(NoAppends)).await {
                Ok(link) => match self.pull_from(&*link, job, &mut next).await {
                    Ok(()) => break,
                    Err(error) => why = error,
                },
                Err(error) => why = error.to_string(),
            }
        }
        if next < job.end {
            return Err(format!("entry {next} of ledger {} cannot be copied: {why}", job.ledger));
        }
        let end = job.end;
        let durable = job.durable.wait_for(|&durable| durable >= end).await;
        durable.map(drop).map_err(|_| "the bookie stopped".to_owned())
    }

    async fn pull_from(
        &self,
        link: &dyn BookieLink,
        job: &mut ImportJob,
        next: &mut EntryId,
    ) -> Result<(), String> {
        while *next < job.end {
            let left = u32::try_from(job.end.0 - next.0).unwrap_or(PULL_ENTRIES);
            let read = Read {
                ledger: job.ledger,
                from: *next,
                max_entries: left.min(PULL_ENTRIES),
                max_bytes: PULL_BYTES,
                prefix: false,
            };
            let entries = match link.call(Request::Read(read)).await.map_err(|error| error.to_string())? {
                Response::Entries(entries) => entries,
                other => return Err(format!("{} answers {other:?}", link.bookie())),
            };
            for record in entries {
                self.take(record, job.ledger, next)?;
            }
            // One pull is under way at a time: what came is durable first.
            let reached = *next;
            job.durable.wait_for(|&durable| durable >= reached).await.map_err(|_| "the bookie stopped")?;
        }
        Ok(())
    }

    fn take(&self, record: Record, ledger: LedgerId, next: &mut EntryId) -> Result<(), String> {
        let right = record.header.ledger == ledger && record.header.entry == *next;
        if !right || record.verify().is_err() {
            return Err(format!("what came for entry {next} is not it"));
        }
        let message = Message::Event(Event::Imported(record));
        self.inbox.push(message).map_err(|rejected| rejected.to_string())?;
        *next = next.next();
        Ok(())
    }
}
