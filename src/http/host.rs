//! Which `Host` is ours. A page of another site can be made to point its own name at a loopback address (DNS
//! rebinding) and then speak to a listener that takes anybody; but it cannot choose what `Host` the browser sends.

use std::net::IpAddr;

use super::front::Head;

/// Whether the request names a loopback host, or one of `hosts`. A request without `Host` (HTTP/1.0) comes from no
/// browser.
pub fn is_ours(head: &Head<'_>, hosts: &[String]) -> bool {
    let Some(value) = head.values("host").next() else { return true };
    let name = without_port(value);
    is_loopback(name)
        || hosts
            .iter()
            .any(|host| host.eq_ignore_ascii_case(name) || host.eq_ignore_ascii_case(value))
}

fn without_port(value: &str) -> &str {
    let end = match value.rfind(':') {
        Some(colon) if !value[colon..].contains(']') => colon,
        _ => value.len(),
    };
    &value[..end]
}

fn is_loopback(name: &str) -> bool {
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let literal = address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    literal || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(host: Option<&str>, hosts: &[&str]) -> bool {
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect::<Vec<_>>();
        let headers = host.map(|host| ("Host", host)).into_iter().collect();
        is_ours(&Head { method: "GET", path: "/".into(), query: None, headers }, &hosts)
    }

    #[test]
    fn loopback_and_the_configured_hosts_are_ours_and_no_others() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.8.9.1", "[::1]:80"] {
            assert!(ours(Some(host), &[]), "{host}");
        }
        assert!(ours(None, &[]));
        assert!(ours(Some("onced.internal:8080"), &["onced.internal"]));
        assert!(ours(Some("onced.internal:8080"), &["onced.internal:8080"]));
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.evil"] {
            assert!(!ours(Some(host), &["onced.internal"]), "{host}");
        }
    }
}
