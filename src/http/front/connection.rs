//! One connection, by a thread of its own: a request, its answer, and again.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::head::{self, Framing, Length};
use super::incoming::{Cut, HEAD_MAX, Incoming};
use super::places::{Client, Place};
use super::write::{self, After, Date};
use super::{Limits, Malformed, Response, Service, body};
use crate::{observe, threads};

/// What is read at most of a connection that closes with something unread on it, and for how long.
const LINGER_BYTES: usize = 64 * 1024;
const LINGER_TIME: Duration = Duration::from_secs(1);

/// One connection that is served.
pub(super) struct Connection<S: Service> {
    service: Arc<S>,
    limits: Limits,
    incoming: Incoming,
    client: Client,
    answer_head: Vec<u8>,
    date: Date,
    /// No request is taken after the one under way.
    is_last: bool,
    place: Place,
}

/// What an exchange leaves to be done.
enum Next {
    /// Wait for the next request.
    Again,
    /// Close: the client knows, and has sent nothing more.
    Close,
    /// Close, but give the client time to read the answer, as it may have sent more.
    Linger,
}

impl<S: Service> Connection<S> {
    pub(super) fn new(service: Arc<S>, limits: Limits, place: Place) -> io::Result<Connection<S>> {
        // A wait of no time at all would be one without an end.
        let keep_alive = limits.keep_alive.max(Duration::from_millis(1));
        Ok(Connection {
            service,
            limits,
            incoming: Incoming::new(Arc::clone(&place.open), keep_alive)?,
            client: Client::new(Arc::clone(&place.open)),
            answer_head: Vec::new(),
            date: Date::default(),
            is_last: false,
            place,
        })
    }

    /// Serves the connection to its end.
    pub(super) fn run(mut self) {
        while self.await_request() {
            let deadline = Instant::now() + self.limits.read_timeout;
            let next = match self.exchange(deadline) {
                Ok(next) => next,
                Err(cut) => self.end(cut),
            };
            match next {
                Next::Again => self.incoming.shrink(),
                Next::Close => return,
                Next::Linger => return self.linger(),
            }
        }
    }

    /// Waits for the first byte of a request. False where none came.
    ///
    /// Empty lines before it are skipped (RFC 9112, 2.2), and do not count as its beginning.
    fn await_request(&mut self) -> bool {
        let until = Instant::now() + self.limits.keep_alive;
        self.place.idle();
        loop {
            while self.incoming.buffered().starts_with(b"\r\n") {
                self.incoming.consume(2);
            }
            let only_half_a_line_end = self.incoming.buffered() == b"\r";
            if !self.incoming.is_empty() && !only_half_a_line_end {
                self.is_last |= !self.place.busy();
                return true;
            }
            if Instant::now() >= until || !self.incoming.begin() {
                return false;
            }
        }
    }

