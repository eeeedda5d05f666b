//! The world of a scenario and the commands that move it. Nothing happens but
//! by a command, and the same commands always make the same log.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quire_ledger::chain::{self, Options};
use quire_ledger::clock::Millis;
use quire_ledger::message::{Append, AppendEvent, Request, Response};
use quire_ledger::record::{Header, Kind, Payload, Record};
use quire_ledger::recovery::{self, State};
use quire_ledger::replica::{self, ConnectionId, RequestId};
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Nonce};

use crate::bookie::{Bookie, Said};
use crate::broker::{Broker, Event, Role, bookie_id};
use crate::network::{Down, Link, Up};
use crate::store::Store;

/// A request that a bookie has not answered yet: whose, and what.
#[derive(Debug)]
struct Asked {
    link: usize,
    connection: ConnectionId,
    request: Request,
}

#[derive(Debug)]
pub(crate) struct World {
    pub now: Millis,
    pub brokers: Vec<Broker>,
    pub bookies: Vec<Bookie>,
    pub links: Vec<Link>,
    pub store: Store,
    pub store_up: bool,
    pub lose_request: bool,
    pub lose_answer: bool,
    /// The id blocks that ledgers up to here came from are released.
    pub released: LedgerId,
    pub replicas: usize,
    pub ack_quorum: usize,
    pub options: Options,
    pub age_ms: u64,
    /// Every word that was acknowledged, by whomever.
    pub acked: Vec<(usize, String)>,
    loss_expected: bool,
    /// The last wait that was shown: what an operator accepts.
    pub shown: Option<recovery::Blocked>,
    /// What the machines are to be told once the present step is over.
    pub todo: VecDeque<(usize, Event)>,
    asked: BTreeMap<RequestId, Asked>,
    connections: u64,
    requests: u64,
    log: Vec<String>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            now: Millis(0),
            brokers: Vec::new(),
            bookies: Vec::new(),
            links: Vec::new(),
            store: Store::default(),
            store_up: true,
            lose_request: false,
            lose_answer: false,
            released: LedgerId(0),
            replicas: 3,
            ack_quorum: 2,
            options: Options::default(),
            age_ms: 7 * 24 * 3_600_000,
            acked: Vec::new(),
            loss_expected: false,
            shown: None,
            todo: VecDeque::new(),
            asked: BTreeMap::new(),
            connections: 0,
            requests: 0,
            log: Vec::new(),
        }
    }
}

/// Which way a message goes.
#[derive(Clone, Copy)]
enum Way {
    Down(usize),
    Back(usize),
}

