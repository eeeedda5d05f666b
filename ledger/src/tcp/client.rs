//! The broker's end of a connection.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use quire_proto::id::BookieId;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::codec::FramedRead;

use super::codec::{CallId, Hello, Message};
use super::frame::{FrameDecoder, FrameError, Pieces};
use super::outbox::Outbox;
use super::{ClusterId, Options, VERSION};
use crate::link::{AppendSink, BookieLink, Connector, LinkError};
use crate::message::{Append, Request, Response};

type Calls = HashMap<CallId, oneshot::Sender<Response>>;

/// What the link and its task share.
#[derive(Debug)]
struct Shared {
    bookie: BookieId,
    outbox: Outbox,
    calls: Mutex<Calls>,
    calls_max: usize,
    next_call: AtomicU64,
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self) -> LinkError {
        let cause = self.outbox.cause().unwrap_or_else(|| "its queue is full".to_owned());
        LinkError { bookie: self.bookie, cause }
    }

    /// Registers a call and sends the request.
    fn ask(&self, request: Request) -> Result<oneshot::Receiver<Response>, LinkError> {
        let id = CallId(self.next_call.fetch_add(1, Ordering::Relaxed));
        let (answer, response) = oneshot::channel();
        {
            let mut calls = self.calls();
            if calls.len() >= self.calls_max {
                calls.retain(|_, call| !call.is_closed());
            }
            if calls.len() >= self.calls_max {
                let cause = format!("{} requests wait for it already", self.calls_max);
                return Err(LinkError { bookie: self.bookie, cause });
            }
            calls.insert(id, answer);
        }
        self.outbox.message(Message::Request(id, request)).map_err(|_| {
            self.calls().remove(&id);
            self.error()
        })?;
        Ok(response)
    }
}

/// A link over TCP.
#[derive(Debug)]
struct TcpLink {
    shared: Arc<Shared>,
}

impl BookieLink for TcpLink {
    fn bookie(&self) -> BookieId {
        self.shared.bookie
    }

    fn append(&self, append: Append) -> Result<(), LinkError> {
        self.shared.outbox.append(append).map_err(|_| {
            let error = self.shared.error();
            // A writer whose append is missing has nothing to gain from the
            // rest: the stream is resumed over another connection.
            self.shared.outbox.close(error.cause.clone());
            error
        })
    }

    fn call(&self, request: Request) -> BoxFuture<'static, Result<Response, LinkError>> {
        let shared = self.shared.clone();
        let asked = shared.ask(request);
        async move { asked?.await.map_err(|_| shared.error()) }.boxed()
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        self.shared.outbox.close("the link was closed");
    }
}

/// Connects to a bookie at `address`, `host:port`. Cancel-safe.
///
/// # Errors
/// [`LinkError`] when nobody is there, or not who was meant.
pub async fn connect(
    address: &str,
    cluster: ClusterId,
    bookie: BookieId,
    sink: Arc<dyn AppendSink>,
    options: Options,
) -> Result<Arc<dyn BookieLink>, LinkError> {
    let failed = |cause: String| LinkError { bookie, cause: format!("{address}: {cause}") };
    let greeting = greet(address, Hello { version: VERSION, cluster, bookie });
    let (frames, socket) = match timeout(options.greeting, greeting).await {
        Ok(Ok(halves)) => halves,
        Ok(Err(cause)) => return Err(failed(cause)),
        Err(_) => return Err(failed(format!("no answer within {:?}", options.greeting))),
    };
    let shared = Arc::new(Shared {
        bookie,
        outbox: Outbox::new(options.outbox_bytes),
        calls: Mutex::default(),
        calls_max: options.calls,
        next_call: AtomicU64::new(0),
    });
    tokio::spawn(run(shared.clone(), frames, socket, sink, options));
    Ok(Arc::new(TcpLink { shared }))
}

type Frames = FramedRead<OwnedReadHalf, FrameDecoder>;

