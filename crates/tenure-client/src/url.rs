//! `Url`: a store's URL, read once for all of them, and how it is refused.
//!
//! **No refusal repeats a word of the URL.** A password that is not percent-encoded ends at a `?`, a `/`, a `&` or an `@`, and its
//! rest then stands where a port, a path, a parameter or a host is read. Which part that is nobody can tell, so that a refusal
//! says what is wrong, with words of ours and the names of the settings that there are.

use percent_encoding::percent_decode_str;

pub use crate::refusal::{UrlError, bad};
use crate::secret::{Login, Secret};

/// What URLs of a store look like: `scheme://user:password@host:port,host:port/path?setting=value`.
pub struct Form {
    /// Whose they are, for people.
    pub store: &'static str,
    /// How they may begin.
    pub schemes: &'static [&'static str],
    /// One that is right.
    pub example: &'static str,
    /// The settings behind the `?`.
    pub settings: &'static [&'static str],
}

/// A URL in its parts. Which hosts, path and settings make sense is the store's to say.
pub struct Url<'a> {
    /// One of those of the form.
    pub scheme: &'static str,
    /// What stands before an `@`.
    pub login: Option<Login>,
    /// In their order and decoded, each by its name.
    pub settings: Vec<(&'static str, String)>,
    hosts: &'a str,
    path: &'a str,
    example: &'static str,
}

/// A host and a port.
pub type Address = (String, u16);

impl Form {
    /// Reads a URL.
    ///
    /// # Errors
    /// If it begins otherwise, has a setting that the store does not know, or a login that was cut.
    pub fn read<'a>(&self, url: &'a str) -> Result<Url<'a>, UrlError> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| bad(format!("a URL of {} is written like {}", self.store, self.example)))?;
        let known = self.schemes.iter().find(|known| **known == scheme);
        let known =
            known.ok_or_else(|| bad(format!("unknown scheme; use one of {}", self.schemes.join(", "))))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // A user or a password was cut by the slash.
        if path.contains('@') {
            return Err(stray());
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(read_login(login)?), hosts),
            None => (None, authority),
        };
        let settings = settings(query, self.store, self.settings)?;
        Ok(Url { scheme: known, login, settings, hosts, path, example: self.example })
    }
}

impl Url<'_> {
    /// The servers: `host`, `host:port`, `[::1]` or `[::1]:port`, with commas between.
    ///
    /// # Errors
    /// If one has no host, or no port that is one.
    pub fn hosts(&self, port: u16) -> Result<Vec<Address>, UrlError> {
        self.hosts.split(',').map(|host| address(host, port, self.example)).collect()
    }

    /// What stands where the servers are, decoded: for a store that has more there than hosts.
    ///
    /// # Errors
    /// If one is not UTF-8.
    pub fn names(&self) -> Result<Vec<String>, UrlError> {
        self.hosts.split(',').map(|part| decode(part, "a host")).collect()
    }

    /// True if no server is named.
    pub fn is_hostless(&self) -> bool {
        self.hosts.is_empty()
    }

    /// What stands behind the first slash after the servers, decoded; empty if there is none.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub fn path(&self) -> Result<String, UrlError> {
        decode(self.path, "the path")
    }
}

fn read_login(text: &str) -> Result<Login, UrlError> {
    let (user, password) = text.split_once(':').map_or((text, None), |(user, rest)| (user, Some(rest)));
    let user = Some(decode(user, "the user")?).filter(|user| !user.is_empty());
    let password = password.map(|password| decode(password, "the password")).transpose()?;
    Ok(Login { user, password: password.map(Secret::from) })
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

fn stray() -> UrlError {
    bad("an @ stands behind a / or ?: in a user or password write / as %2F, ? as %3F, & as %26 and @ as %40")
}

/// The parameters behind the `?`, in their order, not decoded; one without a `=` has no value.
fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    parameters.map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
}

/// A part that may be percent-encoded; `what` names it if it is no text.
fn decode(text: &str, what: &str) -> Result<String, UrlError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| bad(format!("{what} is not UTF-8")))
}

/// A server: `host`, `host:port`, `[::1]` or `[::1]:port`. `example` is a URL that has one.
///
/// # Errors
/// If there is no host, or the port is none.
pub fn address(text: &str, default: u16, example: &str) -> Result<Address, UrlError> {
    let (host, own) = host_and_port(text);
    if host.is_empty() {
        return Err(bad(format!("a host is missing, as in {example}")));
    }
    Ok((plausible(host)?.to_owned(), port(own, default)?))
}

/// A host, if it looks like one: it is shown from here on.
fn plausible(host: &str) -> Result<&str, UrlError> {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if host.chars().all(is_plain) {
        return Ok(host);
    }
    Err(bad(
        "a host has a character that no host has; in a user or password write / as %2F, ? as %3F and @ as %40",
    ))
}

/// The two parts of an address, without the brackets of the first.
fn host_and_port(text: &str) -> (&str, Option<&str>) {
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
pub fn shown((host, port): &Address) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
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

    const FORM: Form = Form { store: "it", schemes: &["x", "xs"], example: "x://h/p", settings: &["a", "b"] };

    #[test]
    fn a_url_has_a_login_servers_a_path_and_settings() {
        let url = FORM.read("xs://app:p%40s:s@a,b:5,[::1]:6/some%20path?b=2&a=1").unwrap();
        assert_eq!(url.scheme, "xs");
        assert_eq!(url.hosts(7).unwrap(), [("a".into(), 7), ("b".into(), 5), ("::1".into(), 6)]);
        assert_eq!((url.path().unwrap().as_str(), url.is_hostless()), ("some path", false));
        assert_eq!(url.settings, [("b", "2".into()), ("a", "1".into())]);
        let login = url.login.unwrap();
        assert_eq!(
            (login.user.as_deref(), login.password.as_ref().unwrap().expose()),
            (Some("app"), "p@s:s")
        );
        let bare = FORM.read("x://").unwrap();
        assert!(bare.is_hostless() && bare.login.is_none() && bare.path().unwrap().is_empty());
        assert_eq!(FORM.read("x://:pw@h").unwrap().login.unwrap().user, None);
    }

    #[test]
    fn a_url_that_is_none_is_refused_in_words_of_ours() {
        let refused = |url| FORM.read(url).map(|_| ()).unwrap_err().to_string();
        assert_eq!(refused("secret"), "a URL of it is written like x://h/p");
        assert_eq!(refused("secret://h"), "unknown scheme; use one of x, xs");
        for cut in ["x://u:half/secret@h", "x://u:half?secret@h"] {
            assert!(refused(cut).starts_with("an @ stands behind"), "{cut}");
        }
        assert_eq!(refused("x://u:%FF@h"), "the password is not UTF-8");
    }
}
