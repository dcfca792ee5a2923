//! Which store: `--url`, the environment, a file of settings, or the default file of the account.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::unistd::{Uid, User};
use serde::Deserialize;

use crate::exit::Stop;

/// A URL, and what named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) url: String,
    pub(crate) by: By,
    /// The file that has the URL, if one was named: its password is read again at each connect.
    pub(crate) source: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// `--url` or a variable.
    User,
    /// A file of settings.
    Settings,
    /// Nothing: it is the default.
    Default,
}

impl Named {
    /// The file of a store that is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        let rest = self.url.strip_prefix("sqlite:")?;
        Some(Path::new(rest.rsplit_once('?').map_or(rest, |(path, _)| path)))
    }
}

/// What names a store where no flag does.
pub(crate) struct Surroundings {
    variable: fn(&str) -> Option<OsString>,
    /// The effective user.
    uid: u32,
    /// The home of the account's entry.
    home: Option<PathBuf>,
    /// The file of settings of the host.
    system: PathBuf,
}

/// What a file of settings may have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    url: Option<String>,
    url_file: Option<PathBuf>,
}

impl Surroundings {
    pub(crate) fn of_process() -> Self {
        let uid = Uid::effective();
        // OK to drop an error of the look-up: a home that is needed and is not known is an error of its own.
        let home = User::from_uid(uid).ok().flatten().map(|user| user.dir);
        let (variable, system) = (|name: &str| std::env::var_os(name), SYSTEM.into());
        Self { variable, uid: uid.as_raw(), home, system }
    }

    pub(crate) fn named(&self, flag: Option<&str>) -> Result<Named, Stop> {
        if let Some(url) = flag {
            return Ok(Named { url: url.trim().to_owned(), by: By::User, source: None });
        }
        let (url, file) = (self.text(URL)?, self.text(URL_FILE)?);
        if let Some(named) = named_by(URL, (url, file.map(PathBuf::from)), (URL, URL_FILE))? {
            return Ok(named);
        }
        for path in self.settings().into_iter().chain([self.system.clone()]) {
            if let Some(settings) = self.read(&path)? {
                let place = path.display().to_string();
                let named = named_by(&place, (settings.url, settings.url_file), ("url", "url_file"))?;
                return named.ok_or_else(|| Stop::usage(format!("{place} names no store: {WRITE}")));
            }
        }
        let file = self.state()?.join("locks.db");
        match file.to_str() {
            Some(path) if !path.contains('?') => {
                Ok(Named { url: format!("sqlite:{path}"), by: By::Default, source: None })
            }
            _ => Err(Stop::usage(
                "the state directory's name cannot be part of a URL; name a store with --url sqlite:PATH",
            )),
        }
    }

    /// A variable that is not empty.
    fn text(&self, name: &str) -> Result<Option<String>, Stop> {
        let value = (self.variable)(name).filter(|value| !value.is_empty());
        let text = value.map(OsString::into_string).transpose();
        text.map_err(|_| Stop::usage(format!("{name} is not UTF-8")))
    }

    /// A path that is absolute; others are as good as unset.
    fn absolute(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// The user's file of settings; none in the home of another account.
    fn settings(&self) -> Option<PathBuf> {
        // Of an account whose home is no folder, such as /dev/null.
        let is_folder = |home: &PathBuf| !fs::metadata(home).is_ok_and(|home| !home.is_dir());
        let own = || Some(self.home().filter(is_folder)?.join(".config"));
        let folder = self.absolute("XDG_CONFIG_HOME").or_else(own)?;
        self.owner_of_another(&folder).is_none().then(|| folder.join("tenure/config.toml"))
    }

    fn home(&self) -> Option<PathBuf> {
        self.absolute("HOME").or_else(|| self.home.clone().filter(|home| home.is_absolute()))
    }

    /// The owner of a folder, or of the nearest existing one above it, if that is another account. Every account may use a folder of
    /// root.
    fn owner_of_another(&self, folder: &Path) -> Option<u32> {
        let owner = folder.ancestors().find_map(|folder| fs::metadata(folder).ok())?.uid();
        (owner != self.uid && owner != 0).then_some(owner)
    }

    /// What a file of settings has; none if it is certainly not there. Any doubt is an error: the next source would name
    /// another store, whose locks exclude none of this one.
    fn read(&self, path: &Path) -> Result<Option<Settings>, Stop> {
        let place = path.display();
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if is_absent(path, &error) => return Ok(None),
            Err(error) => {
                return Err(Stop::usage(format!(
                    "{place} may name the store, and cannot be looked at: {error}; name a store with --url or {URL}"
                )));
            }
        };
        if !metadata.is_file() {
            return Err(Stop::usage(format!("{place} is not a file")));
        }
        if metadata.uid() != self.uid && metadata.uid() != 0 {
            let owner = metadata.uid();
            return Err(Stop::usage(format!(
                "{place} belongs to another account (uid {owner}); name a store with --url or {URL}"
            )));
        }
        // Otherwise any account could make our jobs use its own store.
        let folder = path.parent().and_then(|folder| fs::metadata(folder).ok());
        let is_open = |mode: u32| mode & 0o002 != 0 && mode & 0o1000 == 0;
        if is_open(metadata.mode()) || folder.is_some_and(|folder| is_open(folder.mode())) {
            return Err(Stop::usage(format!(
                "any account may write {place}, or its folder: take that right away (chmod o-w)"
            )));
        }
        let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        toml::from_str(&text).map(Some).map_err(|error| {
            // No word of it is repeated: it may hold a password.
            let at = error.span().map_or(0, |span| span.start);
            let line =
                text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1;
            Stop::usage(format!("{place} is wrong in line {line}: {WRITE}"))
        })
    }

