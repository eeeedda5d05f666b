//! Accepted connections: so many at once, each of which can be cut.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// The other side of a connection. Requests carry it among their extensions.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    cut: CancellationToken,
}

impl Peer {
    /// A peer at this address.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address, cut: CancellationToken::new() }
    }

    /// Ends the connection, with all that was to be sent on it.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// Whether it was ended so.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut.is_cancelled()
    }
}

/// How many connections there may be.
#[derive(Debug)]
pub struct Connections {
    free: Arc<Semaphore>,
    limit: usize,
    /// Whether the last one was refused, so that it is said once.
    is_full: AtomicBool,
}

impl Connections {
    /// At most so many at once.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let free = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Self { free, limit, is_full: AtomicBool::new(false) }
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
            return None;
        };
        self.is_full.store(false, Ordering::Relaxed);
        let peer = Peer::new(address);
        let cut = Box::pin(peer.cut.clone().cancelled_owned());
        Some(Connection { stream, peer, cut, _permit: permit })
    }
}

/// An accepted connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    peer: Peer,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// An HTTP/2 connection is read from for as long as it lives, so that this is
/// where it learns that it is over.
impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
