//! What a request's head asks for: paths, methods, query strings, and what makes an order safe from other sites.

use std::time::Duration;

use super::page::{self, File};
use crate::call::IdempotencyKey;
use crate::http::front::Head;
use crate::http::percent_decoded;
use crate::http::problem::{self, Kind};
use crate::store::outbox::{Filter, State};

/// The most events on one page of the outbox.
const PAGE_MAX: usize = 200;

/// Events on one page where nobody says how many.
const PAGE: usize = 50;

/// The longest look back.
const SINCE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What is asked for.
#[derive(Debug)]
pub enum Ask {
    /// Whether the process lives.
    Health,
    /// Whether it can work.
    Ready,
    /// Everything that is counted.
    Metrics,
    /// A file of the page.
    File(File),
    /// Something to look at.
    Read(Question),
    /// Something to do, told by the body.
    Act(Order),
}

/// What the API shows.
#[derive(Debug)]
pub enum Question {
    /// How the daemon is.
    Status,
    /// The last requests of this process.
    Recent,
    /// The last hour by minutes.
    History,
    /// A page of the outbox.
    Outbox { filter: Filter, before: Option<i64>, limit: usize },
    /// All that is stored of a key.
    Key { scope: String, key: IdempotencyKey },
}

/// What the API does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Try dead events again.
    Retry,
    /// Give dead events up.
    Discard,
    /// Deliver nothing.
    Pause,
    /// Deliver again.
    Resume,
}

/// Which part of the listener is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Health,
    Ready,
    Metrics,
    File(File),
    Api,
}

impl Route {
    pub(super) fn of(path: &str) -> Option<Route> {
        match path {
            "/healthz" => Some(Route::Health),
            "/readyz" => Some(Route::Ready),
            "/metrics" => Some(Route::Metrics),
            _ if path.starts_with("/api/") => Some(Route::Api),
            _ => page::find(path).map(Route::File),
        }
    }

    pub(super) fn is_for_anybody(self) -> bool {
        match self {
            Route::Health | Route::Ready | Route::Metrics => true,
            Route::File(_) | Route::Api => false,
        }
    }
}

/// Why nothing is done.
#[derive(Debug)]
pub(super) enum No {
    /// Only this method is allowed.
    Method(&'static str),
    Problem(Kind, String),
}

impl No {
    fn not_found() -> No {
        No::Problem(problem::NOT_FOUND, "There is nothing at this path of the API.".to_owned())
    }
}

/// Reads the head. Where no token protects the API, an order carries a header that no other site can send.
pub(super) fn ask(route: Route, head: &Head<'_>, has_token: bool) -> Result<Ask, No> {
    let read_only = match route {
        Route::Health => Ask::Health,
        Route::Ready => Ask::Ready,
        Route::Metrics => Ask::Metrics,
        Route::File(file) => Ask::File(file),
        Route::Api => match order(head.path.as_ref()) {
            Some(order) => {
                check_order(head, has_token)?;
                return Ok(Ask::Act(order));
            }
            None => Ask::Read(question(head)?),
        },
    };
    if head.method == "GET" || head.method == "HEAD" {
        return Ok(read_only);
    }
    Err(No::Method("GET"))
}

fn order(path: &str) -> Option<Order> {
    match path {
        "/api/outbox/retry" => Some(Order::Retry),
        "/api/outbox/discard" => Some(Order::Discard),
        "/api/relay/pause" => Some(Order::Pause),
        "/api/relay/resume" => Some(Order::Resume),
        _ => None,
    }
}

/// A form of another site can send neither this media type nor a header of its own without asking first, and asking is
/// answered with no.
fn check_order(head: &Head<'_>, has_token: bool) -> Result<(), No> {
    if head.method != "POST" {
        return Err(No::Method("POST"));
    }
    let mut types = head.values("content-type");
    let essence = types.next().and_then(|value| value.split(';').next()).unwrap_or_default();
    if types.next().is_some() || !essence.trim().eq_ignore_ascii_case("application/json") {
        let detail = "Send the body as JSON, with Content-Type: application/json.";
        return Err(No::Problem(problem::MEDIA_TYPE_UNSUPPORTED, detail.to_owned()));
    }
    if !has_token && !head.values("x-onced").eq(["1"]) {
        let detail = "Without an admin token an order needs the header X-Onced: 1, which no other site can send.";
        return Err(No::Problem(problem::FORBIDDEN, detail.to_owned()));
    }
    Ok(())
}

fn question(head: &Head<'_>) -> Result<Question, No> {
    let mut query = Query::of(head)?;
    let question = match head.path.as_ref() {
        "/api/status" => Question::Status,
        "/api/recent" => Question::Recent,
        "/api/history" => Question::History,
        "/api/outbox" => outbox(&mut query)?,
        path => {
            let escaped = path.strip_prefix("/api/requests/").ok_or_else(No::not_found)?;
            let invalid = |detail: String| No::Problem(problem::KEY_INVALID, detail);
            let text = percent_decoded(escaped)
                .ok_or_else(|| invalid("The key in the path is not UTF-8.".to_owned()))?;
            let key = IdempotencyKey::from_text(&text).map_err(|bad| invalid(bad.to_string()))?;
            Question::Key { scope: query.take("scope").unwrap_or_default(), key }
        }
    };
    query.end()?;
    Ok(question)
}

fn outbox(query: &mut Query) -> Result<Question, No> {
    let state = query.parse("state", "pending, sent, dead or discarded", State::of_name)?;
    let since = query.parse("since", "a time such as 2h or 3d", |text| {
        humantime::parse_duration(text).ok().filter(|since| *since <= SINCE_MAX)
    })?;
    let before = query.parse("before", "the number of an event", |text| text.parse().ok())?;
    let limit = query.parse("limit", "a number from 1 to 200", |text| {
        text.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit))
    })?;
    let filter = Filter {
        state,
        event_type: query.take("type"),
        since,
        key: query.take("key"),
        scope: query.take("scope"),
        event_key: None,
    };
    Ok(Question::Outbox { filter, before, limit: limit.unwrap_or(PAGE) })
}

/// A query string, read. What nobody takes is a mistake.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(head: &Head<'_>) -> Result<Query, No> {
        let decoded = |text: &str| {
            percent_decoded(&text.replace('+', " "))
                .filter(|text| !text.contains('\0'))
                .ok_or_else(|| no_query("The query string is not UTF-8 text.".to_owned()))
        };
        let parts = head.query.unwrap_or_default().split('&').filter(|part| !part.is_empty());
        let pairs = parts.map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((decoded(name)?, decoded(value)?))
        });
        Ok(Query(pairs.collect::<Result<_, _>>()?))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let place = self.0.iter().position(|(given, _)| given == name)?;
        Some(self.0.remove(place).1)
    }

    fn parse<T>(
        &mut self,
        name: &str,
        what: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, No> {
        let Some(text) = self.take(name) else { return Ok(None) };
        parse(&text).map(Some).ok_or_else(|| no_query(format!("{name} has to be {what}.")))
    }

    fn end(self) -> Result<(), No> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(no_query(format!("{name:?} is unknown here, or there more than once.")))
            }
        }
    }
}

fn no_query(detail: String) -> No {
    No::Problem(problem::QUERY_UNSUPPORTED, detail)
}
