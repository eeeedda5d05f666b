//! A broker: the driver of the real [`ChainWriter`] and [`Recovery`].

use std::collections::BTreeMap;

use bytes::Bytes;
use quire_ledger::chain::{self, ChainWriter, Entry, NewLedger, Roll};
use quire_ledger::clock::Millis;
use quire_ledger::ensemble::Ensemble;
use quire_ledger::message::{Append, Request};
use quire_ledger::record::Payload;
use quire_ledger::recovery::{self, Outcome, Recovery, State, View};
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Nonce, Offset};
use uuid::Uuid;

use crate::network::Down;
use crate::store::Rolled;
use crate::world::{World, join, replica_name, replica_names};

const SNAPSHOT: &str = "snapshot:";

#[derive(Debug)]
pub(crate) enum Role {
    Idle,
    Recovering(Box<Recovery>),
    Leading(Box<ChainWriter>),
}

#[derive(Debug)]
pub(crate) struct Broker {
    pub name: String,
    pub epoch: Epoch,
    pub role: Role,
    /// The effect of all committed entries: the words, in order.
    pub words: Vec<String>,
    /// Appended and not yet acknowledged, by sequence.
    pub waiting: BTreeMap<u64, String>,
    /// A roll whose outcome is not known.
    roll: Option<Roll>,
    /// A metadata step of recovery whose outcome is not known.
    step: Option<recovery::Action>,
    pub needs_ledger: bool,
    probes: bool,
}

/// What a broker's machine is to be told.
#[derive(Debug)]
pub(crate) enum Event {
    Chain(chain::Event),
    Recovery(recovery::Event),
}

impl Broker {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            epoch: Epoch(0),
            role: Role::Idle,
            words: Vec::new(),
            waiting: BTreeMap::new(),
            roll: None,
            step: None,
            needs_ledger: false,
            probes: false,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Millis> {
        match &self.role {
            Role::Idle => None,
            Role::Recovering(recovery) => recovery.deadline(),
            Role::Leading(writer) => writer.deadline(),
        }
    }

    fn snapshot(&self) -> Vec<Entry> {
        vec![entry(&format!("{SNAPSHOT}{}", self.words.join(",")), self.words.len() as u64)]
    }
}

fn entry(text: &str, next_offset: u64) -> Entry {
    let payload = Payload::from(Bytes::copy_from_slice(text.as_bytes()));
    Entry { payload, prefix_len: 0, next_offset: Offset(next_offset) }
}

impl World {
    pub(crate) fn append(&mut self, broker: usize, word: &str) -> Result<(), String> {
        let mut actions = Vec::new();
        let now = self.now;
        let Broker { role, words, waiting, .. } = &mut self.brokers[broker];
        let Role::Leading(writer) = role else { return Err("it does not lead".to_owned()) };
        let next_offset = (words.len() + waiting.len() + 1) as u64;
        match writer.append(now, entry(word, next_offset), &mut actions) {
            Ok(sequence) => {
                waiting.insert(sequence.0, word.to_owned());
            }
            Err(error) => {
                let line = format!("{} refuses {word}: {error}", self.brokers[broker].name);
                self.say(line);
            }
        }
        self.act_chain(broker, actions);
        Ok(())
    }

    /// Tells a broker's machine something and carries out what it wants.
    pub(crate) fn tell(&mut self, broker: usize, event: Event) {
        let now = self.now;
        match (&mut self.brokers[broker].role, event) {
            (Role::Leading(writer), Event::Chain(event)) => {
                let mut actions = Vec::new();
                writer.step(now, event, &mut actions);
                self.act_chain(broker, actions);
            }
            (Role::Recovering(recovery), Event::Recovery(event)) => {
                let mut actions = Vec::new();
                recovery.step(now, event, &mut actions);
                self.act_recovery(broker, actions);
            }
            _ => {}
        }
    }

