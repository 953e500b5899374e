//! The connection to the server as a stream that does not wait for ever. PostgreSQL's own timeouts end what is slow in
//! the server, and TCP's what is unplugged; a server or a proxy that is there and says nothing ends here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use postgres::Socket;
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_postgres_rustls::MakeRustlsConnect;

type Encrypted = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// What a client sends to ask for TLS: its own length, and a number that stands for the request.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// How long a stream that was silent past its limit is still listened to. The first look after an idle hour comes
/// before the next request is written, so silence counts only where it goes on.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// How long the server may be silent while it is expected to speak; shared by a stream and by who uses it.
#[derive(Clone, Debug)]
pub(super) struct Patience(Arc<AtomicU64>);

impl Patience {
    pub(super) fn new(limit: Duration) -> Patience {
        let patience = Patience(Arc::default());
        patience.set(limit);
        patience
    }

    pub(super) fn set(&self, limit: Duration) {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis, Ordering::Relaxed);
    }

    fn limit(&self) -> Duration {
        // tokio's clock does not take an instant that is too far away; a year is for ever.
        Duration::from_millis(self.0.load(Ordering::Relaxed)).min(Duration::from_secs(31_536_000))
    }
}

/// How TLS begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Negotiation {
    /// The client asks first, in PostgreSQL's protocol.
    Asked,
    /// With the first byte, which PostgreSQL 17 and later take.
    Direct,
}

/// Makes streams. To the postgres crate it is a TLS connector that begins with the first byte, also where it does not
/// encrypt: so it has the whole connection in hand.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) tls: Option<(MakeRustlsConnect, Negotiation)>,
    /// How long TLS may take to begin.
    pub(super) handshake: Duration,
    pub(super) patience: Patience,
}

/// A connector for one host.
pub(super) struct HostConnector {
    tls: Option<(<MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect, Negotiation)>,
    handshake: Duration,
    patience: Patience,
}

/// A stream that fails where the server is silent for longer than its [`Patience`].
pub(super) struct Wire {
    inner: Inner,
    patience: Patience,
    alarm: Pin<Box<Sleep>>,
    state: State,
}

enum Inner {
    Plain(Socket),
    Encrypted(Box<Encrypted>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Something was read or written since the last look.
    Fresh,
    /// The alarm is set to the end of patience.
    Waiting,
    /// Patience is over; the alarm is set to the end of the last chance.
    LastChance,
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Wire;
    type TlsConnect = HostConnector;
    type Error = std::convert::Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<HostConnector, Self::Error> {
        let tls = match &mut self.tls {
            Some((tls, negotiation)) => {
                Some((MakeTlsConnect::<Socket>::make_tls_connect(tls, host)?, *negotiation))
            }
            None => None,
        };
        Ok(HostConnector { tls, handshake: self.handshake, patience: self.patience.clone() })
    }
}

impl TlsConnect<Socket> for HostConnector {
    type Stream = Wire;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Wire>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let inner = match self.tls {
                None => Inner::Plain(socket),
                Some((tls, negotiation)) => {
                    let encrypted = timeout(self.handshake, encrypt(socket, tls, negotiation));
                    let encrypted = encrypted.await.map_err(|_| {
                        let text = format!("TLS did not begin within {:?}", self.handshake);
                        io::Error::new(io::ErrorKind::TimedOut, text)
                    })?;
                    Inner::Encrypted(Box::new(encrypted?))
                }
            };
            let alarm = Box::pin(sleep_until(Instant::now()));
            Ok(Wire { inner, patience: self.patience, alarm, state: State::Fresh })
        })
    }
}

async fn encrypt(
    mut socket: Socket,
    tls: <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect,
    negotiation: Negotiation,
) -> io::Result<Encrypted> {
    if negotiation == Negotiation::Asked {
        socket.write_all(&SSL_REQUEST).await?;
        if socket.read_u8().await? != b'S' {
            return Err(io::Error::other("the server does not offer TLS"));
        }
    }
    tls.connect(socket).await
}

impl Wire {
    /// What was tried, or an error where it is still to come and the server has been silent for too long.
    fn unless_silent<T>(
        &mut self,
        tried: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if tried.is_ready() {
            return tried;
        }
        let limit = self.patience.limit();
        if self.state == State::Fresh {
            self.set_alarm(State::Waiting, limit);
        }
        ready!(self.alarm.as_mut().poll(cx));
        if self.state == State::Waiting {
            self.set_alarm(State::LastChance, LAST_CHANCE);
            ready!(self.alarm.as_mut().poll(cx));
        }
        let text = format!("the server has been silent for {limit:?}");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
    }

    fn set_alarm(&mut self, state: State, after: Duration) {
        self.state = state;
        self.alarm.as_mut().reset(Instant::now() + after);
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = match &mut self.inner {
            Inner::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Inner::Encrypted(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        };
        if read.is_ready() {
            self.state = State::Fresh;
        }
        self.unless_silent(read, cx)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.inner {
            Inner::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Inner::Encrypted(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
        };
        if written.is_ready() && self.state != State::Fresh {
            // The read before this one set the alarm for what was then; from here on the server is expected to speak.
            let limit = self.patience.limit();
            self.set_alarm(State::Waiting, limit);
            if self.alarm.as_mut().poll(cx).is_ready() {
                self.state = State::Fresh;
            }
        }
        self.unless_silent(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.inner {
            Inner::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Inner::Encrypted(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        };
        self.unless_silent(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match &mut self.inner {
            Inner::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Inner::Encrypted(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        };
        self.unless_silent(shut, cx)
    }
}

impl TlsStream for Wire {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.inner {
            Inner::Plain(_) => ChannelBinding::none(),
            Inner::Encrypted(stream) => stream.channel_binding(),
        }
    }
}