    /// The folder of the default file: the state directory of the systemd unit, or that of the account.
    fn state(&self) -> Result<PathBuf, Stop> {
        // A unit may have several, with a colon between.
        let of_unit = self.text("STATE_DIRECTORY")?;
        let first = of_unit.as_deref().and_then(|folders| folders.split(':').next()).map(PathBuf::from);
        if let Some(folder) = first.filter(|folder| folder.is_absolute()) {
            return Ok(folder);
        }
        let state = match (self.absolute("XDG_STATE_HOME"), self.home()) {
            (Some(state), _) => Ok((state.clone(), "XDG_STATE_HOME", state)),
            (None, Some(home)) => Ok((home.clone(), "HOME", home.join(".local/state"))),
            (None, None) => Err(Stop::usage(format!(
                "no store is named, and this account has no home for a default one; {NAME_ONE}"
            ))),
        };
        let (root, variable, state) = state?;
        match self.owner_of_another(&root) {
            None => Ok(state.join("tenure")),
            Some(owner) => Err(Stop::usage(format!(
                "{variable} is {}, which belongs to another account (uid {owner}), so there is no default store; \
                 {NAME_ONE}, or use `sudo -H`",
                root.display()
            ))),
        }
    }
}

/// What one source has: a URL, or a file that has it. A relative path would be another file in each directory.
fn named_by(
    source: &str,
    (url, file): (Option<String>, Option<PathBuf>),
    (key, file_key): (&str, &str),
) -> Result<Option<Named>, Stop> {
    let (url, place, source) = match (url, file) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Stop::usage(format!("{key} and {file_key} are both set; keep one")));
        }
        (Some(url), None) => (url_in(source, &url)?, source.to_owned(), None),
        (None, Some(file)) => {
            if !file.is_absolute() {
                return Err(Stop::usage(format!(
                    "the path in {file_key} is relative; write an absolute one"
                )));
            }
            (read_url(&file)?, file.display().to_string(), Some(file))
        }
    };
    let path = url.strip_prefix("sqlite:");
    if path.is_some_and(|path| !path.is_empty() && !path.starts_with(['/', ':'])) {
        return Err(Stop::usage(format!(
            "the path of the store in {place} is relative, which is another file in each directory; write an absolute \
             one, as in sqlite:/var/lib/app/locks.db"
        )));
    }
    let by = if key == URL { By::User } else { By::Settings };
    Ok(Some(Named { url, by, source }))
}

/// The URL in a file: its one line.
fn read_url(file: &Path) -> Result<String, Stop> {
    let text = fs::read_to_string(file).map_err(|error| unreadable(file, &error))?;
    url_in(&file.display().to_string(), &text)
}

/// A URL without what an editor, another system or a shell may leave around it: with a blank or a CR at its end it would
/// name another file.
fn url_in(place: &str, text: &str) -> Result<String, Stop> {
    match text.trim() {
        "" => Err(Stop::usage(format!("{place} has no URL"))),
        url if url.contains(char::is_control) => Err(Stop::usage(format!("{place} has more than a URL"))),
        url => Ok(url.to_owned()),
    }
}