    /// Reads a request, has it answered, and writes the answer.
    fn exchange(&mut self, deadline: Instant) -> Result<Next, Cut> {
        let (admitted, framing) = self.admit(deadline)?;
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) if framing.length == Length::Exact(0) => {
                return self.answer(&refusal, framing);
            }
            Err(refusal) => return self.answer_last(&refusal, framing.is_head),
        };
        if let Length::Exact(declared) = framing.length {
            body::within(declared, self.limits.max_body)?;
        }
        if framing.expects_continue
            && framing.length != Length::Exact(0)
            && self.incoming.is_empty()
        {
            self.send(write::CONTINUE, &[])?;
        }
        let body = body::read(&mut self.incoming, framing.length, self.limits.max_body, deadline)?;
        self.client.set_is_there(self.is_last || !self.incoming.is_empty());
        let response = self.fenced(|service, client| service.respond(admitted, body, client))?;
        self.answer(&response, framing)
    }

    /// Reads the head, and takes what the service says about it.
    fn admit(
        &mut self,
        deadline: Instant,
    ) -> Result<(Result<S::Admitted, Response>, Framing), Cut> {
        let length = self.read_head(deadline)?;
        let (head, framing) = head::parse(&self.incoming.buffered()[..length])?;
        let admitted = self.fenced(|service, _| service.admit(&head))?;
        self.incoming.consume(length);
        Ok((admitted, framing))
    }

    /// Reads until the head is whole, and returns its length.
    fn read_head(&mut self, deadline: Instant) -> Result<usize, Cut> {
        let mut seen = 0;
        loop {
            let buffered = self.incoming.buffered();
            if let Some(length) = head::end(buffered, seen)? {
                return Ok(length);
            }
            seen = buffered.len();
            if seen >= HEAD_MAX {
                return Err(Malformed::HeadTooLarge.into());
            }
            self.incoming.more(deadline)?;
        }
    }

    /// Asks the service. A panic in it costs this request only, and the connection, whose state may be odd.
    fn fenced<T>(&self, ask: impl FnOnce(&S, &Client) -> T) -> Result<T, Malformed> {
        catch_unwind(AssertUnwindSafe(|| ask(&self.service, &self.client))).map_err(|panic| {
            observe::request_panicked(self.limits.name, &threads::panic_text(panic.as_ref()));
            Malformed::Failed
        })
    }

    /// Answers, and keeps the connection where both sides want to.
    fn answer(&mut self, response: &Response, framing: Framing) -> Result<Next, Cut> {
        let ours = self.is_last || self.place.is_stopping();
        let after = match (ours || !framing.keeps_alive, framing.is_old) {
            (true, _) => After::Close,
            (false, true) => After::StayTold,
            (false, false) => After::Stay,
        };
        self.write(response, after, framing.is_head)?;
        Ok(match after {
            After::Stay | After::StayTold => Next::Again,
            After::Close if ours || !self.incoming.is_empty() => Next::Linger,
            After::Close => Next::Close,
        })
    }

    /// Answers a request whose end was not read: what follows it on the connection is never taken for another one.
    fn answer_last(&mut self, response: &Response, is_head: bool) -> Result<Next, Cut> {
        self.write(response, After::Close, is_head)?;
        Ok(Next::Linger)
    }

    fn end(&mut self, cut: Cut) -> Next {
        let what = match cut {
            Cut::Malformed(what) => what,
            Cut::Broken => return Next::Close,
            // Where this side closed the connection for a newcomer or to stop, the client did nothing wrong.
            Cut::Ended if self.is_last || self.place.is_stopping() => return Next::Close,
            Cut::Ended => Malformed::Request("the connection ends before the request does"),
        };
        let response = word(&*self.service, self.limits.name, what);
        self.answer_last(&response, false).unwrap_or(Next::Close)
    }

    fn write(&mut self, response: &Response, after: After, is_head: bool) -> Result<(), Cut> {
        let mut head = std::mem::take(&mut self.answer_head);
        write::write_head(&mut head, response, after, &mut self.date);
        let has_body = !is_head && write::may_have_body(response.status);
        let sent = self.send(&head, if has_body { &response.body } else { &[] });
        self.answer_head = head;
        sent
    }

    fn send(&self, head: &[u8], body: &[u8]) -> Result<(), Cut> {
        // Whoever resets the connection, or does not take the answer in time, has no use for more words.
        write::send(&self.place.open, head, body, self.limits.write_timeout)
            .map_err(|_| Cut::Broken)
    }

    /// Says that no more is coming, and waits a little for the client to close first.
    fn linger(&mut self) {
        if self.place.open.socket.shutdown(std::net::Shutdown::Write).is_ok() {
            self.incoming.discard(LINGER_BYTES, Instant::now() + LINGER_TIME);
        }
    }
}

/// The service's words for `what`, or none where it panics over them too.
pub(super) fn word<S: Service>(service: &S, listener: &'static str, what: Malformed) -> Response {
    catch_unwind(AssertUnwindSafe(|| service.malformed(what))).unwrap_or_else(|panic| {
        observe::request_panicked(listener, &threads::panic_text(panic.as_ref()));
        Response { status: 500, headers: Vec::new(), body: Vec::new() }
    })
}
