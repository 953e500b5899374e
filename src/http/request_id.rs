//! The id that a request carries through the log, the answers and the stored refusals.

use uuid::Uuid;

use super::front::Head;

/// The longest id that is taken from a caller.
const LONGEST: usize = 128;

/// The caller's `X-Request-Id`, if there is one and it is 1 to 128 of `[A-Za-z0-9_.:-]`, else a new one.
pub(crate) fn of(head: &Head<'_>) -> String {
    let mut values = head.values("x-request-id");
    match (values.next(), values.next()) {
        (Some(id), None) if is_good(id) => id.to_owned(),
        _ => new(),
    }
}

/// An id that nobody had before.
pub(crate) fn new() -> String {
    Uuid::now_v7().to_string()
}

fn is_good(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    (1..=LONGEST).contains(&id.len()) && id.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_only_where_it_can_stand_in_a_log_line_and_a_header() {
        assert!(is_good("req-1_2.3:4"));
        assert!(is_good(&"a".repeat(128)));
        for bad in ["", "a b", "a\n", "é", "\"", &"a".repeat(129)] {
            assert!(!is_good(bad), "{bad:?}");
        }
    }
}
