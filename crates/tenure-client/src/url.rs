//! `Url` and `UrlWriter`: how the URL of a store is read, refused and written; the same for all stores.
//!
//! **No refusal repeats a part of the URL.** A password that is not percent-encoded ends at a `?`, a `/`, a `&` or
//! an `@`. The rest of it is then read as a port, a path, a parameter or a host. No reader can detect which part
//! that is, so a refusal uses only fixed words and the names of known settings.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

pub use crate::{
    refusal::{UrlError, bad},
    settings::{Given, Setting, Words, path_text, put},
};
use crate::{
    secret::{Login, Secret},
    settings,
};

/// The form of the URLs of a store: `scheme://user:password@host:port,host:port/path?setting=value`.
pub struct Form<C: 'static> {
    /// The store, for messages.
    pub store: &'static str,
    /// The possible schemes.
    pub schemes: &'static [&'static str],
    /// A valid URL.
    pub example: &'static str,
    /// The settings after the `?`, in the order in which they are read.
    pub settings: &'static [Setting<C>],
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
    hosts: &'a str,
    path: &'a str,
    example: &'static str,
}

/// A host and a port.
pub type HostPort = (String, u16);

/// A host, and its port if one is named.
pub type NamedHost = (String, Option<u16>);

impl<C> Form<C> {
    /// Reads a URL, and its settings as text.
    ///
    /// # Errors
    /// If it has another scheme, a setting that the store does not know, or a login that was cut.
    pub fn read<'a>(&self, url: &'a str) -> Result<(Url<'a>, Given<C>), UrlError> {
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
        let given = self.given(query)?;
        Ok((Url { scheme: known, login, hosts, path, example: self.example }, given))
    }

    /// The settings behind the `?`, decoded and in the order of their rows; of foreign ones nothing.
    ///
    /// # Errors
    /// If one is not known, is not text, or has an `@`, which more likely belongs to a login that was cut.
    pub fn given(&self, query: &str) -> Result<Given<C>, UrlError> {
        let read = |(at, (key, value)): (usize, (&str, &str))| {
            let row = self.settings.iter().position(|row| row.key == key || row.aliases.contains(&key));
            let may_have_login = row.is_some_and(|row| self.settings[row].is_url);
            if key.contains('@') || (value.contains('@') && !may_have_login) {
                return Err(stray());
            }
            if let Some(foreign) = self.foreign.iter().find(|foreign| foreign.0 == key) {
                return foreign.check(value).map(|()| None);
            }
            let Some(row) = row else {
                let known: Vec<&str> = self.settings.iter().map(|row| row.key).collect();
                let (number, store, known) = (at + 1, self.store, known.join(", "));
                let hint = if query.contains("password=") { "; in a password write & as %26" } else { "" };
                return Err(bad(format!(
                    "{store} does not know parameter {number} of the URL; it has {known}{hint}"
                )));
            };
            Ok(Some((row, decode(value, self.settings[row].key)?)))
        };
        let given = parameters(query).enumerate().filter_map(|it| read(it).transpose());
        let mut given = given.collect::<Result<Vec<_>, _>>()?;
        // Of one that is given twice, the last counts.
        given.reverse();
        given.sort_by_key(|(row, _)| *row);
        given.dedup_by_key(|(row, _)| *row);
        Ok(Given(given.into_iter().map(|(row, text)| (&self.settings[row], text)).collect()))
    }
}

impl<C: Clone> Form<C> {
    /// # Errors
    /// If a setting is outside its bounds.
    pub fn check(&self, config: &C) -> Result<(), UrlError> {
        settings::check(self.settings, config)
    }

    /// Appends each setting that is not the default to a URL that has all else.
    ///
    /// # Errors
    /// If a URL cannot express one.
    pub fn written(&self, url: UrlWriter, config: &C, plain: &C) -> Result<String, UrlError> {
        let query = self.query(config, plain)?;
        Ok(if query.is_empty() { url.0 } else { format!("{}?{query}", url.0) })
    }

    /// Each setting that is not the default, as it is written behind the `?`.
    ///
    /// # Errors
    /// If a URL cannot express one.
    pub fn query(&self, config: &C, plain: &C) -> Result<String, UrlError> {
        let pair = |(key, value): &(&str, String)| {
            format!("{key}={}", utf8_percent_encode(value, PLAIN_BEHIND_SERVERS))
        };
        let pairs = settings::written(self.settings, config, plain)?;
        Ok(pairs.iter().map(pair).collect::<Vec<_>>().join("&"))
    }

