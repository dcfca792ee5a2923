//! `Secret` and `Login`: credentials that only the server receives.

use std::{
    borrow::Cow,
    fmt, fs, io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread,
    time::Duration,
};

use tenure_core::{BackendError, ErrorKind, Outcome};

use crate::refusal::{UrlError, bad};

/// A password: the word itself, or where it is to be had each time that a connection is made. It is never shown: neither by
/// `Debug` nor by `Display`.
#[derive(Clone)]
pub struct Secret(Source);

/// Returns a password, at each connect.
type Asked = Arc<dyn Fn() -> io::Result<String> + Send + Sync>;

#[derive(Clone)]
enum Source {
    Word(String),
    File(PathBuf, Reading),
    Line(Asked, Reading),
    Asked(Asked),
}

/// A read of a file, on its own thread: the file may hang (a pipe, a dead NFS server), which must not stop the renewals of other
/// connections.
#[derive(Clone, Default)]
struct Reading(Arc<Mutex<Option<Receiver<io::Result<String>>>>>);

impl Reading {
    /// The result, or `None` if the read has not finished; then the next call returns it.
    fn answer(
        &self,
        read: impl FnOnce() -> io::Result<String> + Send + 'static,
    ) -> io::Result<Option<String>> {
        // OK because no code that can panic runs under it.
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = if let Some(begun) = pending.take() {
            begun
        } else {
            let (tell, answer) = sync_channel(1);
            thread::Builder::new().name("tenure-secret".to_owned()).spawn(move || tell.send(read()))?;
            answer
        };
        match answer.recv_timeout(SOON) {
            Ok(read) => read.map(Some),
            Err(RecvTimeoutError::Timeout) => {
                *pending = Some(answer);
                Ok(None)
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("it could not be read")),
        }
    }
}

/// How long the caller waits: less than the interval between two renewals of the shortest lease.
const SOON: Duration = Duration::from_millis(20);

impl Secret {
    /// In a file, which is read at each connect; the end of its line does not count.
    pub fn in_file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into(), Reading::default()))
    }

    /// Part of a file, which `read` reads at each connect, on a separate thread.
    pub fn in_line(read: impl Fn() -> io::Result<String> + Send + Sync + 'static) -> Self {
        Self(Source::Line(Arc::new(read), Reading::default()))
    }

    /// What a program answers at each connect.
    pub fn asked(ask: impl Fn() -> io::Result<String> + Send + Sync + 'static) -> Self {
        Self(Source::Asked(Arc::new(ask)))
    }

    /// The word as it is now, for the server.
    ///
    /// # Errors
    /// `Denied`, if it cannot be had; `Unavailable`, if its file has not been read yet.
    pub fn now(&self) -> Result<Cow<'_, str>, BackendError> {
        let refused = |kind, message: &'static str| BackendError::new(kind, Outcome::NotApplied, message);
        let read = |answer: io::Result<Option<String>>, or: &'static str| match answer {
            Ok(Some(word)) => Ok(Cow::Owned(word)),
            Ok(None) => {
                let message = "the file of the password has not been read yet: it hangs, or is slow";
                Err(refused(ErrorKind::Unavailable, message))
            }
            Err(error) => Err(refused(ErrorKind::Denied, or).caused_by(error)),
        };
        match &self.0 {
            Source::Word(word) => Ok(Cow::Borrowed(word)),
            Source::File(path, reading) => {
                let file = path.clone();
                let answer = reading.answer(move || {
                    let text = fs::read_to_string(file)?;
                    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
                });
                let word = read(answer, "the file of the password cannot be read");
                word.map_err(|error| error.with("password_file", path.display()))
            }
            Source::Line(line, reading) => {
                let line = line.clone();
                read(reading.answer(move || line()), "the password in the file of the URL cannot be read")
            }
            Source::Asked(ask) => ask().map(Cow::Owned).map_err(|error| {
                let message = "the program has no password for the store";
                BackendError::new(ErrorKind::Denied, Outcome::NotApplied, message).caused_by(error)
            }),
        }
    }

    /// The word, if it is one that does not change.
    pub fn word(&self) -> Option<&str> {
        if let Source::Word(word) = &self.0 { Some(word) } else { None }
    }

    /// The file, if it is in one.
    pub fn file(&self) -> Option<&std::path::Path> {
        if let Source::File(path, _) = &self.0 { Some(path) } else { None }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Source::Word(one), Source::Word(other)) => one == other,
            (Source::File(one, _), Source::File(other, _)) => one == other,
            (Source::Asked(one), Source::Asked(other)) | (Source::Line(one, _), Source::Line(other, _)) => {
                Arc::ptr_eq(one, other)
            }
            _ => false,
        }
    }
}

