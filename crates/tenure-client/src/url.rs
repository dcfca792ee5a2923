//! `Url` and `UrlWriter`: how the URL of a store is read, refused and written; the same for all stores.
//!
//! **No refusal repeats a part of the URL.** A password that is not percent-encoded ends at a `?`, a `/`, a `&` or
//! an `@`. The rest of it is then read as a port, a path, a parameter or a host. No reader can detect which part
//! that is, so a refusal uses only fixed words and the names of known settings.

use std::{path::Path, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

pub use crate::refusal::{UrlError, bad};
use crate::{
    durations::{self, Span},
    secret::{Login, Secret},
};

/// The form of the URLs of a store: `scheme://user:password@host:port,host:port/path?setting=value`.
pub struct Form {
    /// The store, for messages.
    pub store: &'static str,
    /// The possible schemes.
    pub schemes: &'static [&'static str],
    /// A valid URL.
    pub example: &'static str,
    /// The settings after the `?`.
    pub settings: &'static [&'static str],
    /// Other names of these settings, and which one each is.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Those of other programs.
    pub foreign: &'static [Foreign],
}

/// A setting that other programs write into URLs of a store: its name, the values with which it changes nothing here
/// (`*` is any), and what to do about others.
pub struct Foreign(pub &'static str, pub &'static [&'static str], pub &'static str);

/// A URL in its parts. Which hosts, path and settings make sense is the store's to say.
pub struct Url<'a> {
    /// One of those of the form.
    pub scheme: &'static str,
    /// The text before an `@`.
    pub login: Option<Login>,
    /// In their order and decoded, each by its name.
    pub settings: Vec<(&'static str, String)>,
    hosts: &'a str,
    path: &'a str,
    example: &'static str,
}

/// A host and a port.
pub type HostPort = (String, u16);

/// A host, and its port if one is named.
pub type NamedHost = (String, Option<u16>);

impl Form {
    /// Reads a URL.
    ///
    /// # Errors
    /// If it has another scheme, a setting that the store does not know, or a login that was cut.
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
        let mut settings = settings(query, self.store, (self.settings, self.aliases, self.foreign))?;
        let login = match settings.iter().position(|(key, _)| *key == PASSWORD_FILE) {
            Some(at) => Some(with_file(login.unwrap_or_default(), &settings.swap_remove(at).1)?),
            None => login,
        };
        Ok(Url { scheme: known, login, settings, hosts, path, example: self.example })
    }
}

impl Url<'_> {
    /// The servers: `host`, `host:port`, `[::1]` or `[::1]:port`, with commas between.
    ///
    /// # Errors
    /// If one has no host, or no valid port.
    pub fn hosts(&self, port: u16) -> Result<Vec<HostPort>, UrlError> {
        let host = |text| named_host(text, self.example).map(|(host, own)| (host, own.unwrap_or(port)));
        self.hosts.split(',').map(host).collect()
    }

    /// The text in the place of the servers, decoded: for a store that has more there than hosts.
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

    /// The text after the first slash after the servers, decoded; empty if there is none.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub fn path(&self) -> Result<String, UrlError> {
        decode(self.path, "the path")
    }
}

/// The setting of all stores with a login: a file that is read at each connect.
pub const PASSWORD_FILE: &str = "password_file";

fn with_file(login: Login, path: &str) -> Result<Login, UrlError> {
    if login.password.is_some() {
        return Err(bad("the URL has a password and password_file=; keep one"));
    }
    Ok(Login { password: Some(Secret::in_file(absolute(PASSWORD_FILE, path)?)), ..login })
}

/// The path of a file that is read later: by then the program may be in another directory.
///
/// # Errors
/// If it is relative.
pub fn absolute<'p>(key: &str, path: &'p str) -> Result<&'p Path, UrlError> {
    let path = Path::new(path);
    if path.is_absolute() { Ok(path) } else { Err(bad(format!("{key}= is the absolute path of a file"))) }
}

fn read_login(text: &str) -> Result<Login, UrlError> {
    let (user, password) = text.split_once(':').map_or((text, None), |(user, rest)| (user, Some(rest)));
    let user = Some(decode(user, "the user")?).filter(|user| !user.is_empty());
    let password = password.map(|password| decode(password, "the password")).transpose()?;
    Ok(Login { user, password: password.map(Secret::from) })
}