    fn act_chain(&mut self, broker: usize, actions: Vec<chain::Action>) {
        let name = self.brokers[broker].name.clone();
        let mut sends: Vec<(usize, Append)> = Vec::new();
        for action in actions {
            if let chain::Action::Send { bookie, append } = action {
                sends.push((self.bookie_index(bookie), append));
                continue;
            }
            self.send_appends(broker, &mut sends);
            match action {
                chain::Action::Send { .. } | chain::Action::FirstDurable { .. } => {}
                chain::Action::AskState { bookie, ledger } => {
                    self.say(format!("{name} asks {} for the state of L{ledger}", replica_name(bookie)));
                    self.call(broker, bookie, Request::State { ledger });
                }
                chain::Action::Committed { through, ledger, end } => {
                    self.acknowledge(broker, through.0, ledger, end);
                }
                chain::Action::NeedLedger => {
                    self.brokers[broker].needs_ledger = true;
                    self.find_ledger(broker);
                }
                chain::Action::ReturnLedger(ledger) => {
                    self.say(format!("{name} puts L{} back into the pool", ledger.ledger));
                }
                chain::Action::ProbeMetadata => {
                    self.brokers[broker].probes = true;
                    self.probe(broker);
                }
                chain::Action::Roll(roll) => {
                    let text = describe_roll(&roll);
                    self.say(format!("{name} issues a roll: {text}"));
                    self.brokers[broker].roll = Some(roll);
                    self.try_roll(broker);
                }
                chain::Action::GaveUp { bookie, ledger, cause } => {
                    let alarm = if cause.is_alarm() { "ALARM: " } else { "" };
                    let bookie = replica_name(bookie);
                    self.say(format!("{alarm}{name} gives {bookie} up for L{ledger}: {cause}"));
                }
                chain::Action::Failed { from, through, determinate } => {
                    let waiting = &mut self.brokers[broker].waiting;
                    let failed: Vec<_> = (from.0..=through.0).filter_map(|at| waiting.remove(&at)).collect();
                    let outcome = if determinate { "not in the log" } else { "may be in the log or not" };
                    self.say(format!("{name} fails {}: {outcome}", join(&failed)));
                }
                chain::Action::Deposed => self.step_down(broker, "is deposed"),
                chain::Action::Closed => self.step_down(broker, "has handed the partition over"),
            }
        }
        self.send_appends(broker, &mut sends);
    }

    fn step_down(&mut self, broker: usize, how: &str) {
        let Broker { name, role, roll, needs_ledger, .. } = &mut self.brokers[broker];
        *role = Role::Idle;
        *roll = None;
        *needs_ledger = false;
        let line = format!("{name} {how}");
        self.say(line);
    }

    fn acknowledge(&mut self, broker: usize, through: u64, ledger: LedgerId, end: EntryId) {
        let Broker { name, words, waiting, .. } = &mut self.brokers[broker];
        let later = waiting.split_off(&(through + 1));
        let acked: Vec<String> = std::mem::replace(waiting, later).into_values().collect();
        words.extend(acked.iter().cloned());
        let line = format!("{name} acknowledges {} (L{ledger} committed to {end})", join(&acked));
        self.acked.extend(acked.into_iter().map(|word| (broker, word)));
        self.say(line);
    }

    /// Queues appends on their links, one line for those alike.
    fn send_appends(&mut self, broker: usize, sends: &mut Vec<(usize, Append)>) {
        let mut lines: Vec<(String, Vec<usize>, u64, u64)> = Vec::new();
        for (bookie, append) in sends.iter() {
            let entry = append.record.header.entry.0;
            let text =
                if append.attempt == 0 { String::new() } else { format!(" (attempt {})", append.attempt) };
            match lines.last_mut() {
                Some((last, bookies, first, _)) if *last == text && *first == entry => bookies.push(*bookie),
                _ => lines.push((text, vec![*bookie], entry, entry)),
            }
        }
        // Entries that go to the same bookies share a line.
        lines.dedup_by(|next, line| {
            let alike = next.0 == line.0 && next.1 == line.1 && next.2 == line.3 + 1;
            if alike {
                line.3 = next.3;
            }
            alike
        });
        let ledger = sends.first().map_or(LedgerId(0), |(_, append)| append.record.header.ledger);
        for (attempt, bookies, first, last) in lines {
            let entries = if first == last { format!("{first}") } else { format!("{first}-{last}") };
            let name = &self.brokers[broker].name;
            let line = format!("{name} sends L{ledger}/{entries} to {}{attempt}", self.names(&bookies));
            self.say(line);
        }
        for (bookie, append) in sends.drain(..) {
            let link = self.link(broker, bookie);
            if self.links[link].up {
                self.links[link].down.push_back(Down::Append(append));
            } else {
                self.link_broken(broker, bookie);
            }
        }
    }

