//! Connections to the HTTP port. There may be so many at once; one more ends the
//! oldest, so that health checks are answered whoever else is there.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// Health checks and scrapers need a few.
const LIMIT: usize = 128;

/// A connection on which nothing comes or goes for this long is closed. Longer
/// than scrapers wait between two requests.
const PATIENCE: Duration = Duration::from_secs(300);

/// A listener with few connections.
#[derive(Debug)]
pub(super) struct Connections {
    listener: TcpListener,
    limit: usize,
    /// Of those that may be open, the oldest first; cancelled when it is gone.
    open: VecDeque<CancellationToken>,
}

impl Connections {
    pub(super) fn of(listener: TcpListener) -> Self {
        Self { listener, limit: LIMIT, open: VecDeque::new() }
    }

    fn admit(&mut self, stream: TcpStream) -> Connection {
        self.open.retain(|connection| !connection.is_cancelled());
        while self.open.len() >= self.limit
            && let Some(oldest) = self.open.pop_front()
        {
            oldest.cancel();
        }
        let token = CancellationToken::new();
        self.open.push_back(token.clone());
        Connection {
            stream,
            cut: Box::pin(token.clone().cancelled_owned()),
            idle: Box::pin(tokio::time::sleep(PATIENCE)),
            _gone: token.drop_guard(),
        }
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (self.admit(stream), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One of them.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    idle: Pin<Box<Sleep>>,
    _gone: DropGuard,
}

impl Connection {
    /// What came of it, unless it waits in vain.
    fn wait<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.idle.as_mut().reset(Instant::now() + PATIENCE);
            return polled;
        }
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if self.idle.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.wait(cx, polled)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wait(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.wait(cx, polled)
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn connections(limit: usize) -> Connections {
        Connections { limit, ..Connections::of(TcpListener::bind("127.0.0.1:0").await.unwrap()) }
    }

    async fn connect(to: &mut Connections) -> (TcpStream, Connection) {
        let client = TcpStream::connect(to.local_addr().unwrap()).await.unwrap();
        (client, to.accept().await.0)
    }

    #[tokio::test]
    async fn one_more_ends_the_oldest_that_is_there() {
        let mut connections = connections(2).await;
        let (_first, gone) = connect(&mut connections).await;
        let (_second, mut oldest) = connect(&mut connections).await;
        drop(gone);
        let (mut client, mut third) = connect(&mut connections).await;
        let (_fourth, _newest) = connect(&mut connections).await;
        let ended = oldest.read_u8().await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::ConnectionAborted);
        client.write_u8(7).await.unwrap();
        assert_eq!(third.read_u8().await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_silent_is_left() {
        let mut connections = connections(2).await;
        let (_client, mut connection) = connect(&mut connections).await;
        let ended = connection.read_u8().await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_something_now_and_then_is_not() {
        let mut connections = connections(2).await;
        let (mut client, mut connection) = connect(&mut connections).await;
        for _ in 0..4 {
            tokio::time::sleep(PATIENCE * 2 / 3).await;
            client.write_u8(7).await.unwrap();
            assert_eq!(connection.read_u8().await.unwrap(), 7);
        }
    }
}