async fn greet(address: &str, hello: Hello) -> Result<(Frames, OwnedWriteHalf), String> {
    let socket = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    socket.set_nodelay(true).map_err(|error| error.to_string())?;
    let (read, mut write) = socket.into_split();
    let mut pieces = Pieces::default();
    Message::Hello(hello).encode(&mut pieces);
    write.write_all_buf(&mut pieces).await.map_err(|error| error.to_string())?;
    let mut frames = FramedRead::new(read, FrameDecoder::greeting());
    match next(&mut frames).await.map_err(|error| error.to_string())? {
        Message::Welcome => {
            *frames.decoder_mut() = FrameDecoder::default();
            Ok((frames, write))
        }
        Message::Goodbye(why) => Err(format!("refused: {why}")),
        _ => Err("it gave no greeting".to_owned()),
    }
}

/// The next message.
pub(super) async fn next(frames: &mut Frames) -> Result<Message, FrameError> {
    let end = || FrameError::Io(std::io::ErrorKind::UnexpectedEof.into());
    let frame = frames.next().await.ok_or_else(end)??;
    Message::decode(&frame)
}

/// The connection's only task: reads, writes and pings until one of them fails
/// or the link is dropped.
async fn run(
    shared: Arc<Shared>,
    mut frames: Frames,
    mut socket: OwnedWriteHalf,
    sink: Arc<dyn AppendSink>,
    options: Options,
) {
    let outbox = &shared.outbox;
    let cause = tokio::select! {
        cause = listen(&shared, &mut frames, &*sink, options) => cause,
        result = outbox.write_to(&mut socket, options.silence) => match result {
            Ok(()) => "the link was closed".to_owned(),
            Err(error) => error.to_string(),
        },
        () = ping(outbox, options) => "its queue is full".to_owned(),
        () = outbox.closed() => "the link was closed".to_owned(),
    };
    outbox.close(cause);
    // Their receivers find the cause.
    shared.calls().clear();
    sink.broken(shared.bookie);
}

/// Takes in what the bookie says; returns why it ended.
async fn listen(shared: &Shared, frames: &mut Frames, sink: &dyn AppendSink, options: Options) -> String {
    loop {
        let message = match timeout(options.silence, next(frames)).await {
            Ok(Ok(message)) => message,
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("it said nothing for {:?}", options.silence),
        };
        match message {
            Message::Event(event) => sink.deliver(shared.bookie, event),
            Message::Response(id, response) => {
                if let Some(call) = shared.calls().remove(&id) {
                    // Whoever asked may have left.
                    _ = call.send(response);
                }
            }
            Message::Pong => {}
            Message::Goodbye(why) => return why,
            _ => return "it said what only a client says".to_owned(),
        }
    }
}

/// Says regularly that this end is there, and so makes the other end answer.
async fn ping(outbox: &Outbox, options: Options) {
    let mut ticks = interval(options.ping);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if outbox.message(Message::Ping).is_err() {
            return;
        }
    }
}

/// Says where a bookie is.
pub trait Resolve: Send + Sync + fmt::Debug {
    /// The bookie's present `host:port`, if it has registered one.
    fn address(&self, bookie: BookieId) -> BoxFuture<'static, Option<String>>;
}

/// Makes links over TCP.
#[derive(Clone, Debug)]
pub struct TcpConnector {
    cluster: ClusterId,
    addresses: Arc<dyn Resolve>,
    options: Options,
}

impl TcpConnector {
    /// A connector for the bookies of this cluster.
    #[must_use]
    pub fn new(cluster: ClusterId, addresses: Arc<dyn Resolve>, options: Options) -> Self {
        Self { cluster, addresses, options }
    }
}

impl Connector for TcpConnector {
    fn connect(
        &self,
        bookie: BookieId,
        sink: Arc<dyn AppendSink>,
    ) -> BoxFuture<'static, Result<Arc<dyn BookieLink>, LinkError>> {
        let Self { cluster, addresses, options } = self.clone();
        async move {
            let Some(address) = addresses.address(bookie).await else {
                return Err(LinkError { bookie, cause: "it has registered no address".to_owned() });
            };
            connect(&address, cluster, bookie, sink, options).await
        }
        .boxed()
    }
}