    pub(crate) fn link_broken(&mut self, broker: usize, bookie: usize) {
        let bookie = bookie_id(bookie);
        self.todo.push_back((broker, Event::Chain(chain::Event::LinkBroken { bookie })));
        self.todo.push_back((broker, Event::Recovery(recovery::Event::LinkBroken { bookie })));
    }

    /// Queues a request, or ends it at once when there is no link.
    fn call(&mut self, broker: usize, bookie: BookieId, request: Request) {
        let link = self.link(broker, self.bookie_index(bookie));
        if self.links[link].up {
            self.links[link].down.push_back(Down::Call(request));
        } else {
            self.unanswered(broker, bookie, request);
        }
    }

    pub(crate) fn unanswered(&mut self, broker: usize, bookie: BookieId, request: Request) {
        self.todo.push_back((broker, Event::Chain(chain::Event::LinkBroken { bookie })));
        let result = Err("it cannot be reached".to_owned());
        let event = recovery::Event::Called { bookie, request, result };
        self.todo.push_back((broker, Event::Recovery(event)));
    }

    /// B2: a new ledger, durable on all its replicas, of bookies that are up.
    pub(crate) fn find_ledger(&mut self, broker: usize) {
        if !self.brokers[broker].needs_ledger {
            return;
        }
        let reachable: Vec<BookieId> = (0..self.bookies.len())
            .filter(|&bookie| {
                let link = self.link(broker, bookie);
                self.bookies[bookie].up && self.links[link].up
            })
            .map(bookie_id)
            .take(self.replicas)
            .collect();
        let Ok(ensemble) = Ensemble::new(&reachable, self.ack_quorum) else {
            let line = format!("{} finds no ensemble", self.brokers[broker].name);
            self.say(line);
            return self.todo.push_back((broker, Event::Chain(chain::Event::NoLedger)));
        };
        self.store.last_id += 1;
        let ledger = LedgerId(self.store.last_id);
        for &bookie in &reachable {
            self.create(self.bookie_index(bookie), ledger, Nonce(Uuid::from_u128(1)));
        }
        self.say(format!("L{ledger} is created on {}", replica_names(&reachable)));
        self.brokers[broker].needs_ledger = false;
        let ready = NewLedger { ledger, ensemble, age_ms: self.age_ms };
        self.todo.push_back((broker, Event::Chain(chain::Event::LedgerReady(ready))));
    }

    fn probe(&mut self, broker: usize) {
        if self.brokers[broker].probes && self.store_up {
            self.brokers[broker].probes = false;
            let sent = self.now;
            self.todo.push_back((broker, Event::Chain(chain::Event::MetadataAnswered { sent })));
        }
    }

    /// Whether a transaction gets through, and whether its answer does.
    fn reaches_store(&mut self) -> (bool, bool) {
        if !self.store_up || std::mem::take(&mut self.lose_request) {
            self.say("metadata does not answer, the outcome is unknown".to_owned());
            return (false, false);
        }
        let answers = !std::mem::take(&mut self.lose_answer);
        (true, answers)
    }

    fn try_roll(&mut self, broker: usize) {
        let Some(roll) = self.brokers[broker].roll.clone() else { return };
        let (reaches, answers) = self.reaches_store();
        if !reaches {
            return;
        }
        if let Some(open) = &roll.open
            && open.ledger <= self.released
            && !self.store.chain.contains(&open.ledger)
        {
            self.say(format!("the block of L{} is released, it cannot be published", open.ledger));
            self.brokers[broker].roll = None;
            return self.todo.push_back((broker, Event::Chain(chain::Event::BlockReleased)));
        }
        let rolled = self.store.roll(self.brokers[broker].epoch, &roll);
        if let Rolled::Applied { removed } = &rolled {
            removed.iter().for_each(|ledger| self.say(format!("L{ledger} is empty and leaves the chain")));
        }
        if !answers {
            return self.say("metadata's answer is lost, the outcome is unknown".to_owned());
        }
        self.brokers[broker].roll = None;
        let event = if rolled == Rolled::Refused {
            self.say(format!("metadata refuses the roll of {}", self.brokers[broker].name));
            chain::Event::Deposed
        } else {
            self.say(format!("the roll of {} has applied", self.brokers[broker].name));
            let snapshot = if roll.open.is_some() { self.brokers[broker].snapshot() } else { Vec::new() };
            chain::Event::RollApplied { snapshot }
        };
        self.todo.push_back((broker, Event::Chain(event)));
    }