    /// The settings as a Markdown table. The README of the store has it.
    ///
    /// # Errors
    /// If a URL cannot express a default.
    pub fn table(&self, plain: &C) -> Result<String, UrlError> {
        settings::table(self.settings, plain)
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

fn read_login(text: &str) -> Result<Login, UrlError> {
    let (user, password) = text.split_once(':').map_or((text, None), |(user, rest)| (user, Some(rest)));
    let user = Some(decode(user, "the user")?).filter(|user| !user.is_empty());
    let password = password.map(|password| decode(password, "the password")).transpose()?;
    Ok(Login { user, password: password.map(Secret::from) })
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

/// A URL that is being written, from left to right.
pub struct UrlWriter(String);

impl UrlWriter {
    /// Begins with a login and servers. The servers are written unchanged: see [`listed`].
    pub fn new(scheme: &str, login: &Login, servers: &str) -> Self {
        let user = login.user.as_deref().map(encoded).unwrap_or_default();
        let login = match login.password.as_ref().and_then(Secret::word) {
            Some(word) => format!("{user}:{}@", encoded(word)),
            None if user.is_empty() => user,
            None => format!("{user}@"),
        };
        Self(format!("{scheme}://{login}{servers}"))
    }

    /// The path, without its first slash; none, if it is empty.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        if !path.is_empty() {
            self.0.push('/');
            self.0.extend(utf8_percent_encode(path, PLAIN_BEHIND_SERVERS));
        }
        self
    }
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
    fn settings_are_read_in_the_order_of_their_rows() {
        let pairs: Vec<_> = parameters("a=1&&b&c=x=y").collect();
        assert_eq!(pairs, [("a", "1"), ("b", ""), ("c", "x=y")]);
        let read = |query| {
            let given = FORM.given(query)?;
            Ok::<_, UrlError>(given.0.into_iter().map(|(row, text)| (row.key, text)).collect::<Vec<_>>())
        };
        let listen = ("listen", "x://u@h".to_owned());
        assert_eq!(
            read("b=p%40%C3%BC&listen=x://u@h&a").unwrap(),
            [("a", String::new()), ("b", "p@ü".into()), listen]
        );
        assert_eq!(read("pool=1&c=x&b=y&b=z").unwrap(), [("b", "z".into())]);
        let refused = |query| read(query).unwrap_err().to_string();
        assert_eq!(refused("a=%FF"), "a is not UTF-8");
        assert_eq!(refused("a=1&sesame=2"), "it does not know parameter 2 of the URL; it has a, b, listen");
        assert_eq!(refused("pool=sesame"), "pool= of the URL is not honoured: leave it out");
        for cut in ["a=half@h", "half@h", "half@h=x", "pool=half@h"] {
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

    /// A written URL is read with the same meaning, whatever characters it has.
    #[test]
    fn a_url_that_is_written_is_read_as_it_was_meant() {
        let odd = "p@s:/?#&%=, ü+[]";
        let login = |user: Option<&str>, password: Option<&str>| Login {
            user: user.map(String::from),
            password: password.map(Secret::from),
        };
        let user = Some(odd);
        let begun = UrlWriter::new("x", &login(user, user), &listed(&[("::1".into(), 5)])).path(odd);
        let written = FORM.written(begun, &[odd, "", ""].map(str::to_owned), &Texts::default()).unwrap();
        let (url, given) = FORM.read(&written).unwrap();
        assert_eq!((url.login.clone(), url.hosts(7)), (Some(login(user, user)), Ok(vec![("::1".into(), 5)])));
        let mut read = Texts::default();
        given.fill(&mut read).unwrap();
        assert_eq!((url.path().unwrap().as_str(), &*read[0], &*read[1]), (odd, odd, ""));
        for login in [login(None, None), login(user, None), login(None, Some("")), login(None, user)] {
            let written = UrlWriter::new("x", &login, "h").0;
            assert_eq!(FORM.read(&written).unwrap().0.login.unwrap_or_default(), login, "{written}");
        }
        let two = ["/a b", "2", ""].map(str::to_owned);
        let url = UrlWriter::new("x", &Login::default(), "h");
        assert_eq!(FORM.written(url, &two, &Texts::default()).unwrap(), "x://h?a=/a%20b&b=2");
    }

    type Texts = [String; 3];

    const FORM: Form<Texts> = Form {
        store: "it",
        schemes: &["x", "xs"],
        example: "x://h/p",
        settings: &[
            Setting::<Texts>::text("a", |c| &mut c[0]),
            Setting::<Texts>::text("b", |c| &mut c[1]).or(&["c"]),
            Setting::<Texts>::text("listen", |c| &mut c[2]).is_url(),
        ],
        foreign: &[Foreign("pool", &["1"], "leave it out")],
    };

    #[test]
    fn a_url_has_a_login_servers_a_path_and_settings() {
        let (url, _) = FORM.read("xs://app:p%40s:s@a,b:5,[::1]:6/some%20path?b=2&a=1").unwrap();
        assert_eq!(url.scheme, "xs");
        assert_eq!(url.hosts(7).unwrap(), [("a".into(), 7), ("b".into(), 5), ("::1".into(), 6)]);
        assert_eq!((url.path().unwrap().as_str(), url.is_hostless()), ("some path", false));
        let login = url.login.unwrap();
        assert_eq!(
            (login.user.as_deref(), login.password.as_ref().unwrap().word()),
            (Some("app"), Some("p@s:s"))
        );
        let (bare, _) = FORM.read("x://").unwrap();
        assert!(bare.is_hostless() && bare.login.is_none() && bare.path().unwrap().is_empty());
        assert_eq!(FORM.read("x://:pw@h").unwrap().0.login.unwrap().user, None);
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