/// The settings behind the `?`, in their order and decoded, each by its name in `known`; of `foreign` ones nothing.
/// `store` is whose they are.
///
/// # Errors
/// If one is not known, is not text, or has an `@`, which more likely belongs to a login that was cut.
pub fn settings(
    query: &str,
    store: &str,
    (known, aliases, foreign): (&[&'static str], &[(&str, &str)], &[Foreign]),
) -> Result<Vec<(&'static str, String)>, UrlError> {
    let read = |(at, (key, value)): (usize, (&str, &str))| {
        // Only the value that is itself a URL may contain one.
        if key.contains('@') || (value.contains('@') && key != "listen") {
            return Err(stray());
        }
        let key = aliases.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, name)| *name);
        if let Some(foreign) = foreign.iter().find(|foreign| foreign.0 == key) {
            return foreign.check(value).map(|()| None);
        }
        let Some(name) = known.iter().find(|name| **name == key) else {
            let known = known.join(", ");
            let hint = if query.contains("password=") { "; in a password write & as %26" } else { "" };
            let number = at + 1;
            return Err(bad(format!(
                "{store} does not know parameter {number} of the URL; it has {known}{hint}"
            )));
        };
        Ok(Some((*name, decode(value, name)?)))
    };
    parameters(query).enumerate().filter_map(|it| read(it).transpose()).collect()
}

impl Foreign {
    fn check(&self, value: &str) -> Result<(), UrlError> {
        let Self(name, harmless, remedy) = self;
        let is_harmless = harmless.iter().any(|word| *word == "*" || word.eq_ignore_ascii_case(value));
        if is_harmless { Ok(()) } else { Err(bad(format!("{name}= of the URL is not honoured: {remedy}"))) }
    }
}

fn stray() -> UrlError {
    bad("an @ stands behind a / or ?: in a user or password write / as %2F, ? as %3F, & as %26 and @ as %40")
}

/// The parameters after the `?`, in their order, not decoded; one without a `=` has no value.
fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    parameters.map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
}

/// A part that may be percent-encoded; `what` names it if it is not text.
fn decode(text: &str, what: &str) -> Result<String, UrlError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| bad(format!("{what} is not UTF-8")))
}

/// A server: `host`, `host:port`, `[::1]` or `[::1]:port`. `example` is a URL that has one.
///
/// # Errors
/// If there is no host, or the port is not valid.
pub fn named_host(text: &str, example: &str) -> Result<NamedHost, UrlError> {
    let (host, own) = host_and_port(text);
    if host.is_empty() {
        return Err(bad(format!("a host is missing, as in {example}")));
    }
    Ok((plausible(host)?.to_owned(), own.map(port).transpose()?))
}

/// Servers as a program names them: as in a URL, and IPv6 without brackets too.
///
/// # Errors
/// If there is none, or one has no host, or no valid port.
pub fn named_hosts<H: AsRef<str>>(hosts: impl IntoIterator<Item = H>) -> Result<Vec<NamedHost>, UrlError> {
    let no_host = || bad("a host is a name or a number, with its port behind a colon if need be");
    let read = |host: H| {
        let text = host.as_ref();
        let is_bare_v6 = text.matches(':').count() > 1 && !text.starts_with('[');
        let (host, own) = if is_bare_v6 { (text, None) } else { host_and_port(text) };
        if host.is_empty() || plausible(host).is_err() {
            return Err(no_host());
        }
        Ok((host.to_owned(), own.map(port).transpose()?))
    };
    let hosts = hosts.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if hosts.is_empty() { Err(bad("no server is named")) } else { Ok(hosts) }
}

/// A host, if it is plausible: it may be shown from now on.
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
        // Text after the bracket is a port, or an error.
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or(""))),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    }
}

/// A port.
///
/// # Errors
/// If it is not a number from 1 to 65535.
pub fn port(text: &str) -> Result<u16, UrlError> {
    let port = text.parse().unwrap_or(0);
    check_ports([port]).map(|()| port)
}

/// # Errors
/// If one is 0.
pub fn check_ports(ports: impl IntoIterator<Item = u16>) -> Result<(), UrlError> {
    let is_bad = ports.into_iter().any(|port| port == 0);
    if is_bad { Err(bad("a port is no number from 1 to 65535")) } else { Ok(()) }
}

/// An address as it is written in a URL.
pub fn shown((host, port): &HostPort) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Addresses as they are written in a URL, with commas between.
pub fn listed(hosts: &[HostPort]) -> String {
    hosts.iter().map(shown).collect::<Vec<_>>().join(",")
}

/// A text, unless it is empty.
pub fn some(text: impl Into<String>) -> Option<String> {
    Some(text.into()).filter(|text| !text.is_empty())
}

/// A setting with a few words: its name, and the meaning of each word.
#[derive(Clone, Copy)]
pub struct Words<T: 'static>(pub &'static str, pub &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Words<T> {
    /// The meaning of a word.
    ///
    /// # Errors
    /// If it is none of them.
    pub fn read(self, text: &str) -> Result<T, UrlError> {
        let Self(key, words) = self;
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let mut known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let last = known.pop().unwrap_or_default();
            bad(format!("{key}= is {} or {last}", known.join(", ")))
        })
    }

    /// The word with this meaning.
    pub fn word(self, meaning: T) -> Option<&'static str> {
        self.1.iter().find(|(_, known)| *known == meaning).map(|(word, _)| *word)
    }
}

