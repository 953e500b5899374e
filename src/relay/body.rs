//! The body of an event on the wire. Pure: the same row gives the same bytes at every attempt and in every version of
//! the program (P5), which is what `format` is for. A change of the body is a new format beside the old one.

use crate::store::events::Event;

/// Why an event has no body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// A later version of the program wrote it.
    #[error("body format {0} is not known to this version")]
    UnknownFormat(i16),
    /// It cannot go out under its identity.
    #[error("the event key is not fit for a header: it must be 1 to 512 visible ASCII characters")]
    EventKey,
}

/// The body of an event, UTF-8 JSON.
pub fn build(event: &Event) -> Result<String, BodyError> {
    let key = event.event_key.as_bytes();
    if key.is_empty() || key.len() > 512 || !key.iter().all(u8::is_ascii_graphic) {
        return Err(BodyError::EventKey);
    }
    match event.format {
        1 => Ok(build_1(event)),
        unknown => Err(BodyError::UnknownFormat(unknown)),
    }
}

fn build_1(event: &Event) -> String {
    format!(
        r#"{{"type": {}, "timestamp": {}, "event_id": {}, "event_key": {}, "principal": {}, "idempotency_key": {}, "data": {}}}"#,
        quoted(&event.event_type),
        quoted(&event.created_at),
        event.id,
        quoted(&event.event_key),
        quoted(&event.scope),
        quoted(&event.idempotency_key),
        event.payload,
    )
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event {
            id: 17,
            scope: String::new(),
            idempotency_key: "demo-001".to_owned(),
            event_key: "0193a:1".to_owned(),
            event_type: "order.created".to_owned(),
            created_at: "2026-12-01T09:30:00.123456Z".to_owned(),
            payload: r#"{"item": "widget"}"#.to_owned(),
            format: 1,
        }
    }

    #[test]
    fn format_1_is_these_bytes_for_ever() {
        let plain = r#"{"type": "order.created", "timestamp": "2026-12-01T09:30:00.123456Z", "event_id": 17, "event_key": "0193a:1", "principal": "", "idempotency_key": "demo-001", "data": {"item": "widget"}}"#;
        assert_eq!(build(&event()).as_deref(), Ok(plain));
        let odd = Event {
            scope: "Zoë \"Q\" \\ \n\u{1}\u{7f}\u{2028}".to_owned(),
            idempotency_key: "k/1".to_owned(),
            payload: "null".to_owned(),
            ..event()
        };
        let odd_bytes = "{\"type\": \"order.created\", \"timestamp\": \"2026-12-01T09:30:00.123456Z\", \"event_id\": 17, \"event_key\": \"0193a:1\", \"principal\": \"Zoë \\\"Q\\\" \\\\ \\n\\u0001\u{7f}\u{2028}\", \"idempotency_key\": \"k/1\", \"data\": null}";
        assert_eq!(build(&odd).as_deref(), Ok(odd_bytes));
    }

    #[test]
    fn what_has_no_body_says_why() {
        assert_eq!(build(&Event { format: 2, ..event() }), Err(BodyError::UnknownFormat(2)));
        for key in ["", "a b", "a\r\nb", "é", &"k".repeat(513)] {
            let event = Event { event_key: key.to_owned(), ..event() };
            assert_eq!(build(&event), Err(BodyError::EventKey), "{key}");
        }
    }
}