/// Nothing has this name: neither a link that leads nowhere nor a folder that is hidden may lead to it.
fn is_absent(path: &Path, error: &io::Error) -> bool {
    let nearest = path.ancestors().find(|path| fs::symlink_metadata(path).is_ok());
    error.kind() == io::ErrorKind::NotFound && nearest.is_none_or(|nearest| fs::metadata(nearest).is_ok())
}

fn unreadable(file: &Path, error: &io::Error) -> Stop {
    Stop::usage(format!("{} cannot be read: {error}", file.display()))
}

const URL: &str = "TENURE_URL";
const URL_FILE: &str = "TENURE_URL_FILE";
const SYSTEM: &str = "/etc/tenure/config.toml";
const WRITE: &str = "it may have url = \"URL\" or url_file = \"PATH\"";
pub(crate) const NAME_ONE: &str = "name a store with --url or TENURE_URL, or give the unit a StateDirectory=";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder for homes, and values for the variables, because a test cannot set its own environment.
    fn surroundings(variable: fn(&str) -> Option<OsString>) -> (tempfile::TempDir, Surroundings) {
        let folder = tempfile::tempdir().unwrap();
        let home = Some(folder.path().to_owned());
        let (uid, system) = (Uid::effective().as_raw(), folder.path().join("etc.toml"));
        (folder, Surroundings { variable, uid, home, system })
    }

    fn is(found: &Result<Named, Stop>, url: &str) -> bool {
        found.as_ref().is_ok_and(|named| named.url == url)
    }

    fn refused(found: Result<Named, Stop>) -> String {
        format!("{:?}", found.unwrap_err())
    }

    #[test]
    fn a_store_is_named_by_the_flag_then_by_files_then_by_the_account() {
        let (folder, around) = surroundings(|_| None);
        let default = format!("sqlite:{}/.local/state/tenure/locks.db", folder.path().display());
        let found = around.named(None).unwrap();
        assert_eq!(found, Named { url: default, by: By::Default, source: None });
        fs::write(&around.system, "url = \"sqlite:/of/the/host\"").unwrap();
        assert!(is(&around.named(None), "sqlite:/of/the/host"));
        let own = folder.path().join(".config/tenure");
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("url"), "sqlite:/of/the/file\n").unwrap();
        fs::write(own.join("config.toml"), format!("url_file = '{}/url'", own.display())).unwrap();
        assert!(is(&around.named(None), "sqlite:/of/the/file"));
        assert!(is(&around.named(Some("sqlite:here")), "sqlite:here"));
    }

    #[test]
    fn an_empty_variable_is_unset_and_a_unit_has_its_state_directory() {
        let (_folder, around) = surroundings(|name| match name {
            "TENURE_URL" | "TENURE_URL_FILE" => Some("".into()),
            "STATE_DIRECTORY" => Some("/var/lib/a:/var/lib/b".into()),
            _ => None,
        });
        assert!(is(&around.named(None), "sqlite:/var/lib/a/locks.db"));
    }

    #[test]
    fn a_relative_path_is_refused_where_no_directory_is_meant() {
        let (_folder, around) = surroundings(|name| (name == "TENURE_URL").then(|| "sqlite:locks.db".into()));
        assert!(refused(around.named(None)).contains("in TENURE_URL is relative"));
        let (_folder, around) = surroundings(|name| (name == "TENURE_URL_FILE").then(|| "secret".into()));
        assert!(refused(around.named(None)).contains("TENURE_URL_FILE is relative"));
        let (_folder, around) = surroundings(|_| None);
        fs::write(&around.system, "url = 'sqlite:x'").unwrap();
        assert!(refused(around.named(None)).contains("is relative"));
    }

    /// L1: each of them was taken for no settings at all, and two commands held one lock in two files.
    #[test]
    fn settings_that_may_be_there_are_not_passed_over() {
        let (folder, around) = surroundings(|_| None);
        let own = folder.path().join(".config/tenure");
        fs::create_dir_all(&own).unwrap();
        let file = own.join("config.toml");
        for text in ["", "# url = 'redis://h'\n", "url = ''", "url = ' '"] {
            fs::write(&file, text).unwrap();
            let why = refused(around.named(None));
            assert!(why.contains("names no store") || why.contains("has no URL"), "{text}: {why}");
        }
        fs::remove_file(&file).unwrap();
        assert!(around.named(None).unwrap().by == By::Default);
        for to in ["/nonexistent/config.toml", "config.toml"] {
            std::os::unix::fs::symlink(to, &file).unwrap();
            assert!(refused(around.named(None)).contains("cannot be looked at"));
            fs::remove_file(&file).unwrap();
        }
        fs::create_dir(&file).unwrap();
        assert!(refused(around.named(None)).contains("is not a file"));
        fs::remove_dir(&file).unwrap();
        fs::remove_dir(&own).unwrap();
        fs::write(&own, "url = 'redis://h'").unwrap();
        assert!(refused(around.named(None)).contains("cannot be looked at"));
        fs::remove_file(&own).unwrap();
        std::os::unix::fs::symlink("/nonexistent", &own).unwrap();
        assert!(refused(around.named(None)).contains("cannot be looked at"));
    }

    /// L1: any account could make the jobs of root use its own store.
    #[test]
    fn settings_that_any_account_may_write_are_refused() {
        let (folder, around) = surroundings(|_| None);
        let own = folder.path().join(".config/tenure");
        fs::create_dir_all(&own).unwrap();
        let file = own.join("config.toml");
        fs::write(&file, "url = 'sqlite:/a/b'").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for (of_file, of_folder, is_refused) in
            [(0o664, 0o775, false), (0o666, 0o755, true), (0o644, 0o777, true), (0o644, 0o1777, false)]
        {
            set(&file, of_file);
            set(&own, of_folder);
            let named = around.named(None);
            match is_refused {
                true => {
                    assert!(refused(named).contains("any account may write"), "{of_file:o} {of_folder:o}")
                }
                false => assert!(is(&named, "sqlite:/a/b"), "{of_file:o} {of_folder:o}"),
            }
        }
    }

    #[test]
    fn a_home_that_is_no_folder_has_no_settings() {
        let (_folder, around) = surroundings(|name| (name == "HOME").then(|| "/dev/null".into()));
        fs::write(&around.system, "url = 'sqlite:/of/the/host'").unwrap();
        assert!(is(&around.named(None), "sqlite:/of/the/host"));
    }

    /// L1: a CR or a blank that an editor or `docker --env-file` leaves behind a URL named another file.
    #[test]
    fn what_is_around_a_url_is_no_part_of_it() {
        let (_folder, around) = surroundings(|name| (name == "TENURE_URL").then(|| "sqlite:/a/b\r".into()));
        assert!(is(&around.named(None), "sqlite:/a/b"));
        assert!(is(&around.named(Some(" redis://h\n")), "redis://h"));
        let (_folder, around) = surroundings(|_| None);
        fs::write(&around.system, "url = 'sqlite:/a/b '").unwrap();
        assert!(is(&around.named(None), "sqlite:/a/b"));
        fs::write(&around.system, "url = \"redis://h\\nredis://i\"").unwrap();
        assert!(refused(around.named(None)).contains("more than a URL"));
    }

    /// A file of settings may hold a password.
    #[test]
    fn a_file_of_settings_that_is_wrong_is_refused_without_its_words() {
        let (_folder, around) = surroundings(|_| None);
        for text in ["\nurl = redis://:sesame@h", "\nsesame = 1", "\nurl = 5", "\nsesame"] {
            fs::write(&around.system, text).unwrap();
            let why = refused(around.named(None));
            assert!(why.contains("wrong in line 2") && !why.contains("sesame"), "{why}");
        }
        fs::write(&around.system, "url = 'a:b'\nurl_file = '/c'").unwrap();
        assert!(refused(around.named(None)).contains("url and url_file are both set"));
    }

    #[test]
    fn a_home_of_another_account_has_neither_settings_nor_a_store() {
        let (folder, mut around) = surroundings(|_| None);
        let own = folder.path().join(".config/tenure");
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("config.toml"), "url = 'sqlite:/of/another'").unwrap();
        // A folder of root is accepted, so a test that runs as root gives it away.
        if around.uid == 0 {
            std::os::unix::fs::chown(folder.path(), Some(12345), None).unwrap();
            std::os::unix::fs::chown(folder.path().join(".config"), Some(12345), None).unwrap();
            std::os::unix::fs::chown(own.join("config.toml"), Some(12345), None).unwrap();
        } else {
            around.uid += 1;
        }
        let why = refused(around.named(None));
        assert!(why.contains("belongs to another account") && why.contains("--url"), "{why}");
    }

    #[test]
    fn an_account_without_a_home_is_told_how_to_name_a_store() {
        let (_folder, mut around) = surroundings(|name| (name == "HOME").then(|| "not/absolute".into()));
        around.home = None;
        assert!(refused(around.named(None)).contains("has no home"));
    }
}
