//! What the URLs of all stores have in common: parameters, addresses, durations, and how they are refused.
//!
//! **No refusal repeats a word of the URL.** A password that is not percent-encoded ends at a `?`, a `/`, a `&` or an `@`, and its
//! rest then stands where a port, a path, a parameter or a host is read. Which part that is nobody can tell, so that a refusal
//! says what is wrong, with words of ours and the names of the settings that there are.

use std::time::Duration;

use percent_encoding::percent_decode_str;

/// What is wrong with a URL, for people. Holds no word of the URL itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(String);

/// A URL is refused, for this reason. The caller puts in no word of the URL.
pub fn bad(what: impl Into<String>) -> UrlError {
    UrlError(what.into())
}

/// The settings behind the `?`, in their order and decoded, each by its name in `known`. `store` is whose they are.
///
/// # Errors
/// If one is not known, is no text, or has an `@`, which rather belongs to a login that was cut.
pub fn settings(
    query: &str,
    store: &str,
    known: &[&'static str],
) -> Result<Vec<(&'static str, String)>, UrlError> {
    let read = |(at, (key, value)): (usize, (&str, &str))| {
        // Only the value of a URL inside of a URL has it by right.
        if key.contains('@') || (value.contains('@') && key != "listen") {
            return Err(stray());
        }
        let Some(name) = known.iter().find(|name| **name == key) else {
            let known = known.join(", ");
            let hint = if query.contains("password=") { "; in a password write & as %26" } else { "" };
            let number = at + 1;
            return Err(bad(format!(
                "{store} does not know parameter {number} of the URL; it has {known}{hint}"
            )));
        };
        Ok((*name, decode(value, name)?))
    };
    parameters(query).enumerate().map(read).collect()
}

/// Refuses a part of a URL that stands behind the servers, if there is an `@` in it: a user or a password was cut.
///
/// # Errors
/// If there is one.
pub fn without_login(part: &str) -> Result<&str, UrlError> {
    if part.contains('@') { Err(stray()) } else { Ok(part) }
}

fn stray() -> UrlError {
    bad("an @ stands behind a / or ?: in a user or password write / as %2F, ? as %3F, & as %26 and @ as %40")
}

/// The parameters behind the `?`, in their order, not decoded; one without a `=` has no value.
fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
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
    Ok((plausible(host)?.to_owned(), port(own, default)?))
}

/// A host, if it looks like one: it is shown from here on.
///
/// # Errors
/// If it has a character that no name and no number of a host has.
pub fn plausible(host: &str) -> Result<&str, UrlError> {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if host.chars().all(is_plain) {
        return Ok(host);
    }
    Err(bad(
        "a host has a character that no host has; in a user or password write / as %2F, ? as %3F and @ as %40",
    ))
}

/// The two parts of an address, without the brackets of the first.
pub fn host_and_port(text: &str) -> (&str, Option<&str>) {
    match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        // What follows the bracket is a port, or makes it none.
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or(""))),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    }
}

/// A port, or the default where none is said.
///
/// # Errors
/// If it is no number from 1 to 65535.
pub fn port(text: Option<&str>, default: u16) -> Result<u16, UrlError> {
    match text.map_or(Ok(default), str::parse) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(bad("a port is no number from 1 to 65535")),
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
pub fn duration(
    key: &'static str,
    text: &str,
    least: Duration,
    most: Duration,
) -> Result<Duration, UrlError> {
    let parsed = humantime::parse_duration(text);
    let parsed = parsed.map_err(|_| bad(format!("{key}= is no duration; write it like 500ms")))?;
    if parsed < least || parsed > most {
        return Err(bad(format!("{key}= lies outside {least:?} to {most:?}")));
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
    fn settings_are_pairs_in_their_order() {
        let pairs: Vec<_> = parameters("a=1&&b&c=x=y").collect();
        assert_eq!(pairs, [("a", "1"), ("b", ""), ("c", "x=y")]);
        let read = |query| settings(query, "it", &["a", "b", "listen"]);
        let listen = ("listen", "x://u@h".to_owned());
        assert_eq!(
            read("b=p%40%C3%BC&a&listen=x://u@h").unwrap(),
            [("b", "p@ü".into()), ("a", String::new()), listen]
        );
        let refused = |query| read(query).unwrap_err().to_string();
        assert_eq!(refused("a=%FF"), "a is not UTF-8");
        assert_eq!(refused("a=1&sesame=2"), "it does not know parameter 2 of the URL; it has a, b, listen");
        for cut in ["a=half@h", "half@h", "half@h=x"] {
            assert!(refused(cut).starts_with("an @ stands behind"), "{cut}");
        }
    }

    #[test]
    fn a_host_has_no_character_that_belongs_to_a_password() {
        for good in ["db-1.example", "ünï", "10.0.0.1", "_x", "[::1]:5", "[fe80::1%eth0]"] {
            assert!(address(good, 7, "x://h").is_ok(), "{good}");
        }
        for odd in ["h#12", "h h", "h?x", "h!:5", "[h", "h\n", "h/x", "[a]b"] {
            let refused = address(odd, 7, "x://h").map(|_| ()).unwrap_err().to_string();
            assert!(!refused.contains(odd), "{refused}");
        }
    }

    #[test]
    fn the_bounds_of_a_duration_are_inclusive() {
        let (least, most) = (Duration::from_millis(10), Duration::from_secs(1));
        let read = |text| duration("wait", text, least, most);
        assert_eq!((read("10ms"), read("1s")), (Ok(least), Ok(most)));
        assert_eq!(read("9ms").unwrap_err().to_string(), "wait= lies outside 10ms to 1s");
        assert_eq!(read("soon").unwrap_err().to_string(), "wait= is no duration; write it like 500ms");
    }
}
