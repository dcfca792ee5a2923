//! Opens the store of the chosen URL, and names it in messages.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::OnceLock,
};

use nix::unistd::Uid;
use tenure::{ConfigError, Locker, command::Volume};

use crate::{
    args::Global,
    beside::{self, Beside},
    exit::{self, Stop, UNAVAILABLE, chain},
    sources::{By, NAME_ONE, Named, Surroundings},
};

/// The store of this process, once it is known.
static CHOSEN: OnceLock<Named> = OnceLock::new();

/// Connects to the store for a verb that acquires. The default file is announced before it is made.
pub(crate) async fn connect(global: &Global) -> Result<Locker, Stop> {
    let locks = open(global).await?;
    let named = chosen(global)?;
    if let (By::Default, Some(file)) = (&named.by, named.file()) {
        tell_of_default(file, global.quiet);
    }
    Ok(locks)
}

/// Says where locks are if nothing named a store: once, and whenever another account uses a default file as well.
fn tell_of_default(file: &Path, quiet: bool) {
    let place = file.display();
    // OK to drop an error: then nothing is known about others.
    let beside = beside::others(Uid::effective().as_raw(), file).ok().flatten();
    if quiet {
        return;
    }
    if let Some(Beside { uid, file }) = beside {
        exit::warn(&format!(
            "no store is named: locks are kept in {place}, and others now in {file} (uid {uid}), which do not exclude each \
             other; name one store with --url, TENURE_URL or /etc/tenure/config.toml"
        ));
    } else if !file.exists() {
        exit::warn(&format!(
            "no store is named: locks are kept in {place}, for this account on this host; --url names another store"
        ));
    }
}

/// Connects to the store for a verb that acquires nothing new.
pub(crate) async fn open(global: &Global) -> Result<Locker, Stop> {
    let named = chosen(global)?;
    if let (By::Default, Some(folder)) = (&named.by, named.file().and_then(Path::parent)) {
        make_folder(folder)?;
    }
    tenure::command::connect_file(&named.url, named.source.as_deref())
        .await
        .map_err(|error: ConfigError| Stop::usage(chain(&error)))
}

/// Where the store is, as messages may show it: a URL may hold a password, and the path of a file never does.
pub(crate) fn place(global: &Global) -> String {
    // OK to drop the error: who asks has connected.
    chosen(global).map_or_else(|_| "the store".to_owned(), |named| place_of(&named.url))
}

fn chosen(global: &Global) -> Result<&Named, Stop> {
    if let Some(named) = CHOSEN.get() {
        return Ok(named);
    }
    let named = Surroundings::of_process().named(global.url.as_deref())?;
    if named.url.starts_with("memory:") {
        return Err(Stop::usage(
            "a memory: store ends with this process; use one that other processes see, as in --url sqlite:PATH",
        ));
    }
    check_volume(&named, global.quiet)?;
    Ok(CHOSEN.get_or_init(|| named))
}

/// A file that several machines share excludes no process of another machine.
fn check_volume(named: &Named, quiet: bool) -> Result<(), Stop> {
    let Some(file) = named.file() else { return Ok(()) };
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let volume = Volume::of(&fs::canonicalize(&absolute).unwrap_or(absolute));
    let place = file.display();
    let refused = match (&volume, &named.by) {
        (Volume::Local, _) => return Ok(()),
        (Volume::Network(_), By::Default) => true,
        _ => false,
    };
    if refused {
        let line = format!(
            "the default store {place} is on {volume}, where two machines could hold one lock; name a store with \
                 --url or TENURE_URL: a server for locks between machines, sqlite:PATH on a local disk for this one"
        );
        return Err(Stop::new(UNAVAILABLE, line));
    }
    if !quiet {
        exit::warn(&format!(
            "{place} is on {volume}: if another machine has it too, both could hold one lock; use a local file or a \
                 store with a server"
        ));
    }
    Ok(())
}

/// For this user alone, unless it is there: any user that may write to it may delete what is remembered in it.
fn make_folder(folder: &Path) -> Result<(), Stop> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        let folder = folder.display();
        Stop::new(UNAVAILABLE, format!("cannot create the state directory {folder}: {error}; {NAME_ONE}"))
    })
}

/// The place where `ls` looked, if no store was named and it found nothing.
pub(crate) fn tell_where(global: &Global) {
    let (Ok(named), false) = (chosen(global), global.quiet) else { return };
    match (&named.by, named.file()) {
        (By::User, _) => {}
        (_, Some(file)) if !file.exists() => {
            exit::warn(&format!("no lock is held or waited for: there is no file {} yet", file.display()));
        }
        _ => exit::warn(&format!("no lock is held or waited for in {}", place_of(&named.url))),
    }
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
