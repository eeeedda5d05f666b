//! Accepted connections: so many at once, each of which can be cut.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::service::budget::{Kind, Part};

/// A client that has sent less has not greeted: keep-alives begin after that.
const GREETING: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// The other side of a connection. Requests carry it among their extensions.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    cut: CancellationToken,
    has_asked: AtomicBool,
    produces: Arc<Semaphore>,
    questions: Arc<Semaphore>,
    /// What it may hold of each kind of memory.
    parts: Mutex<HashMap<Kind, Arc<Part>>>,
}

impl Peer {
    /// A peer at this address.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let [produces, questions] = [(); 2].map(|()| Arc::new(Semaphore::new(1)));
        let (cut, has_asked) = (CancellationToken::new(), AtomicBool::new(false));
        let parts = Mutex::default();
        Self { address, state: Arc::new(State { cut, has_asked, produces, questions, parts }) }
    }

    /// Ends the connection, with all that was to be sent on it.
    pub fn cut(&self) {
        self.state.cut.cancel();
    }

    /// Whether it was ended so.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.state.cut.is_cancelled()
    }

    /// A request came.
    pub fn asks(&self) {
        self.state.has_asked.store(true, Ordering::Relaxed);
    }

    /// Whether nobody else holds it, or it has asked for something.
    fn is_gone_or_asked(&self) -> bool {
        Arc::strong_count(&self.state) == 1 || self.state.has_asked.load(Ordering::Relaxed)
    }

    /// What it may hold of the memory for this; at first all of it is free.
    #[must_use]
    pub fn part(&self, kind: Kind, free: impl FnOnce() -> Part) -> Arc<Part> {
        let mut parts = self.state.parts.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(parts.entry(kind).or_insert_with(|| Arc::new(free())))
    }

    /// The right of one produce request of the connection to wait for memory,
    /// unless another has it. What waits is not read, and more of them could fill
    /// the connection's window, so that those which have memory could not go on.
    #[must_use]
    pub fn produce_turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.state.produces).try_acquire_owned().ok()
    }

    /// The same of the other requests.
    #[must_use]
    pub fn question_turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.state.questions).try_acquire_owned().ok()
    }
}

/// How many connections there may be. When there are too many, those go that have
/// asked for nothing.
#[derive(Debug)]
pub struct Connections {
    free: Arc<Semaphore>,
    limit: usize,
    /// A connection without a greeting for this long is closed.
    patience: Duration,
    /// Whether the last one was refused, so that it is said once.
    is_full: AtomicBool,
    /// Who had not asked when it was looked last, and since when it is there.
    unasked: Mutex<VecDeque<(Instant, Peer)>>,
}

impl Connections {
    /// At most so many at once.
    #[must_use]
    pub fn new(limit: usize, patience: Duration) -> Self {
        let free = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Self { free, limit, patience, is_full: AtomicBool::new(false), unasked: Mutex::default() }
    }

    /// The connection, unless there are too many, or it is gone already. Who is
    /// refused sees it closed.
    pub fn admit(&self, stream: TcpStream) -> Option<Connection> {
        let address = stream.peer_addr().ok()?;
        stream.set_nodelay(true).ok()?;
        let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() else {
            metrics::counter!("quire_broker_connections_refused_total").increment(1);
            if !self.is_full.swap(true, Ordering::Relaxed) {
                let limit = self.limit;
                tracing::warn!(%address, limit, "connections are refused: there are connections_max");
            }
            self.make_room();
            return None;
        };
        self.is_full.store(false, Ordering::Relaxed);
        let peer = Peer::new(address);
        self.note(&peer);
        let cut = Box::pin(peer.state.cut.clone().cancelled_owned());
        let late = Box::pin(tokio::time::sleep(self.patience));
        Some(Connection { stream, peer, cut, greeting: GREETING, late, _permit: permit })
    }
}

impl Connections {
    fn note(&self, peer: &Peer) {
        let mut unasked = self.unasked.lock().unwrap_or_else(PoisonError::into_inner);
        if unasked.len() >= self.limit.saturating_mul(2) {
            unasked.retain(|(_, peer)| !peer.is_gone_or_asked());
        }
        unasked.push_back((Instant::now(), peer.clone()));
    }

    /// For the next that comes.
    fn make_room(&self) {
        let mut unasked = self.unasked.lock().unwrap_or_else(PoisonError::into_inner);
        unasked.retain(|(_, peer)| !peer.is_gone_or_asked());
        let long_ago = Instant::now().checked_sub(self.patience);
        while unasked.front().is_some_and(|(since, _)| long_ago.is_some_and(|long_ago| *since < long_ago)) {
            if let Some((_, peer)) = unasked.pop_front() {
                metrics::counter!("quire_broker_connections_cut_total").increment(1);
                peer.cut();
            }
        }
    }
}

/// An accepted connection. Its reads and writes fail once it is cut, the reads
/// also when its greeting is late.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    peer: Peer,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Bytes of the greeting that have not come, and until when they must.
    greeting: usize,
    late: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Fails once it is cut. Else the task is woken then, whatever it waits for:
    /// what cannot write does not read.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer)?;
        self.greeting = self.greeting.saturating_sub(buffer.filled().len() - before);
        if read.is_pending() && self.greeting > 0 {
            ready!(self.late.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read.map(Ok)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
