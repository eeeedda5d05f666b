//! The bookie's end of connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quire_proto::id::BookieId;
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::next;
use super::codec::{CallId, Hello, Message};
use super::frame::FrameDecoder;
use super::outbox::Outbox;
use super::{ClusterId, Options, VERSION};
use crate::link::{AppendSink, BookieLink, LinkError};
use crate::message::{AppendEvent, Request, Response};

/// How long a connection that ends may take to say why.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long to wait when no connection can be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A bookie of this process.
pub trait Local: Send + Sync + fmt::Debug {
    /// Its identity.
    fn bookie(&self) -> BookieId;

    /// A link to it for one connection. Append events go to `sink`. The link
    /// bounds what it takes: an append beyond that breaks it.
    ///
    /// # Errors
    /// When the bookie has stopped.
    fn connect(&self, sink: Arc<dyn AppendSink>) -> Result<Arc<dyn BookieLink>, LinkError>;
}

/// Serves a bookie until `stop`, then ends every connection and returns.
pub async fn serve(
    listener: TcpListener,
    local: Arc<dyn Local>,
    cluster: ClusterId,
    options: Options,
    stop: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(options.connections));
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        let Some((socket, peer, permit)) = accepted else { continue };
        let (local, stop) = (local.clone(), stop.clone());
        connections.spawn(async move {
            let _permit = permit;
            match connection(socket, &*local, cluster, options, stop).await {
                Ok(()) => tracing::debug!(%peer, "connection closed"),
                Err(why) => tracing::warn!(%peer, why, "connection ended"),
            }
        });
    }
    connections.close();
    connections.wait().await;
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((socket, peer)) => Some((socket, peer, permit)),
        Err(error) => {
            tracing::warn!(%error, "no connection can be accepted");
            sleep(ACCEPT_AGAIN).await;
            None
        }
    }
}

type Frames = FramedRead<OwnedReadHalf, FrameDecoder>;

/// One connection, from the greeting to its end. The error says why it ended
/// when the peer did not just leave.
async fn connection(
    socket: TcpStream,
    local: &dyn Local,
    cluster: ClusterId,
    options: Options,
    stop: CancellationToken,
) -> Result<(), String> {
    socket.set_nodelay(true).map_err(|error| error.to_string())?;
    let (read, mut write) = socket.into_split();
    let mut frames = FramedRead::new(read, FrameDecoder::greeting());
    let outbox = Arc::new(Outbox::new(options.outbox_bytes));
    let writer = outbox.write_to(&mut write, options.silence);
    tokio::pin!(writer);
    let end = tokio::select! {
        end = converse(&mut frames, local, cluster, options, &outbox) => end,
        end = &mut writer => Err(end.map_or_else(|error| error.to_string(), |()| "it is closed".to_owned())),
        () = outbox.closed() => Err(outbox.cause().unwrap_or_default()),
        () = stop.cancelled() => Err("the bookie is stopping".to_owned()),
    };
    if let Err(why) = &end {
        outbox.finish(Message::Goodbye(why.clone()));
        // A peer that does not take what is left is not waited for.
        _ = timeout(FAREWELL, writer).await;
    }
    end
}

/// Reads until the peer leaves or errs.
async fn converse(
    frames: &mut Frames,
    local: &dyn Local,
    cluster: ClusterId,
    options: Options,
    outbox: &Arc<Outbox>,
) -> Result<(), String> {
    let hello = match timeout(options.greeting, next(frames)).await {
        Ok(Ok(Message::Hello(hello))) => hello,
        Ok(Ok(_)) => return Err("it gave no greeting".to_owned()),
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no greeting within {:?}", options.greeting)),
    };
    check(&hello, cluster, local.bookie())?;
    *frames.decoder_mut() = FrameDecoder::default();
    let sink = Arc::new(Events { outbox: outbox.clone() });
    let link = local.connect(sink).map_err(|error| error.to_string())?;
    outbox.message(Message::Welcome).map_err(|_| "its queue is full".to_owned())?;
    let mut calls = FuturesUnordered::new();
    loop {
        let message = tokio::select! {
            Some((id, response)) = next_response(&mut calls, outbox), if !calls.is_empty() => {
                answer(outbox, id, response)?;
                continue;
            }
            message = timeout(options.silence, next(frames)) => message,
        };
        let message = match message {
            Ok(Ok(message)) => message,
            Ok(Err(error)) if error.is_end() => return Ok(()),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("it said nothing for {:?}", options.silence)),
        };
        match message {
            Message::Append(appends) => {
                for append in appends {
                    link.append(append).map_err(|error| error.to_string())?;
                }
            }
            Message::Request(id, _) if calls.len() >= options.calls => {
                let why = format!("{} requests wait on this connection already", options.calls);
                answer(outbox, id, Response::Unknown(why))?;
            }
            Message::Request(id, request) => calls.push(call(&*link, id, request)),
            Message::Ping => outbox.message(Message::Pong).map_err(|_| "its queue is full".to_owned())?,
            _ => return Err("it said what only a bookie says".to_owned()),
        }
    }
}

/// A response, once there is room for it: a peer that reads slowly makes its own
/// requests wait, not its appends.
async fn next_response(
    calls: &mut FuturesUnordered<BoxFuture<'static, (CallId, Response)>>,
    outbox: &Outbox,
) -> Option<(CallId, Response)> {
    outbox.room().await;
    calls.next().await
}

/// B1: a request reaches the bookie that it means, or none.
fn check(hello: &Hello, cluster: ClusterId, bookie: BookieId) -> Result<(), String> {
    if hello.version != VERSION {
        return Err(format!("protocol version {} is not spoken here, {VERSION} is", hello.version));
    }
    if hello.cluster != cluster {
        return Err(format!("this is a bookie of cluster {cluster}, not of {}", hello.cluster));
    }
    if hello.bookie != bookie {
        return Err(format!("this is bookie {bookie}, not {}", hello.bookie));
    }
    Ok(())
}

fn call(link: &dyn BookieLink, id: CallId, request: Request) -> BoxFuture<'static, (CallId, Response)> {
    let response = link.call(request);
    Box::pin(async move {
        let response = response.await;
        (id, response.unwrap_or_else(|error| Response::Unknown(error.to_string())))
    })
}

fn answer(outbox: &Outbox, id: CallId, response: Response) -> Result<(), String> {
    outbox.message(Message::Response(id, response)).map_err(|_| "it does not take its responses".to_owned())
}

/// Sends the bookie's append events to the connection.
#[derive(Debug)]
struct Events {
    outbox: Arc<Outbox>,
}

impl AppendSink for Events {
    fn deliver(&self, _: BookieId, event: AppendEvent) {
        if self.outbox.event(event).is_err() {
            self.outbox.close("it does not take its acknowledgements");
        }
    }

    fn broken(&self, bookie: BookieId) {
        self.outbox.close(format!("bookie {bookie} has stopped"));
    }
}