impl World {
    /// Carries out one command.
    pub(crate) fn command(&mut self, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["bookies", ref names @ ..] => self.bookies.extend(names.iter().map(|_| Bookie::new())),
            [replicas, "replicas,", "ack", "quorum", quorum] => {
                (self.replicas, self.ack_quorum) = (number(replicas)?, number(quorum)?);
            }
            ["ledgers", "roll", "at", entries, "entries"] => self.options.roll_entries = number(entries)?,
            ["the", "window", "is", bytes, "bytes"] => self.options.window.bytes = number(bytes)?,
            [broker, "takes", "over"] => {
                let broker = self.broker_or_new(broker);
                self.take_over(broker);
            }
            [broker, "appends", ref entries @ ..] => {
                let broker = self.broker(broker)?;
                entries.iter().try_for_each(|word| self.append(broker, word))?;
            }
            [broker, "wants", "a", "better", "ensemble"] => {
                self.tell_chain(broker, chain::Event::RollWanted)?
            }
            [broker, "hands", "over"] => self.tell_chain(broker, chain::Event::Close)?,
            [broker, "holds", bookie, "for", "sick"] => {
                let bookie = bookie_id(self.bookie(bookie)?);
                self.tell_chain(broker, chain::Event::GiveUp { bookie })?;
            }
            ["operator", "accepts", "the", "loss", "for", broker] => {
                let broker = self.broker(broker)?;
                let shown = self.shown.clone().ok_or("no wait was shown to the operator")?;
                self.tell(broker, Event::Recovery(recovery::Event::AcceptLoss(shown)));
            }
            ["metadata", ref rest @ ..] => self.metadata_command(rest)?,
            [amount, unit @ ("seconds" | "ms"), "pass"] => {
                let amount: u64 = number(amount)?;
                self.pass(if unit == "seconds" { amount * 1_000 } else { amount });
            }
            ["loss", "is", "expected"] => self.loss_expected = true,
            ["show", "chain"] => self.show_chain(),
            ["show", "what", broker, "waits", "for"] => {
                let broker = self.broker(broker)?;
                self.show_wait(broker);
            }
            ["break", broker, bookie] => {
                let link = self.link_named(broker, bookie)?;
                self.break_link(link);
            }
            ["mend", broker, bookie] => {
                let link = self.link_named(broker, bookie)?;
                self.mend(link);
            }
            ["deliver"] => self.deliver_all(),
            [verb, from, "to", to] => {
                let way = self.way(from, to)?;
                self.link_command(verb, way)?;
            }
            [from, "sends", to, entry, "with", "other", "bytes"] => self.forge(from, to, entry)?,
            [bookie, ref rest @ ..] => self.bookie_command(bookie, rest)?,
            [] => {}
        }
        self.settle();
        Ok(())
    }

    fn metadata_command(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["is", "away"] => self.store_up = false,
            ["is", "back"] => {
                self.store_up = true;
                (self.lose_request, self.lose_answer) = (false, false);
                (0..self.brokers.len()).for_each(|broker| self.retry(broker));
            }
            ["releases", "every", "block"] => self.released = LedgerId(self.store.last_id),
            ["loses", "the", "next", "request"] => self.lose_request = true,
            ["loses", "the", "next", "answer"] => self.lose_answer = true,
            _ => return Err("metadata cannot do that".to_owned()),
        }
        Ok(())
    }

    fn bookie_command(&mut self, name: &str, words: &[&str]) -> Result<(), String> {
        let bookie = self.bookie(name)?;
        match words {
            ["is", "slow"] => self.bookies[bookie].slow = true,
            ["is", "fast"] => self.bookies[bookie].slow = false,
            ["syncs"] => self.sync(bookie),
            ["crashes"] => self.crash(bookie, 0),
            ["crashes", "and", "loses", records, "records"] => self.crash(bookie, number(records)?),
            ["crashes", "and", "loses", "entry", entry] => {
                let (ledger, entry) = place(entry)?;
                self.crash(bookie, 0);
                self.bookies[bookie].lose(ledger, entry);
            }
            ["restarts"] => self.restart(bookie, None),
            ["restarts", "and", "marks", "itself"] => {
                self.restart(bookie, Some(LedgerId(self.store.last_id + 1)));
            }
            ["cannot", "read", entry] => {
                let (ledger, entry) = place(entry)?;
                self.bookies[bookie].cannot_read(ledger, entry);
            }
            _ => return Err("no such command".to_owned()),
        }
        Ok(())
    }

    fn link_command(&mut self, verb: &str, way: Way) -> Result<(), String> {
        let (Way::Down(link) | Way::Back(link)) = way;
        let down = matches!(way, Way::Down(_));
        let hold = |links: &mut Vec<Link>, held| match down {
            true => links[link].hold_down = held,
            false => links[link].hold_back = held,
        };
        match verb {
            "hold" => hold(&mut self.links, true),
            "release" => hold(&mut self.links, false),
            "deliver" => while self.deliver_one(way) {},
            "drop" => {
                let lost = match down {
                    true => self.links[link].down.drain(..).count(),
                    false => self.links[link].back.drain(..).count(),
                };
                self.say(format!("{lost} messages are lost"));
            }
            "repeat" => {
                let Link { down: queue, last_down, back, last_back, .. } = &mut self.links[link];
                match down {
                    true => queue.extend(last_down.clone()),
                    false => back.extend(last_back.clone()),
                }
                self.deliver_one(way);
            }
            _ => return Err("no such command".to_owned()),
        }
        Ok(())
    }

    /// Everything that is not held moves until nothing does.
    fn deliver_all(&mut self) {
        loop {
            let mut moved = false;
            for link in 0..self.links.len() {
                while !self.links[link].hold_down && self.deliver_one(Way::Down(link)) {
                    moved = true;
                }
            }
            for bookie in 0..self.bookies.len() {
                if !self.bookies[bookie].slow && !self.bookies[bookie].is_synced() {
                    self.sync(bookie);
                    moved = true;
                }
            }
            for link in 0..self.links.len() {
                while !self.links[link].hold_back && self.deliver_one(Way::Back(link)) {
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn deliver_one(&mut self, way: Way) -> bool {
        let delivered = match way {
            Way::Down(link) => {
                let Some(message) = self.links[link].down.pop_front() else { return false };
                self.links[link].last_down = Some(message.clone());
                self.arrive(link, message);
                true
            }
            Way::Back(link) => {
                let Some(message) = self.links[link].back.pop_front() else { return false };
                self.links[link].last_back = Some(message.clone());
                self.hear(link, message);
                true
            }
        };
        self.settle();
        delivered
    }

    /// A message reaches a bookie.
    fn arrive(&mut self, link: usize, message: Down) {
        let Link { bookie, connection, .. } = self.links[link];
        let said = match message {
            Down::Append(append) => self.bookies[bookie].step(replica::Event::Append { connection, append }),
            Down::Call(request) => {
                self.requests += 1;
                let id = RequestId(self.requests);
                self.asked.insert(id, Asked { link, connection, request: request.clone() });
                self.bookies[bookie].request(id, &request)
            }
        };
        self.said(bookie, said);
    }

    /// A message reaches a broker.
    fn hear(&mut self, link: usize, message: Up) {
        let Link { broker, bookie, .. } = self.links[link];
        let (from, to) = (bookie_name(bookie), self.brokers[broker].name.clone());
        let bookie = bookie_id(bookie);
        match message {
            Up::Event(AppendEvent::Durable(lengths)) => {
                for (ledger, durable) in lengths {
                    self.say(format!("{to} hears from {from}: L{ledger} is durable to {durable}"));
                    self.tell_recovery(broker, ledger, recovery::Event::Durable { bookie, durable });
                    self.tell_writer(broker, chain::Event::Durable { bookie, ledger, durable });
                }
            }
            Up::Event(AppendEvent::Gap { ledger, attempt, accepted }) => {
                self.say(format!(
                    "{to} hears from {from}: a gap in L{ledger}, {accepted} is next (attempt {attempt})"
                ));
                self.tell_recovery(broker, ledger, recovery::Event::Gap { bookie, attempt, accepted });
                self.tell_writer(broker, chain::Event::Gap { bookie, ledger, attempt, accepted });
            }
            Up::Event(AppendEvent::Refused { ledger, attempt, reason }) => {
                self.say(format!("{to} hears from {from}: append to L{ledger} refused, {reason}"));
                self.tell_recovery(broker, ledger, recovery::Event::Refused { bookie, attempt, reason });
                self.tell_writer(broker, chain::Event::Refused { bookie, ledger, attempt, reason });
            }
            Up::Answer(request, response) => {
                self.say(format!("{to} hears from {from}: {}", describe(&response)));
                if let Request::State { ledger } = request {
                    return self.tell_writer(broker, chain::Event::State { bookie, ledger, response });
                }
                let event = recovery::Event::Called { bookie, request, result: Ok(response) };
                self.todo.push_back((broker, Event::Recovery(event)));
            }
        }
    }

    fn tell_writer(&mut self, broker: usize, event: chain::Event) {
        self.todo.push_back((broker, Event::Chain(event)));
    }

    fn tell_recovery(&mut self, broker: usize, ledger: LedgerId, event: recovery::Event) {
        if matches!(&self.brokers[broker].role, Role::Recovering(recovery) if recovery.ledger() == ledger) {
            self.todo.push_back((broker, Event::Recovery(event)));
        }
    }

    fn tell_chain(&mut self, broker: &str, event: chain::Event) -> Result<(), String> {
        let broker = self.broker(broker)?;
        self.tell(broker, Event::Chain(event));
        Ok(())
    }

    /// What a bookie said goes onto the links.
    fn said(&mut self, bookie: usize, said: Vec<Said>) {
        for said in said {
            match said {
                Said::Event(connection, event) => {
                    if let Some(link) = self.links.iter_mut().find(|link| link.connection == connection) {
                        link.back.push_back(Up::Event(event));
                    }
                }
                Said::Answer(id, response) => {
                    let Some(asked) = self.asked.remove(&id) else { continue };
                    if self.links[asked.link].connection == asked.connection {
                        self.links[asked.link].back.push_back(Up::Answer(asked.request, response));
                    }
                }
                Said::Import { ledger, from, end } => self.import(bookie, ledger, from, end),
            }
        }
    }

    /// B7: the target pulls from whoever has the entry.
    fn import(&mut self, target: usize, ledger: LedgerId, from: EntryId, end: EntryId) {
        for entry in from.0..end.0 {
            let peers = self.bookies.iter().filter(|bookie| bookie.up);
            let record = peers.filter_map(|bookie| bookie.entry(ledger, EntryId(entry))).next();
            let Some(record) = record.cloned() else { return };
            let said = self.bookies[target].step(replica::Event::Imported(record));
            self.said(target, said);
        }
    }

    fn sync(&mut self, bookie: usize) {
        let said = self.bookies[bookie].sync();
        self.said(bookie, said);
    }

    fn crash(&mut self, bookie: usize, lost: usize) {
        self.bookies[bookie].crash(lost);
        for link in 0..self.links.len() {
            if self.links[link].bookie == bookie {
                self.break_link(link);
            }
        }
    }

    /// It comes back with what its log says, and the brokers connect again.
    fn restart(&mut self, bookie: usize, mark: Option<LedgerId>) {
        self.bookies[bookie].restart(mark);
        for link in 0..self.links.len() {
            if self.links[link].bookie == bookie {
                self.mend(link);
            }
        }
    }

    fn break_link(&mut self, link: usize) {
        if !self.links[link].up {
            return;
        }
        let Link { broker, bookie, connection, .. } = self.links[link];
        let gone: Vec<RequestId> =
            self.asked.iter().filter(|(_, asked)| asked.link == link).map(|(&id, _)| id).collect();
        let awaited: Vec<Request> =
            gone.iter().filter_map(|id| self.asked.remove(id)).map(|asked| asked.request).collect();
        let unanswered = self.links[link].cut(awaited.into_iter());
        if self.bookies[bookie].up {
            let said = self.bookies[bookie].step(replica::Event::Disconnected(connection));
            self.said(bookie, said);
        }
        self.link_broken(broker, bookie);
        for request in unanswered {
            self.unanswered(broker, bookie_id(bookie), request);
        }
    }

    fn mend(&mut self, link: usize) {
        self.connections += 1;
        self.links[link].connection = ConnectionId(self.connections);
        self.links[link].up = true;
        let Link { broker, bookie, .. } = self.links[link];
        let bookie = bookie_id(bookie);
        self.tell_writer(broker, chain::Event::LinkUp { bookie });
        self.todo.push_back((broker, Event::Recovery(recovery::Event::LinkUp { bookie })));
        self.find_ledger(broker);
    }

    /// An append that the broker never made: what a bug or a bad cable would.
    fn forge(&mut self, broker: &str, bookie: &str, at: &str) -> Result<(), String> {
        let link = self.link_named(broker, bookie)?;
        let (ledger, entry) = place(at)?;
        let epoch = self.brokers[self.links[link].broker].epoch;
        let payload = Payload::from(Bytes::from_static(b"other"));
        let header = Header {
            kind: Kind::Append,
            ledger,
            own_epoch: epoch,
            epoch,
            entry,
            committed: EntryId(0),
            prefix_len: 0,
            payload_len: 5,
            payload_crc: payload.crc(),
        };
        let append = Append { attempt: 0, record: Record { header, payload } };
        self.links[link].down.push_back(Down::Append(append));
        Ok(())
    }

    /// Time goes from deadline to deadline; outcomes that are unknown are
    /// looked for again at the end.
    fn pass(&mut self, ms: u64) {
        let until = self.now + ms;
        loop {
            let next = self.brokers.iter().filter_map(Broker::deadline).min();
            self.now = next.filter(|&next| next < until).map_or(until, |next| next.max(self.now));
            for broker in 0..self.brokers.len() {
                self.tell(broker, Event::Chain(chain::Event::Tick));
                self.tell(broker, Event::Recovery(recovery::Event::Tick));
            }
            self.settle();
            if self.now == until {
                break;
            }
        }
        (0..self.brokers.len()).for_each(|broker| self.retry(broker));
    }

    fn settle(&mut self) {
        while let Some((broker, event)) = self.todo.pop_front() {
            self.tell(broker, event);
        }
    }

    /// Creates a ledger on a bookie, durably.
    pub(crate) fn create(&mut self, bookie: usize, ledger: LedgerId, creator: Nonce) {
        self.requests += 1;
        let request = RequestId(self.requests);
        let said = self.bookies[bookie].request(request, &Request::Create { ledger, creator });
        self.said(bookie, said);
        self.sync(bookie);
    }

    fn show_chain(&mut self) {
        for ledger in self.store.chain.clone() {
            let meta = &self.store.ledgers[&ledger];
            let (state, complete) = match meta.view.state {
                State::Open => ("OPEN".to_owned(), String::new()),
                State::Recovering(epoch) => (format!("RECOVERING({epoch})"), String::new()),
                State::Sealed(end) => {
                    (format!("SEALED({end})"), format!(", complete on {}", replica_names(&meta.complete)))
                }
            };
            let replicas = replica_names(meta.view.ensemble.replicas());
            self.say(format!("L{ledger} from offset {}: {state} on {replicas}{complete}", meta.base_offset));
        }
    }

    /// The text of an entry, from a replica that metadata names.
    pub(crate) fn read_text(&self, ledger: LedgerId, entry: EntryId) -> Option<String> {
        let replicas = self.store.ledgers.get(&ledger)?.view.ensemble.replicas();
        let record = replicas
            .iter()
            .find_map(|&bookie| self.bookies[self.bookie_index(bookie)].entry(ledger, entry))?;
        String::from_utf8(record.payload.to_bytes().to_vec()).ok()
    }

    /// I1, I2 and I4, and that replicas which are named complete are: every acknowledged word is in the chain, once, in order,
    /// and can be read from a replica that metadata names.
    pub(crate) fn verdict(&self) -> Result<String, String> {
        let mut log = Vec::new();
        for ledger in &self.store.chain {
            let meta = &self.store.ledgers[ledger];
            if meta.base_offset.0 != log.len() as u64 {
                return Err(format!("L{ledger} begins at {}, not at {}", meta.base_offset, log.len()));
            }
            let end = match meta.view.state {
                State::Sealed(end) => end.0,
                _ => u64::MAX,
            };
            for &bookie in &meta.complete {
                let replica = &self.bookies[self.bookie_index(bookie)];
                let lacks = (0..end).find(|&entry| replica.entry(*ledger, EntryId(entry)).is_none());
                if let Some(entry) = lacks.filter(|_| !replica.lossy) {
                    let bookie = replica_name(bookie);
                    return Err(format!("{bookie} is named complete and lacks L{ledger}/{entry}"));
                }
            }
            let texts = (0..end).map_while(|entry| self.read_text(*ledger, EntryId(entry)));
            log.extend(texts.filter(|text| !text.starts_with("snapshot:")));
        }
        // Of two brokers the one that was deposed may hear last what was committed
        // first: only each one's own order counts.
        let lost = (0..self.brokers.len()).find_map(|broker| {
            let mut rest = log.iter();
            let mut acked = self.acked.iter().filter(|(by, _)| *by == broker).map(|(_, word)| word);
            acked.find(|word| !rest.any(|text| text == *word))
        });
        let twice = self.acked.iter().find(|(_, word)| log.iter().filter(|text| *text == word).count() > 1);
        if let Some((_, word)) = twice {
            return Err(format!("{word} is in the log twice: {log:?}"));
        }
        match lost {
            Some(lost) if self.loss_expected => Ok(format!("{lost} was acknowledged and is lost")),
            Some(lost) => {
                Err(format!("{lost} was acknowledged and is not in the log, or not in order: {log:?}"))
            }
            None => Ok(format!("all {} acknowledged entries are in the log", self.acked.len())),
        }
    }

    pub(crate) fn is_down(&self, bookie: &str) -> bool {
        self.bookie(bookie).is_ok_and(|bookie| !self.bookies[bookie].up)
    }

    pub(crate) fn leads(&self, broker: &str) -> bool {
        let broker = self.broker(broker).ok();
        broker.is_some_and(|broker| matches!(self.brokers[broker].role, Role::Leading(_)))
    }

    pub(crate) fn say(&mut self, line: String) {
        self.log.push(line);
    }

    pub(crate) fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    /// Bookies are named in texts by their uuids; here by their names.
    pub(crate) fn with_names(&self, text: &str) -> String {
        (0..self.bookies.len()).fold(text.to_owned(), |text, bookie| {
            text.replace(&bookie_id(bookie).to_string(), &bookie_name(bookie))
        })
    }

    pub(crate) fn names(&self, bookies: &[usize]) -> String {
        bookies.iter().map(|&bookie| bookie_name(bookie)).collect::<Vec<_>>().join(" ")
    }

    fn broker(&self, name: &str) -> Result<usize, String> {
        self.brokers.iter().position(|broker| broker.name == name).ok_or(format!("no broker {name}"))
    }

    fn broker_or_new(&mut self, name: &str) -> usize {
        if let Ok(broker) = self.broker(name) {
            return broker;
        }
        let broker = self.brokers.len();
        self.brokers.push(Broker::new(name));
        for bookie in 0..self.bookies.len() {
            self.connections += 1;
            let mut link = Link::new(broker, bookie, ConnectionId(self.connections));
            link.up = self.bookies[bookie].up;
            self.links.push(link);
        }
        broker
    }

    fn bookie(&self, name: &str) -> Result<usize, String> {
        (0..self.bookies.len()).find(|&bookie| bookie_name(bookie) == name).ok_or(format!("no bookie {name}"))
    }

    pub(crate) fn bookie_index(&self, bookie: BookieId) -> usize {
        usize::try_from(bookie.0.as_u128() - 1).unwrap()
    }

    pub(crate) fn link(&self, broker: usize, bookie: usize) -> usize {
        self.links.iter().position(|link| link.broker == broker && link.bookie == bookie).unwrap()
    }

    fn link_named(&self, broker: &str, bookie: &str) -> Result<usize, String> {
        Ok(self.link(self.broker(broker)?, self.bookie(bookie)?))
    }

    fn way(&self, from: &str, to: &str) -> Result<Way, String> {
        match self.bookie(to) {
            Ok(_) => Ok(Way::Down(self.link_named(from, to)?)),
            Err(_) => Ok(Way::Back(self.link_named(to, from)?)),
        }
    }
}

fn bookie_name(bookie: usize) -> String {
    format!("b{}", bookie + 1)
}

pub(crate) fn replica_name(bookie: BookieId) -> String {
    format!("b{}", bookie.0.as_u128())
}

pub(crate) fn replica_names(bookies: &[BookieId]) -> String {
    match bookies {
        [] => "nobody".to_owned(),
        some => some.iter().map(|&bookie| replica_name(bookie)).collect::<Vec<_>>().join(" "),
    }
}

pub(crate) fn join(words: &[String]) -> String {
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// `L1/2`: entry 2 of ledger 1.
fn place(text: &str) -> Result<(LedgerId, EntryId), String> {
    let (ledger, entry) = text.strip_prefix('L').and_then(|text| text.split_once('/')).ok_or("no entry")?;
    Ok((LedgerId(number(ledger)?), EntryId(number(entry)?)))
}

fn describe(response: &Response) -> String {
    match response {
        Response::Fenced(state) | Response::State(state) => {
            let certain = if state.certain { "" } else { ", uncertain" };
            let Epoch(fence) = state.fence;
            format!("{} entries, fence {fence}, committed {}{certain}", state.durable, state.committed)
        }
        Response::Entries(records) => {
            let first = records.first().map_or(EntryId(0), |record| record.header.entry);
            format!("{} entries from {first}", records.len())
        }
        Response::Unknown(why) => format!("unknown, {why}"),
        other => format!("{other:?}"),
    }
}
