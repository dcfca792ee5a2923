//! From `--url` to a store.

use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt, path::PathBuf};

use tenure::{ConfigError, Locker};

use crate::{
    args::Global,
    exit::{Stop, UNAVAILABLE, chain},
};

/// Connects to the store that was named, or to the file in the state directory.
pub(crate) async fn connect(global: &Global) -> Result<Locker, Stop> {
    tenure::connect(&url(global)?).await.map_err(|error: ConfigError| Stop::usage(chain(&error)))
}

/// The store as people may see it: a password is never part of the path of a file, but may be of any other URL.
pub(crate) fn shown(global: &Global) -> Result<String, Stop> {
    let url = url(global)?;
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    Ok(if scheme == "sqlite" { url } else { format!("the {scheme} store") })
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
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let Some(state) = state else {
        return Err(Stop::usage(
            "neither HOME nor XDG_STATE_HOME is set; name a store with --url sqlite:PATH",
        ));
    };
    let folder = state.join("tenure");
    // For this user alone, unless it is there: whoever may write to it may delete what is remembered in it.
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
        Stop::new(UNAVAILABLE, format!("the state directory {} cannot be made: {error}", folder.display()))
    })?;
    let file = folder.join("locks.db");
    match file.to_str() {
        Some(path) if !path.contains('?') => Ok(format!("sqlite:{path}")),
        _ => Err(Stop::usage(
            "the state directory's name cannot be part of a URL; name a store with --url sqlite:PATH",
        )),
    }
}
