//! An event as programs see it.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::store::outbox::Entry;

/// An event as JSON. Members are only ever added.
#[derive(Debug, Serialize)]
pub(super) struct View<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    /// Only where one event is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
}

impl View<'_> {
    /// An event of a list.
    pub(super) fn of(entry: &Entry) -> View<'_> {
        View { entry, payload: None }
    }

    /// One event, with its payload as the database renders it.
    pub(super) fn with_payload(entry: &Entry) -> View<'_> {
        View { payload: serde_json::from_str(&entry.payload).ok(), ..View::of(entry) }
    }
}
