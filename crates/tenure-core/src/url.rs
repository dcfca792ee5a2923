//! What the URLs of all stores have in common: parameters, addresses, durations, and how they are refused.

use std::time::Duration;

use percent_encoding::percent_decode_str;

/// What is wrong with a URL, for people. Never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(String);

/// A URL is refused, for this reason.
pub fn bad(what: impl Into<String>) -> UrlError {
    UrlError(what.into())
}

/// The parameters behind the `?`, in their order, not decoded; one without a `=` has no value.
pub fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    parameters.map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
}

/// A part that may be percent-encoded; `what` names it if it is no text.
///
/// # Errors
/// If it is not UTF-8.
pub fn decode(text: &str, what: &str) -> Result<String, UrlError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| bad(format!("{what} is not UTF-8")))
}

/// A server: `host`, `host:port`, `[::1]` or `[::1]:port`. `example` is a URL that has one.
///
/// # Errors
/// If there is no host, or the port is none.
pub fn address(text: &str, default: u16, example: &str) -> Result<(String, u16), UrlError> {
    let (host, own) = host_and_port(text);
    if host.is_empty() {
        return Err(bad(format!("a host is missing, as in {example}")));
    }
    Ok((host.to_owned(), port(host, own, default)?))
}

/// The two parts of an address, without the brackets of the first.
pub fn host_and_port(text: &str) -> (&str, Option<&str>) {
    match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    }
}

/// The port of a host, or the default where none is said.
///
/// # Errors
/// If it is no number from 1 to 65535.
pub fn port(host: &str, text: Option<&str>, default: u16) -> Result<u16, UrlError> {
    match text.map_or(Ok(default), str::parse) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(bad(format!("the port of {host} is no number from 1 to 65535"))),
    }
}

/// An address as it stands in a URL.
pub fn shown((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The duration that the parameter `key` says, like `500ms`, from `least` to `most`.
///
/// # Errors
/// If it is none, or lies outside.
pub fn duration(key: &str, text: &str, least: Duration, most: Duration) -> Result<Duration, UrlError> {
    let parsed = humantime::parse_duration(text)
        .map_err(|error| bad(format!("{key}={text}: {error}; write it like 500ms")))?;
    if parsed < least || parsed > most {
        return Err(bad(format!("{key}={text} lies outside {least:?} to {most:?}")));
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_perhaps_a_port() {
        for (text, expected) in [
            ("h", Some(("h", 7))),
            ("h:5", Some(("h", 5))),
            ("[::1]", Some(("::1", 7))),
            ("[::1]:5", Some(("::1", 5))),
            ("", None),
            (":5", None),
            ("[]:5", None),
            ("h:0", None),
            ("h:", None),
            ("h:65536", None),
        ] {
            let read = address(text, 7, "x://h").ok();
            assert_eq!(read.as_ref().map(|(host, port)| (host.as_str(), *port)), expected, "{text}");
            assert!(read.is_none_or(|read| address(&shown(&read), 1, "x://h").as_ref() == Ok(&read)));
        }
    }

    #[test]
    fn parameters_are_pairs_in_their_order() {
        let pairs: Vec<_> = parameters("a=1&&b&c=x=y").collect();
        assert_eq!(pairs, [("a", "1"), ("b", ""), ("c", "x=y")]);
        assert_eq!(decode("p%40%C3%BC", "it").unwrap(), "p@ü");
        assert_eq!(decode("%FF", "it").unwrap_err().to_string(), "it is not UTF-8");
    }

    #[test]
    fn the_bounds_of_a_duration_are_inclusive() {
        let (least, most) = (Duration::from_millis(10), Duration::from_secs(1));
        let read = |text| duration("wait", text, least, most);
        assert_eq!((read("10ms"), read("1s")), (Ok(least), Ok(most)));
        assert_eq!(read("9ms").unwrap_err().to_string(), "wait=9ms lies outside 10ms to 1s");
        assert!(read("soon").unwrap_err().to_string().starts_with("wait=soon: "));
    }
}
