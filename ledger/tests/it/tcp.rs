//! The TCP link over the loopback, to a bookie that drives the real replicas.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quire_ledger::link::{AppendSink, BookieLink, LinkError};
use quire_ledger::message::{Append, AppendEvent, Read, Refusal, ReplicaState, Request, Response};
use quire_ledger::record::{Header, Kind, PAYLOAD_MAX, Payload, Record};
use quire_ledger::replica::{self, ConnectionId, RequestId};
use quire_ledger::tcp::{self, ClusterId, Local, Options};
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Nonce};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::bookie::{Bookie, Said};

const CLUSTER: ClusterId = Uuid::from_u128(7);
const BOOKIE: BookieId = BookieId(Uuid::from_u128(1));
const LEDGER: LedgerId = LedgerId(5);
const DEADLINE: Duration = Duration::from_secs(20);

/// A bookie in this process that syncs at once.
#[derive(Debug)]
struct InProcess {
    state: Mutex<State>,
    left: Notify,
    /// It keeps its answers to itself.
    mute: bool,
}

#[derive(Debug)]
struct State {
    bookie: Bookie,
    sinks: HashMap<ConnectionId, Arc<dyn AppendSink>>,
    waiting: HashMap<RequestId, oneshot::Sender<Response>>,
    next: u64,
}

impl InProcess {
    fn new(mute: bool) -> Arc<Self> {
        let (sinks, waiting) = (HashMap::new(), HashMap::new());
        let state = State { bookie: Bookie::new(), sinks, waiting, next: 0 };
        Arc::new(Self { state: Mutex::new(state), left: Notify::new(), mute })
    }
}

impl State {
    fn route(&mut self, said: Vec<Said>) {
        let synced = self.bookie.sync();
        for said in said.into_iter().chain(synced) {
            match said {
                Said::Event(connection, event) => {
                    if let Some(sink) = self.sinks.get(&connection) {
                        sink.deliver(BOOKIE, event);
                    }
                }
                Said::Answer(request, response) => {
                    if let Some(waiting) = self.waiting.remove(&request) {
                        _ = waiting.send(response);
                    }
                }
                Said::Import { .. } => {}
            }
        }
    }
}

#[derive(Debug)]
struct Serving(Arc<InProcess>);

impl Local for Serving {
    fn bookie(&self) -> BookieId {
        BOOKIE
    }

    fn connect(&self, sink: Arc<dyn AppendSink>) -> Result<Arc<dyn BookieLink>, LinkError> {
        let mut state = self.0.state.lock().unwrap();
        state.next += 1;
        let connection = ConnectionId(state.next);
        state.sinks.insert(connection, sink);
        Ok(Arc::new(InProcessLink { bookie: self.0.clone(), connection }))
    }
}

#[derive(Debug)]
struct InProcessLink {
    bookie: Arc<InProcess>,
    connection: ConnectionId,
}

impl BookieLink for InProcessLink {
    fn bookie(&self) -> BookieId {
        BOOKIE
    }

    fn append(&self, append: Append) -> Result<(), LinkError> {
        let mut state = self.bookie.state.lock().unwrap();
        let connection = self.connection;
        let said = state.bookie.step(replica::Event::Append { connection, append });
        state.route(said);
        Ok(())
    }

    fn call(&self, request: Request) -> BoxFuture<'static, Result<Response, LinkError>> {
        let mut state = self.bookie.state.lock().unwrap();
        state.next += 1;
        let id = RequestId(state.next);
        let (answer, response) = oneshot::channel();
        state.waiting.insert(id, answer);
        if !self.bookie.mute {
            let said = state.bookie.request(id, &request);
            state.route(said);
        }
        let stopped = |_| LinkError { bookie: BOOKIE, cause: "stopped".to_owned() };
        async move { response.await.map_err(stopped) }.boxed()
    }
}

impl Drop for InProcessLink {
    fn drop(&mut self) {
        self.bookie.state.lock().unwrap().sinks.remove(&self.connection);
        self.bookie.left.notify_one();
    }
}

/// What a client hears.
#[derive(Debug, Default)]
struct Heard {
    events: Mutex<Vec<AppendEvent>>,
    broken: Mutex<bool>,
    changed: Notify,
}

impl AppendSink for Heard {
    fn deliver(&self, _: BookieId, event: AppendEvent) {
        self.events.lock().unwrap().push(event);
        self.changed.notify_one();
    }