    /// Runs again what had no outcome.
    pub(crate) fn retry(&mut self, broker: usize) {
        self.probe(broker);
        self.find_ledger(broker);
        self.try_roll(broker);
        if let Some(step) = self.brokers[broker].step.take() {
            self.metadata_step(broker, step);
        }
    }

    /// T1 and T2.
    pub(crate) fn take_over(&mut self, broker: usize) {
        let (epoch, view) = self.store.take_over();
        let name = self.brokers[broker].name.clone();
        self.brokers[broker].epoch = epoch;
        self.brokers[broker].words.clear();
        // A process that leads anew remembers nothing of before.
        self.brokers[broker].waiting.clear();
        self.brokers[broker].roll = None;
        self.brokers[broker].step = None;
        self.brokers[broker].needs_ledger = false;
        match view {
            Some(view) if !matches!(view.state, State::Sealed(_)) => {
                self.say(format!("{name} mints epoch {epoch}; L{} is RECOVERING({epoch})", view.ledger));
                let mut actions = Vec::new();
                let recovery =
                    Recovery::start(self.now, epoch, view, recovery::Options::default(), &mut actions);
                self.brokers[broker].role = Role::Recovering(Box::new(recovery));
                self.act_recovery(broker, actions);
            }
            _ => {
                self.say(format!("{name} mints epoch {epoch}"));
                self.lead(broker);
            }
        }
    }

    /// T7: state is the last snapshot and what follows it.
    fn lead(&mut self, broker: usize) {
        let mut words = Vec::new();
        for ledger in self.store.chain.clone() {
            let State::Sealed(end) = self.store.ledgers[&ledger].view.state else { continue };
            for entry in 0..end.0 {
                let text = self.read_text(ledger, EntryId(entry)).unwrap_or_default();
                match text.strip_prefix(SNAPSHOT) {
                    Some(list) => {
                        words = list.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect();
                    }
                    None => words.push(text),
                }
            }
        }
        let next_offset = Offset(words.len() as u64);
        let Broker { name, epoch, role, words: state, .. } = &mut self.brokers[broker];
        let line = format!("{name} leads; its log holds {}", join(&words));
        *state = words;
        *role = Role::Leading(Box::new(ChainWriter::new(*epoch, next_offset, self.options)));
        self.say(line);
    }

    /// What its recovery cannot go on without.
    pub(crate) fn show_wait(&mut self, broker: usize) {
        let Broker { name, role, .. } = &self.brokers[broker];
        let waits = match role {
            Role::Recovering(recovery) => recovery.blocked(),
            _ => None,
        };
        let text = waits.map_or_else(|| "nothing".to_owned(), ToString::to_string);
        let (name, waits, shown) = (name.clone(), text, waits.cloned());
        self.shown = shown;
        let waits = self.with_names(&waits);
        self.say(format!("{name} waits for: {waits}"));
    }

    fn act_recovery(&mut self, broker: usize, actions: Vec<recovery::Action>) {
        let name = self.brokers[broker].name.clone();
        let mut sends: Vec<(usize, Append)> = Vec::new();
        for action in actions {
            if let recovery::Action::Append { bookie, append } = action {
                sends.push((self.bookie_index(bookie), append));
                continue;
            }
            self.send_appends(broker, &mut sends);
            match action {
                recovery::Action::Append { .. } => {}
                recovery::Action::Call { bookie, request } => {
                    self.say(format!("{name} asks {} to {}", replica_name(bookie), describe(&request)));
                    self.call(broker, bookie, request);
                }
                recovery::Action::Blocked(blocked) => {
                    let text = self.with_names(&blocked.to_string());
                    self.say(format!("{name} waits: {text}"));
                }
                recovery::Action::Alarm(alarm) => {
                    let text = self.with_names(&alarm.to_string());
                    self.say(format!("ALARM: {text}"));
                }
                recovery::Action::Done(Outcome::Sealed { end }) => {
                    self.say(format!("{name}: the ledger is sealed at {end}"));
                    self.lead(broker);
                }
                recovery::Action::Done(outcome) => {
                    self.brokers[broker].role = Role::Idle;
                    self.say(format!("{name} stops: {outcome:?}"));
                }
                step => self.metadata_step(broker, step),
            }
        }
        self.send_appends(broker, &mut sends);
    }