/// A URL that is being written, from left to right.
pub struct UrlWriter {
    url: Result<String, UrlError>,
    /// The character before the next setting.
    separator: char,
}

impl UrlWriter {
    /// Begins with a login and servers. The servers are written unchanged: see [`listed`].
    pub fn new(scheme: &str, login: &Login, servers: &str) -> Self {
        let user = login.user.as_deref().map(encoded).unwrap_or_default();
        let login = match login.password.as_ref().and_then(Secret::word) {
            Some(word) => format!("{user}:{}@", encoded(word)),
            None if user.is_empty() => user,
            None => format!("{user}@"),
        };
        Self { url: Ok(format!("{scheme}://{login}{servers}")), separator: '?' }
    }

    /// A password that is not in the login: the file that has it.
    #[must_use]
    pub fn secret(mut self, key: &str, secret: Option<&Secret>) -> Self {
        match secret {
            Some(secret) if secret.word().is_some() => self,
            Some(secret) if secret.file().is_none() => {
                self.url =
                    self.url.and_then(|_| Err(bad("a password that the program is asked for is in no URL")));
                self
            }
            secret => self.file(key, secret.and_then(Secret::file)),
        }
    }

    /// The path, without its first slash; none, if it is empty.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        if let Ok(url) = self.url.as_mut()
            && !path.is_empty()
        {
            url.push('/');
            url.extend(utf8_percent_encode(path, PLAIN_BEHIND_SERVERS));
        }
        self
    }

    /// A setting; it is omitted without a value.
    #[must_use]
    pub fn set(mut self, key: &str, value: Option<&str>) -> Self {
        if let (Ok(url), Some(value)) = (self.url.as_mut(), value) {
            url.extend([self.separator.encode_utf8(&mut [0; 4]), key, "="]);
            url.extend(utf8_percent_encode(value, PLAIN_BEHIND_SERVERS));
            self.separator = '&';
        }
        self
    }

    /// A duration; it is omitted if it is the default.
    #[must_use]
    pub fn duration(self, span: Span, value: Duration, default: Duration) -> Self {
        let text = durations::written(value);
        self.set(span.key, (value != default).then_some(&text))
    }

    /// The path of a file.
    #[must_use]
    pub fn file(mut self, key: &str, file: Option<&Path>) -> Self {
        match file.map(path_text).transpose() {
            Ok(path) => return self.set(key, path),
            Err(error) => self.url = self.url.and(Err(error)),
        }
        self
    }

    /// # Errors
    /// If a URL cannot express a path.
    pub fn finish(self) -> Result<String, UrlError> {
        self.url
    }
}

/// A path as text for a URL.
///
/// # Errors
/// If it is not UTF-8.
pub fn path_text(path: &Path) -> Result<&str, UrlError> {
    path.to_str().ok_or_else(|| bad("the path of a file is not UTF-8"))
}

