//! From `--url` to a store.

use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt, path::PathBuf};

use tenure::{ConfigError, Locker};

use crate::{
    args::Global,
    exit::{Stop, UNAVAILABLE, chain},
};

/// Connects to the named store, or to the file in the state directory.
pub(crate) async fn connect(global: &Global) -> Result<Locker, Stop> {
    let url = url(global)?;
    if global.url.is_none() {
        make_folder()?;
    }
    tenure::connect(&url).await.map_err(|error: ConfigError| Stop::usage(chain(&error)))
}

/// Where the store is, as messages may show it: a URL may hold a password, and the path of a file never does.
pub(crate) fn place(global: &Global) -> String {
    // OK to drop the error: the caller has connected.
    url(global).map_or_else(|_| "the store".to_owned(), |url| place_of(&url))
}

/// The servers or the file in a URL that was accepted: its login therefore ends at the last `@` before a `/` or
/// `?`.
fn place_of(url: &str) -> String {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let rest = rest.split('?').next().unwrap_or_default();
    let servers = match scheme {
        "sqlite" => return format!("sqlite:{rest}"),
        "redlock" => rest.split(',').map(|node| servers(node.trim())).collect::<Vec<_>>().join(", "),
        _ => servers(rest).to_owned(),
    };
    let is_plain = |c: char| c.is_alphanumeric() || ".-_:%[],/ ".contains(c);
    if servers.is_empty() || !servers.chars().all(is_plain) {
        return format!("the {scheme} store");
    }
    format!("the {scheme} store at {servers}")
}

/// The hosts, or the path of a socket.
fn servers(url: &str) -> &str {
    let rest = url.split_once("//").map_or(url, |(_, rest)| rest);
    let hosts = rest.split('/').next().unwrap_or_default();
    let hosts = hosts.rsplit('@').next().unwrap_or_default();
    if hosts.is_empty() && !rest.contains('@') { rest } else { hosts }
}

fn url(global: &Global) -> Result<String, Stop> {
    match &global.url {
        Some(url) if url.starts_with("memory:") => Err(Stop::usage(
            "a memory: store ends with this process; use one that other processes see, as in --url sqlite:PATH",
        )),
        Some(url) => Ok(url.clone()),
        None => default_url(),
    }
}

fn default_url() -> Result<String, Stop> {
    let file = folder()?.join("locks.db");
    match file.to_str() {
        Some(path) if !path.contains('?') => Ok(format!("sqlite:{path}")),
        _ => Err(Stop::usage(
            "the state directory's name cannot be part of a URL; name a store with --url sqlite:PATH",
        )),
    }
}

/// The folder of the default file.
fn folder() -> Result<PathBuf, Stop> {
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let Some(state) = state else {
        return Err(Stop::usage(
            "neither HOME nor XDG_STATE_HOME is set; name a store with --url sqlite:PATH",
        ));
    };
    Ok(state.join("tenure"))
}

/// Creates it for this user alone, unless it exists: any user that may write to it may delete the locks in it.
fn make_folder() -> Result<(), Stop> {
    let folder = folder()?;
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
        Stop::new(UNAVAILABLE, format!("the state directory {} cannot be made: {error}", folder.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_what_a_url_names_without_login_and_settings() {
        for (url, place) in [
            ("sqlite:/var/lib/app/locks.db?max_ttl=1s", "sqlite:/var/lib/app/locks.db"),
            ("redis://h", "the redis store at h"),
            ("rediss://u:hid:den,hidden@h:1/2?max_ttl=3s", "the rediss store at h:1"),
            ("redis+unix:///run/redis.sock", "the redis+unix store at /run/redis.sock"),
            ("redis-sentinel://:hidden@a,b:7?master=hidden", "the redis-sentinel store at a,b:7"),
            (
                "redlock:redis://:hidden@a,redis://u:hidden@b:1/2, redis://[::1]:3?guard=off",
                "the redlock store at a, b:1, [::1]:3",
            ),
            ("postgres://u:hid@den@h/hidden?host=hidden", "the postgres store at h"),
            ("mysql://u:hid@den@h/hidden?socket=hidden", "the mysql store at h"),
            ("zookeeper://a,b,c/hidden", "the zookeeper store at a,b,c"),
            ("redis://hidden!", "the redis store"),
            ("postgres:///hidden@hidden", "the postgres store"),
        ] {
            assert_eq!(place_of(url), place, "{url}");
        }
    }
}