    /// Carries a metadata step of recovery out, then reads the ledger.
    fn metadata_step(&mut self, broker: usize, step: recovery::Action) {
        let name = self.brokers[broker].name.clone();
        let epoch = self.brokers[broker].epoch;
        if let recovery::Action::Seal(seal) = &step {
            let (end, complete) = (seal.end, replica_names(&seal.complete));
            self.say(format!("{name} seals L{} at {end}, complete on {complete}", seal.ledger));
        }
        let (reaches, answers) = self.reaches_store();
        if reaches {
            match &step {
                recovery::Action::Seal(seal) => {
                    let next_offset = self.next_offset(seal);
                    self.store.seal(epoch, seal, next_offset);
                }
                recovery::Action::NameTargets { ledger, count } => {
                    self.name_targets(broker, *ledger, *count);
                }
                _ => {}
            }
        }
        if !answers {
            self.brokers[broker].step = Some(step);
            return;
        }
        let ledger = match &step {
            recovery::Action::Seal(seal) => seal.ledger,
            recovery::Action::Claim { ledger, .. }
            | recovery::Action::ReadMetadata { ledger }
            | recovery::Action::NameTargets { ledger, .. } => *ledger,
            _ => return,
        };
        let view: Option<View> = self.store.ledgers.get(&ledger).map(|ledger| ledger.view.clone());
        self.todo.push_back((broker, Event::Recovery(recovery::Event::Metadata(view))));
    }

    fn name_targets(&mut self, broker: usize, ledger: LedgerId, count: usize) {
        let Some(meta) = self.store.ledgers.get(&ledger) else { return };
        let taken = meta.view.ensemble.replicas().to_vec();
        let targets: Vec<BookieId> = (0..self.bookies.len())
            .filter(|&bookie| self.bookies[bookie].up)
            .map(bookie_id)
            .filter(|bookie| !taken.contains(bookie))
            .take(count)
            .collect();
        let name = &self.brokers[broker].name;
        self.say(format!("{name} names {} as targets of L{ledger}", replica_names(&targets)));
        self.store.name_targets(self.brokers[broker].epoch, ledger, &targets);
    }

    /// The offset after the ledger's last entry, from the entries themselves.
    fn next_offset(&self, seal: &recovery::Seal) -> Offset {
        // Another leader may have sealed it empty, and it has left the chain.
        let base = self.store.ledgers.get(&seal.ledger).map_or(Offset(0), |ledger| ledger.base_offset);
        let records = (0..seal.end.0).filter(|&entry| {
            self.read_text(seal.ledger, EntryId(entry)).is_some_and(|text| !text.starts_with(SNAPSHOT))
        });
        Offset(base.0 + records.count() as u64)
    }
}

pub(crate) fn bookie_id(index: usize) -> BookieId {
    BookieId(Uuid::from_u128(index as u128 + 1))
}

fn describe_roll(roll: &Roll) -> String {
    let seal = roll.seal.as_ref().map(|seal| {
        format!("L{} sealed at {}, complete on {}", seal.ledger, seal.end, replica_names(&seal.complete))
    });
    let open = roll.open.as_ref().map(|open| format!("L{} opened", open.ledger));
    join(&seal.into_iter().chain(open).collect::<Vec<_>>())
}

fn describe(request: &Request) -> String {
    match request {
        Request::Fence { ledger, epoch } => format!("fence L{ledger} at epoch {epoch}"),
        Request::Read(read) => format!("read L{} from {}", read.ledger, read.from),
        Request::Import { ledger, end } => format!("import L{ledger} to {end}"),
        other => format!("do {other:?}"),
    }
}