/// Percent-encoded for any part of a URL.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// Characters that need no encoding anywhere in a URL.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PLAIN_BEHIND_SERVERS: &AsciiSet = &PLAIN.remove(b'/');

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_perhaps_a_port() {
        for (text, expected) in [
            ("h", Some(("h", None))),
            ("h:5", Some(("h", Some(5)))),
            ("[::1]", Some(("::1", None))),
            ("[::1]:5", Some(("::1", Some(5)))),
            ("", None),
            (":5", None),
            ("[]:5", None),
            ("h:0", None),
            ("h:", None),
            ("h:65536", None),
        ] {
            let read = named_host(text, "x://h").ok();
            assert_eq!(read.as_ref().map(|(host, port)| (host.as_str(), *port)), expected, "{text}");
            assert_eq!(named_hosts([text]).ok(), read.clone().map(|read| vec![read]), "{text}");
            assert!(read.is_none_or(|(host, own)| {
                let whole = (host, own.unwrap_or(7));
                named_host(&shown(&whole), "x://h") == Ok((whole.0, Some(whole.1)))
            }));
        }
    }

    #[test]
    fn settings_are_pairs_in_their_order() {
        let pairs: Vec<_> = parameters("a=1&&b&c=x=y").collect();
        assert_eq!(pairs, [("a", "1"), ("b", ""), ("c", "x=y")]);
        let read = |query| {
            settings(
                query,
                "it",
                (&["a", "b", "listen"], &[("c", "b")], &[Foreign("pool", &["1"], "leave it out")]),
            )
        };
        let listen = ("listen", "x://u@h".to_owned());
        assert_eq!(
            read("b=p%40%C3%BC&a&listen=x://u@h").unwrap(),
            [("b", "p@ü".into()), ("a", String::new()), listen]
        );
        assert_eq!(read("pool=1&c=x").unwrap(), [("b", "x".into())]);
        let refused = |query| read(query).unwrap_err().to_string();
        assert_eq!(refused("a=%FF"), "a is not UTF-8");
        assert_eq!(refused("a=1&sesame=2"), "it does not know parameter 2 of the URL; it has a, b, listen");
        assert_eq!(refused("pool=sesame"), "pool= of the URL is not honoured: leave it out");
        for cut in ["a=half@h", "half@h", "half@h=x"] {
            assert!(refused(cut).starts_with("an @ stands behind"), "{cut}");
        }
    }

    #[test]
    fn a_host_has_no_character_that_belongs_to_a_password() {
        for good in ["db-1.example", "ünï", "10.0.0.1", "_x", "[::1]:5", "[fe80::1%eth0]"] {
            assert!(named_host(good, "x://h").is_ok(), "{good}");
            assert!(named_hosts([good]).is_ok(), "{good}");
        }
        for odd in ["h#12", "h h", "h?x", "h!:5", "[h", "h\n", "h/x", "[a]b"] {
            for refused in [named_host(odd, "x://h").map(|_| ()), named_hosts([odd]).map(|_| ())] {
                let refused = refused.unwrap_err().to_string();
                assert!(!refused.contains(odd), "{refused}");
            }
        }
        assert_eq!(named_hosts(["::1"]), Ok(vec![("::1".into(), None)]), "IPv6 without brackets");
        assert_eq!(named_hosts::<&str>([]).unwrap_err().to_string(), "no server is named");
    }

    #[test]
    fn a_word_has_one_meaning() {
        let words = Words("guard", &[("on", 1), ("off", 2), ("late", 3)]);
        assert_eq!((words.read("off"), words.word(3), words.word(4)), (Ok(2), Some("late"), None));
        assert_eq!(words.read("x").unwrap_err().to_string(), "guard= is on, off or late");
    }

    /// A written URL is read with the same meaning, whatever characters it has.
    #[test]
    fn a_url_that_is_written_is_read_as_it_was_meant() {
        let odd = "p@s:/?#&%=, ü+[]";
        let login = |user: Option<&str>, password: Option<&str>| Login {
            user: user.map(String::from),
            password: password.map(Secret::from),
        };
        let (user, most) = (Some(odd), Duration::from_micros(1_500));
        let written = UrlWriter::new("x", &login(user, user), &listed(&[("::1".into(), 5)]))
            .path(odd)
            .set("a", user)
            .set("b", None)
            .duration(durations::TICK, most, most)
            .finish()
            .unwrap();
        let url = FORM.read(&written).unwrap();
        assert_eq!((url.login.clone(), url.hosts(7)), (Some(login(user, user)), Ok(vec![("::1".into(), 5)])));
        assert_eq!((url.path().unwrap().as_str(), &url.settings[..]), (odd, &[("a", odd.to_owned())][..]));
        for login in [login(None, None), login(user, None), login(None, Some("")), login(None, user)] {
            let written = UrlWriter::new("x", &login, "h").finish().unwrap();
            assert_eq!(FORM.read(&written).unwrap().login.unwrap_or_default(), login, "{written}");
        }
        let files = UrlWriter::new("x", &Login::default(), "h").file("a", Some(Path::new("/a b")));
        assert_eq!(files.file("b", None).finish().unwrap(), "x://h?a=/a%20b");
    }

    #[cfg(unix)]
    #[test]
    fn a_path_that_is_not_utf8_is_in_no_url() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let odd = Path::new(OsStr::from_bytes(b"/\xff"));
        let written = UrlWriter::new("x", &Login::default(), "h").file("a", Some(odd)).set("b", Some("1"));
        assert_eq!(written.finish().unwrap_err().to_string(), "the path of a file is not UTF-8");
    }

    const FORM: Form = Form {
        store: "it",
        schemes: &["x", "xs"],
        example: "x://h/p",
        settings: &["a", "b"],
        aliases: &[],
        foreign: &[],
    };

    #[test]
    fn a_url_has_a_login_servers_a_path_and_settings() {
        let url = FORM.read("xs://app:p%40s:s@a,b:5,[::1]:6/some%20path?b=2&a=1").unwrap();
        assert_eq!(url.scheme, "xs");
        assert_eq!(url.hosts(7).unwrap(), [("a".into(), 7), ("b".into(), 5), ("::1".into(), 6)]);
        assert_eq!((url.path().unwrap().as_str(), url.is_hostless()), ("some path", false));
        assert_eq!(url.settings, [("b", "2".into()), ("a", "1".into())]);
        let login = url.login.unwrap();
        assert_eq!(
            (login.user.as_deref(), login.password.as_ref().unwrap().word()),
            (Some("app"), Some("p@s:s"))
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