    fn broken(&self, _: BookieId) {
        *self.broken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

impl Heard {
    async fn until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let wait = async {
            while !condition(self) {
                self.changed.notified().await;
            }
        };
        assert!(timeout(DEADLINE, wait).await.is_ok(), "waiting for {what}: {self:?}");
    }

    async fn until_broken(&self) {
        self.until("the link to break", |heard| *heard.broken.lock().unwrap()).await;
    }

    async fn until_durable(&self, durable: u64) {
        let wanted = |event: &AppendEvent| {
            let AppendEvent::Durable(lengths) = event else { return false };
            lengths.contains(&(LEDGER, EntryId(durable)))
        };
        self.until("durable", |heard| heard.events.lock().unwrap().iter().any(wanted)).await;
    }
}

/// A server on the loopback that ends with the test.
struct Server {
    address: String,
    bookie: Arc<InProcess>,
    stop: CancellationToken,
}

impl Server {
    async fn start(options: Options) -> Self {
        Self::start_with(InProcess::new(false), options).await
    }

    async fn start_with(bookie: Arc<InProcess>, options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = CancellationToken::new();
        let local = Arc::new(Serving(bookie.clone()));
        tokio::spawn(tcp::serve(listener, local, CLUSTER, options, stop.clone()));
        Self { address, bookie, stop }
    }

    async fn connect(&self) -> (Arc<dyn BookieLink>, Arc<Heard>) {
        let heard = Arc::new(Heard::default());
        let link =
            tcp::connect(&self.address, CLUSTER, BOOKIE, heard.clone(), Options::default()).await.unwrap();
        (link, heard)
    }

    /// A client can still create a ledger, append to it and hear of it.
    async fn is_well(&self) {
        let (link, heard) = self.connect().await;
        create(&*link).await;
        link.append(append(0, 0, Bytes::from_static(b"well"))).unwrap();
        heard.until_durable(1).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn append(attempt: u32, entry: u64, payload: Bytes) -> Append {
    let payload = Payload::from(payload);
    let payload_len = u32::try_from(payload.len()).unwrap();
    let header = Header {
        kind: Kind::Append,
        ledger: LEDGER,
        own_epoch: Epoch(1),
        epoch: Epoch(1),
        entry: EntryId(entry),
        committed: EntryId(0),
        prefix_len: 0,
        payload_len,
        payload_crc: payload.crc(),
    };
    Append { attempt, record: Record { header, payload } }
}

async fn create(link: &dyn BookieLink) {
    let request = Request::Create { ledger: LEDGER, creator: Nonce(Uuid::from_u128(9)) };
    assert_eq!(link.call(request).await.unwrap(), Response::Created);
}

/// Who does not greet is given up soon, and still in time for who does.
fn short() -> Options {
    Options { greeting: Duration::from_secs(1), ..Options::default() }
}

#[tokio::test]
async fn appends_are_acknowledged_and_come_back_byte_for_byte() {
    let server = Server::start(Options::default()).await;
    let (link, heard) = server.connect().await;
    assert_eq!(link.bookie(), BOOKIE);
    create(&*link).await;
    let payloads: Vec<Bytes> = [0, 1, 100, 70_000, PAYLOAD_MAX, 5]
        .into_iter()
        .map(|len| (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect::<Vec<u8>>().into())
        .collect();
    for (entry, payload) in (0..).zip(&payloads) {
        link.append(append(0, entry, payload.clone())).unwrap();
    }
    heard.until_durable(6).await;
    let mut from = 0;
    while from < payloads.len() as u64 {
        let read = Read { ledger: LEDGER, from: EntryId(from), max_entries: 9, max_bytes: 1, prefix: false };
        let Response::Entries(records) = link.call(Request::Read(read)).await.unwrap() else { panic!() };
        for record in records {
            assert_eq!(record.payload.to_bytes(), payloads[usize::try_from(from).unwrap()]);
            assert_eq!(record.verify(), Ok(()));
            from += 1;
        }
    }
    assert_eq!(from, 6);
}

#[tokio::test]
async fn gaps_and_refusals_reach_the_writer() {
    let server = Server::start(Options::default()).await;
    let (link, heard) = server.connect().await;
    create(&*link).await;
    link.append(append(0, 3, Bytes::from_static(b"early"))).unwrap();
    link.append(append(1, 0, Bytes::from_static(b"first"))).unwrap();
    heard.until_durable(1).await;
    let fence = link.call(Request::Fence { ledger: LEDGER, epoch: Epoch(2) }).await.unwrap();
    let (durable, committed) = (EntryId(1), EntryId(0));
    assert_eq!(fence, Response::Fenced(ReplicaState { fence: Epoch(2), durable, committed, certain: true }));
    link.append(append(1, 1, Bytes::from_static(b"late"))).unwrap();
    let refused = AppendEvent::Refused { ledger: LEDGER, attempt: 1, reason: Refusal::Fenced(Epoch(2)) };
    heard.until("a refusal", |heard| heard.events.lock().unwrap().contains(&refused)).await;
    let gap = AppendEvent::Gap { ledger: LEDGER, attempt: 0, accepted: EntryId(0) };
    assert!(heard.events.lock().unwrap().contains(&gap));
}

#[tokio::test]
async fn a_request_for_another_bookie_or_cluster_is_refused_with_the_reason() {
    let server = Server::start(Options::default()).await;
    let other = Uuid::from_u128(99);
    for (cluster, bookie, reason) in [
        (other, BOOKIE, "this is a bookie of cluster"),
        (CLUSTER, BookieId(other), "this is bookie 00000000-0000-0000-0000-000000000001, not"),
    ] {
        let heard = Arc::new(Heard::default());
        let error =
            tcp::connect(&server.address, cluster, bookie, heard, Options::default()).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn garbage_ends_its_own_connection_and_no_other() {
    let server = Server::start(Options::default()).await;
    for garbage in [&b"GET / HTTP/1.1\r\nHost: quire\r\n\r\n"[..], &[0; 4_096], &[0xff; 4_096]] {
        let mut socket = TcpStream::connect(&server.address).await.unwrap();
        socket.write_all(garbage).await.unwrap();
        let mut answer = Vec::new();
        // The other end closes; it may say why first.
        _ = timeout(DEADLINE, socket.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.len() < 2_048);
    }
    server.is_well().await;
}

#[tokio::test]
async fn half_a_frame_holds_nothing_up() {
    let server = Server::start(short()).await;
    // Says nothing at all, or half a header, and stays.
    for half in [&b""[..], &[36, 0, 0]] {
        let mut socket = TcpStream::connect(&server.address).await.unwrap();
        socket.write_all(half).await.unwrap();
        let mut answer = Vec::new();
        _ = timeout(DEADLINE, socket.read_to_end(&mut answer)).await.unwrap();
    }
    // Leaves in the middle of a frame.
    let mut socket = TcpStream::connect(&server.address).await.unwrap();
    socket.write_all(&[36, 0, 0]).await.unwrap();
    drop(socket);
    server.is_well().await;
}

#[tokio::test]
async fn who_does_not_speak_the_protocol_is_named_in_the_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"220 mail.example ESMTP\r\n").await.unwrap();
        socket.read_to_end(&mut Vec::new()).await.unwrap();
    });
    let heard = Arc::new(Heard::default());
    let error = tcp::connect(&address, CLUSTER, BOOKIE, heard, Options::default()).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&address) && text.contains("not quire's bookie protocol"), "{text}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = Arc::new(Heard::default());
    let error = tcp::connect(&address, CLUSTER, BOOKIE, heard, short()).await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
}

#[tokio::test]
async fn a_stop_breaks_links_and_ends_calls() {
    let server = Server::start_with(InProcess::new(true), Options::default()).await;
    let (link, heard) = server.connect().await;
    let call = link.call(Request::State { ledger: LEDGER });
    server.stop.cancel();
    let error = timeout(DEADLINE, call).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("stopping"), "{error}");
    heard.until_broken().await;
    assert!(link.append(append(0, 0, Bytes::new())).is_err());
    assert!(link.call(Request::State { ledger: LEDGER }).await.is_err());
}

