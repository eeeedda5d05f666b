//! A bookie that drives the real [`Replicas`] on a log that is a list.

use std::collections::{BTreeMap, BTreeSet};

use quire_ledger::message::{AppendEvent, Read, Request, Response};
use quire_ledger::record::{Kind, Record};
use quire_ledger::replica::{Action, ConnectionId, Event, Facts, Replicas, RequestId, Ticket};
use quire_proto::id::{EntryId, LedgerId};

/// What a bookie says to the one at the other end.
#[derive(Debug)]
pub(crate) enum Said {
    Event(ConnectionId, AppendEvent),
    Answer(RequestId, Response),
    /// B7: copy these entries from peers.
    Import {
        ledger: LedgerId,
        from: EntryId,
        end: EntryId,
    },
}

#[derive(Debug)]
pub(crate) struct Bookie {
    pub up: bool,
    /// It syncs only when it is told to.
    pub slow: bool,
    /// It once lost what it had synced.
    pub lossy: bool,
    replicas: Replicas,
    log: Vec<Record>,
    synced: usize,
    mark: LedgerId,
    unreadable: BTreeSet<(LedgerId, EntryId)>,
    imports: BTreeMap<LedgerId, (RequestId, EntryId)>,
}

impl Bookie {
    pub(crate) fn new() -> Self {
        Self {
            up: true,
            slow: false,
            lossy: false,
            replicas: Replicas::default(),
            log: Vec::new(),
            synced: 0,
            mark: LedgerId(0),
            unreadable: BTreeSet::new(),
            imports: BTreeMap::new(),
        }
    }

    pub(crate) fn step(&mut self, event: Event) -> Vec<Said> {
        let mut actions = Vec::new();
        self.replicas.step(event, &mut actions);
        actions.into_iter().flat_map(|action| self.act(action)).collect()
    }

    fn act(&mut self, action: Action) -> Vec<Said> {
        match action {
            Action::Log(record) => {
                self.log.push(record);
                Vec::new()
            }
            Action::Deliver(connection, event) => vec![Said::Event(connection, event)],
            Action::Respond(request, response) => vec![Said::Answer(request, response)],
            Action::Check { check, ledger, entry } => {
                let payload_crc = self.entry(ledger, entry).map(|record| record.header.payload_crc);
                self.step(Event::Checked { check, payload_crc })
            }
            Action::Import { request, ledger, from, end } => {
                self.imports.insert(ledger, (request, end));
                vec![Said::Import { ledger, from, end }]
            }
            Action::ImportDurable { ledger, durable } => match self.imports.get(&ledger) {
                Some(&(request, end)) if durable >= end => {
                    self.imports.remove(&ledger);
                    vec![Said::Answer(request, Response::Imported)]
                }
                _ => Vec::new(),
            },
        }
    }

    /// Hands a request over; a read is answered from the log.
    pub(crate) fn request(&mut self, request: RequestId, asked: &Request) -> Vec<Said> {
        match *asked {
            Request::Create { ledger, creator } => self.step(Event::Create { request, ledger, creator }),
            Request::Fence { ledger, epoch } => self.step(Event::Fence { request, ledger, epoch }),
            Request::State { ledger } => self.step(Event::State { request, ledger }),
            Request::Import { ledger, end } => self.step(Event::Import { request, ledger, end }),
            Request::Delete { first, last } => self.step(Event::Delete { request, first, last }),
            Request::Read(read) => vec![Said::Answer(request, self.read(read))],
        }
    }

    pub(crate) fn sync(&mut self) -> Vec<Said> {
        if self.synced == self.log.len() {
            return Vec::new();
        }
        self.synced = self.log.len();
        let logged = self.replicas.logged();
        self.step(Event::Durable(Ticket(logged.0)))
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.synced == self.log.len()
    }

    /// What was not synced is lost, and `lost` records of what was.
    pub(crate) fn crash(&mut self, lost: usize) {
        self.lossy |= lost > 0;
        self.synced = self.synced.saturating_sub(lost);
        self.log.truncate(self.synced);
        self.up = false;
    }

    /// A hole in the log.
    pub(crate) fn lose(&mut self, ledger: LedgerId, entry: EntryId) {
        self.lossy = true;
        self.log.retain(|record| {
            let header = &record.header;
            header.kind != Kind::Append || header.ledger != ledger || header.entry != entry
        });
        self.synced = self.log.len();
    }

    /// With a mark, the log was found to lack its tail (B6).
    pub(crate) fn restart(&mut self, mark: Option<LedgerId>) {
        self.mark = mark.unwrap_or(self.mark);
        let mut facts = Facts { mark: self.mark, ..Facts::default() };
        for record in &self.log {
            facts.apply(&record.header, &record.payload);
        }
        self.replicas = Replicas::restore(facts);
        self.imports.clear();
        self.up = true;
    }

    pub(crate) fn cannot_read(&mut self, ledger: LedgerId, entry: EntryId) {
        self.lossy = true;
        self.unreadable.insert((ledger, entry));
    }

    /// The entry, if it is durable and can be read.
    pub(crate) fn entry(&self, ledger: LedgerId, entry: EntryId) -> Option<&Record> {
        if self.unreadable.contains(&(ledger, entry)) {
            return None;
        }
        self.log[..self.synced].iter().rev().find(|record| {
            let header = &record.header;
            matches!(header.kind, Kind::Append | Kind::Copied)
                && header.ledger == ledger
                && header.entry == entry
        })
    }

    /// B5: only a replica that knows the ledger and is in no doubt says Absent.
    fn read(&self, read: Read) -> Response {
        let Some(state) = self.replicas.ledger(read.ledger) else {
            return Response::Unknown("the ledger is not known here".to_owned());
        };
        let records: Vec<Record> = (read.from.0..state.durable.0)
            .map_while(|entry| self.entry(read.ledger, EntryId(entry)).cloned())
            .take(read.max_entries as usize)
            .collect();
        match records.is_empty() {
            false => Response::Entries(records),
            true if read.from < state.durable => {
                Response::Unknown("the entry's block is unreadable".to_owned())
            }
            true => Response::Absent,
        }
    }
}