impl Eq for Secret {}

impl<S: Into<String>> From<S> for Secret {
    fn from(word: S) -> Self {
        Self(Source::Word(word.into()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// User and password, as far as they are given.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// Never empty.
    pub user: Option<String>,
    /// May be empty, if there is a colon.
    pub password: Option<Secret>,
}

/// Shows only whether they are given, because some users put a token in place of the user.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |is_said: bool| if is_said { "***" } else { "none" };
        let (user, password) = (has(self.user.is_some()), has(self.password.is_some()));
        write!(f, "Login {{ user: {user}, password: {password} }}")
    }
}

impl Login {
    /// Both, for a store that needs both or neither.
    ///
    /// # Errors
    /// If one is missing.
    pub fn whole(&self) -> Result<(&str, &Secret), UrlError> {
        match (&self.user, &self.password) {
            (Some(user), Some(password)) => Ok((user, password)),
            (Some(_), None) => Err(bad("a user needs a password, as in user:password@host")),
            (None, _) => Err(bad("a password needs a user, as in user:password@host")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file is read each time, so that a rotated password is the one that the next connection has.
    #[test]
    fn a_secret_of_a_file_is_read_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let secret = Secret::in_file(&file);
        assert!(secret.now().unwrap_err().to_string().contains("cannot be read"));
        for word in ["old", " new"] {
            fs::write(&file, format!("{word}\n")).unwrap();
            assert_eq!(secret.now().unwrap(), word);
        }
        assert!(!format!("{secret:?} {secret}").contains("new"));
        assert_eq!(secret.word(), None, "what changes is not taken for a word");
        let asked = Secret::asked(|| Ok("asked".into()));
        assert!(asked.now().unwrap() == "asked" && asked == asked.clone() && asked != secret);
        let nothing = Secret::asked(|| Err(io::Error::other("vault is sealed")));
        assert_eq!(nothing.now().unwrap_err().kind(), ErrorKind::Denied);
    }

    /// L7: a file that is a pipe without a writer stopped all renewals of the process, and no signal ended it.
    #[test]
    fn a_file_that_hangs_is_waited_for_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let secret = Secret::in_file(&file);
        for _ in 0..2 {
            let error = secret.now().unwrap_err();
            assert!(
                error.kind() == ErrorKind::Unavailable && error.to_string().contains("has not been read yet")
            );
        }
        fs::write(&file, "sesame\n").unwrap();
        // The thread of the first call reads it.
        let word = std::iter::repeat_with(|| secret.now().map(Cow::into_owned)).find_map(Result::ok);
        assert_eq!(word.as_deref(), Some("sesame"));
    }

    /// No secret is ever printed.
    #[test]
    fn a_secret_shows_itself_to_the_server_alone() {
        let login = Login { user: Some("app".into()), password: Some(Secret::from("sesame")) };
        let secret = login.password.clone().unwrap();
        assert!(!format!("{login:?} {login:#?} {secret} {secret:?}").contains("sesame"));
        let (user, password) = login.whole().unwrap();
        assert_eq!((user, password.word()), ("app", Some("sesame")));
        let half = Login { user: Some("app".into()), password: None };
        assert!(half.whole().unwrap_err().to_string().contains("needs a password"));
        assert!(Login::default().whole().unwrap_err().to_string().contains("needs a user"));
    }
}