#[tokio::test]
async fn dropping_a_link_closes_its_connection() {
    let server = Server::start(Options::default()).await;
    let (link, _heard) = server.connect().await;
    drop(link);
    timeout(DEADLINE, server.bookie.left.notified()).await.unwrap();
}

#[tokio::test]
async fn a_peer_that_does_not_read_breaks_the_link_within_bounded_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::start(Options::default()).await;
    let real = server.address.clone();
    // Greets by way of a real server, then reads no more.
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut bookie = TcpStream::connect(real).await.unwrap();
        let mut bytes = [0; 256];
        let read = client.read(&mut bytes).await.unwrap();
        bookie.write_all(&bytes[..read]).await.unwrap();
        let read = bookie.read(&mut bytes).await.unwrap();
        client.write_all(&bytes[..read]).await.unwrap();
        std::future::pending::<()>().await;
    });
    let heard = Arc::new(Heard::default());
    let options = Options { outbox_bytes: 8 << 20, ..Options::default() };
    let link = tcp::connect(&address, CLUSTER, BOOKIE, heard.clone(), options).await.unwrap();
    let payload = Bytes::from(vec![0; 1 << 20]);
    let taken = (0..64).take_while(|&entry| link.append(append(0, entry, payload.clone())).is_ok()).count();
    // The queue, and what was on its way to the socket.
    assert!((4..24).contains(&taken), "{taken} appends were taken");
    heard.until_broken().await;
}

#[tokio::test]
async fn more_requests_than_the_limit_are_told_so() {
    let options = Options { calls: 4, ..Options::default() };
    let server = Server::start_with(InProcess::new(true), options).await;
    let (link, _heard) = server.connect().await;
    let mut calls: Vec<_> = (0..5).map(|_| link.call(Request::State { ledger: LEDGER })).collect();
    let last = calls.pop().unwrap();
    let response = timeout(DEADLINE, last).await.unwrap().unwrap();
    let Response::Unknown(why) = response else { panic!("{response:?}") };
    assert!(why.contains("4 requests wait"), "{why}");
}
