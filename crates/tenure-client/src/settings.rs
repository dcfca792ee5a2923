//! `Setting`: all that a store knows about one of its settings, in one row. How a URL is read, checked and written follows from the
//! rows, and so does the table in the store's README.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    durations::{self, Span},
    refusal::{UrlError, bad},
    secret::{Login, Secret},
};

/// A setting after the `?` of a URL. `C` has the values of all settings of its store.
pub struct Setting<C: 'static> {
    pub(crate) key: &'static str,
    /// Other names of it.
    pub(crate) aliases: &'static [&'static str],
    /// Its value is a URL, which may have an `@`.
    pub(crate) is_url: bool,
    value: Value<C>,
    /// In Markdown, for people.
    default: &'static str,
    text: &'static str,
}

/// Where the value is, and its form.
enum Value<C: 'static> {
    Duration(Span, fn(&mut C) -> &mut Duration),
    Text(fn(&mut C) -> &mut String),
    PerhapsText(fn(&mut C) -> &mut Option<String>),
    File { at: fn(&mut C) -> &mut Option<PathBuf>, empty_is_none: bool },
    PasswordFile(fn(&mut C) -> &mut Login),
    Own { read: Read<C>, write: Write<C> },
    Word { read: Read<C>, word: fn(&C) -> Option<&'static str> },
}

/// Reads a value from its text in a URL.
type Read<C> = fn(&mut C, &str) -> Result<(), UrlError>;

/// Writes a value for a URL; `None` if there is none.
type Write<C> = fn(&C) -> Result<Option<String>, UrlError>;

impl<C: 'static> Setting<C> {
    /// A duration, within its bounds.
    pub const fn duration(span: Span, at: fn(&mut C) -> &mut Duration) -> Self {
        Self::of(span.key, Value::Duration(span, at))
    }

    /// A text.
    pub const fn text(key: &'static str, at: fn(&mut C) -> &mut String) -> Self {
        Self::of(key, Value::Text(at))
    }

    /// A text; an empty one is none.
    pub const fn perhaps(key: &'static str, at: fn(&mut C) -> &mut Option<String>) -> Self {
        Self::of(key, Value::PerhapsText(at))
    }

    /// The path of a file. An empty one is refused: a variable without a value must not turn a check off.
    pub const fn file(key: &'static str, at: fn(&mut C) -> &mut Option<PathBuf>) -> Self {
        Self::of(key, Value::File { at, empty_is_none: false })
    }

    /// The path of a file; an empty one is none, as the store's own programs mean it.
    pub const fn perhaps_file(key: &'static str, at: fn(&mut C) -> &mut Option<PathBuf>) -> Self {
        Self::of(key, Value::File { at, empty_is_none: true })
    }

    /// The absolute path of a file that has the password of this login.
    pub const fn password_file(key: &'static str, at: fn(&mut C) -> &mut Login) -> Self {
        Self::of(key, Value::PasswordFile(at))
    }

    /// A word of a few.
    pub const fn word(key: &'static str, read: Read<C>, word: fn(&C) -> Option<&'static str>) -> Self {
        Self::of(key, Value::Word { read, word })
    }

    /// A value with a form of its own.
    pub const fn own(key: &'static str, read: Read<C>, write: Write<C>) -> Self {
        Self::of(key, Value::Own { read, write })
    }

    /// Part of the address, which a URL that is written has before the `?`.
    pub const fn of_address(key: &'static str, read: Read<C>) -> Self {
        Self::own(key, read, |_| Ok(None))
    }

    const fn of(key: &'static str, value: Value<C>) -> Self {
        Self { key, aliases: &[], is_url: false, value, default: "", text: "" }
    }

    /// Other names of it, which clients of other languages use.
    #[must_use]
    pub const fn or(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// Its value is a URL.
    #[must_use]
    pub const fn is_url(mut self) -> Self {
        self.is_url = true;
        self
    }

    /// What applies without it, where the table cannot know that.
    #[must_use]
    pub const fn by_default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    /// What it is for.
    #[must_use]
    pub const fn means(mut self, text: &'static str) -> Self {
        self.text = text;
        self
    }

    fn read(&self, config: &mut C, text: &str) -> Result<(), UrlError> {
        let some = || Some(text.to_owned()).filter(|text| !text.is_empty());
        match &self.value {
            Value::Duration(span, at) => *at(config) = span.read(text)?,
            Value::Text(at) => text.clone_into(at(config)),
            Value::PerhapsText(at) => *at(config) = some(),
            Value::File { empty_is_none: false, .. } if text.is_empty() => {
                return Err(bad(format!("{}= is the path of a file", self.key)));
            }
            Value::File { at, .. } => *at(config) = some().map(PathBuf::from),
            Value::PasswordFile(at) => {
                let login = at(config);
                if login.password.is_some() {
                    return Err(bad(format!("the URL has a password and {}=; keep one", self.key)));
                }
                login.password = Some(Secret::in_file(absolute(self.key, text)?));
            }
            Value::Own { read, .. } | Value::Word { read, .. } => read(config, text)?,
        }
        Ok(())
    }

    /// The value in a URL; the config is not changed.
    fn written(&self, config: &mut C) -> Result<Option<String>, UrlError> {
        Ok(match &self.value {
            Value::Duration(_, at) => Some(durations::written(*at(config))),
            Value::Text(at) => Some(at(config).clone()),
            Value::PerhapsText(at) => at(config).clone(),
            Value::File { at, .. } => at(config).as_deref().map(path_text).transpose()?.map(str::to_owned),
            Value::PasswordFile(at) => match at(config).password.as_ref().map(|it| (it.word(), it.file())) {
                None | Some((Some(_), _)) => None,
                Some((None, Some(file))) => Some(path_text(file)?.to_owned()),
                Some((None, None)) => {
                    return Err(bad("a password that the program is asked for is in no URL"));
                }
            },
            Value::Own { write, .. } => write(config)?,
            Value::Word { word, .. } => word(config).map(str::to_owned),
        })
    }

    fn check(&self, config: &mut C) -> Result<(), UrlError> {
        if let Value::Duration(span, at) = &self.value { span.check(*at(config)) } else { Ok(()) }
    }

    /// A line of the table.
    fn line(&self, plain: &mut C) -> Result<String, UrlError> {
        let Self { key, aliases, default, text, value, .. } = self;
        let mut line = format!("| `{key}` | ");
        match value {
            _ if !default.is_empty() => line.push_str(default),
            Value::Duration(_, at) => line.push_str(&durations::for_people(*at(plain))),
            Value::PasswordFile(_) => {}
            _ => line
                .extend(self.written(plain)?.filter(|text| !text.is_empty()).map(|word| format!("`{word}`"))),
        }
        let _ = write!(line, " | {text}");
        if let Value::Duration(Span { least, most, .. }, _) = value {
            let _ = write!(line, "; {} to {}", durations::for_people(*least), durations::for_people(*most));
        }
        if !aliases.is_empty() {
            let names: Vec<String> = aliases.iter().map(|name| format!("`{name}`")).collect();
            let _ = write!(line, "; {} is the same", names.join(" or "));
        }
        Ok(format!("{line} |\n").replace("|  |", "| |"))
    }
}

/// The settings that a URL gives.
pub struct Given<C: 'static>(pub(crate) Vec<(&'static Setting<C>, String)>);

impl<C> Given<C> {
    /// True if this one is given.
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(setting, _)| setting.key == key)
    }

    /// Reads all of them, in the order of their rows.
    ///
    /// # Errors
    /// If one is not valid.
    pub fn fill(self, config: &mut C) -> Result<(), UrlError> {
        self.0.into_iter().try_for_each(|(setting, text)| setting.read(config, &text))
    }
}

/// # Errors
/// If a setting is outside its bounds.
pub(crate) fn check<C: Clone>(rows: &[Setting<C>], config: &C) -> Result<(), UrlError> {
    let mut config = config.clone();
    rows.iter().try_for_each(|setting| setting.check(&mut config))
}

/// Those that differ from the defaults, as a URL has them.
///
/// # Errors
/// If a URL cannot express one.
pub(crate) fn written<C: Clone>(
    rows: &'static [Setting<C>],
    config: &C,
    plain: &C,
) -> Result<Vec<(&'static str, String)>, UrlError> {
    let (mut config, mut plain) = (config.clone(), plain.clone());
    let written = |setting: &'static Setting<C>| {
        let text = setting.written(&mut config)?;
        let is_default = text == setting.written(&mut plain)?;
        Ok(text.filter(|_| !is_default).map(|text| (setting.key, text)))
    };
    rows.iter().map(written).filter_map(Result::transpose).collect()
}

/// The table of a README.
///
/// # Errors
/// If a default cannot be written.
pub(crate) fn table<C: Clone>(rows: &[Setting<C>], plain: &C) -> Result<String, UrlError> {
    let mut plain = plain.clone();
    let lines = rows.iter().map(|setting| setting.line(&mut plain)).collect::<Result<String, _>>()?;
    Ok(format!("| parameter | default | |\n|---|---|---|\n{lines}"))
}

/// The path of a file that is read later: by then the program may be in another directory.
fn absolute<'p>(key: &str, path: &'p str) -> Result<&'p Path, UrlError> {
    let path = Path::new(path);
    if path.is_absolute() { Ok(path) } else { Err(bad(format!("{key}= is the absolute path of a file"))) }
}

/// Writes a value that was read to its place.
///
/// # Errors
/// If it was not valid.
pub fn put<T>(place: &mut impl From<T>, read: Result<T, UrlError>) -> Result<(), UrlError> {
    *place = read?.into();
    Ok(())
}

/// A path as text for a URL.
///
/// # Errors
/// If it is not UTF-8.
pub fn path_text(path: &Path) -> Result<&str, UrlError> {
    path.to_str().ok_or_else(|| bad("the path of a file is not UTF-8"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Config {
        wait: Duration,
        name: String,
        perhaps: Option<String>,
        file: Option<PathBuf>,
        login: Login,
        is_on: bool,
    }

    const ON: Words<bool> = Words("guard", &[("on", true), ("off", false)]);

    type Row = Setting<Config>;

    const ROWS: &[Row] = &[
        Row::duration(durations::RETRY_MAX, |c| &mut c.wait).means("a pause"),
        Row::text("name", |c| &mut c.name).means("a name"),
        Row::perhaps("perhaps", |c| &mut c.perhaps).means("a text").or(&["maybe", "may"]),
        Row::perhaps_file("file", |c| &mut c.file).by_default("the system's").means("a file"),
        Row::password_file("password_file", |c| &mut c.login).means("the password"),
        Row::word(ON.0, |c, text| put(&mut c.is_on, ON.read(text)), |c| ON.word(c.is_on))
            .means("`on` or `off`"),
    ];

    fn plain() -> Config {
        Config {
            wait: Duration::from_secs(2),
            name: "it".into(),
            perhaps: None,
            file: None,
            login: Login::default(),
            is_on: true,
        }
    }

    fn read(pairs: &[(usize, &str)]) -> Result<Config, String> {
        let given = pairs.iter().map(|(row, text)| (&ROWS[*row], (*text).to_owned())).collect();
        let mut config = plain();
        Given(given).fill(&mut config).map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn what_is_written_is_read_again_and_defaults_are_omitted() {
        let all = [(0, "20ms"), (1, "b"), (2, "c"), (3, "/d"), (4, "/e"), (5, "off")];
        let config = read(&all).unwrap();
        let written = written(ROWS, &config, &plain()).unwrap();
        let again: Vec<(usize, &str)> =
            written.iter().enumerate().map(|(row, (_, text))| (row, text.as_str())).collect();
        assert_eq!(
            written.iter().map(|(key, _)| *key).collect::<Vec<_>>(),
            ROWS.iter().map(|row| row.key).collect::<Vec<_>>()
        );
        assert_eq!(read(&again).unwrap(), config);
        assert_eq!(super::written(ROWS, &plain(), &plain()), Ok(Vec::new()));
        assert_eq!(read(&[(2, ""), (3, "")]).unwrap(), plain(), "an empty one is none");
        let asked = Config {
            login: Login { user: None, password: Some(Secret::asked(|| Ok("x".into()))) },
            ..plain()
        };
        assert!(super::written(ROWS, &asked, &plain()).unwrap_err().to_string().contains("is in no URL"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(read(&[(5, "x")]).unwrap_err(), "guard= is on or off");
        assert_eq!(read(&[(4, "e")]).unwrap_err(), "password_file= is the absolute path of a file");
        assert_eq!(
            read(&[(4, "/e"), (4, "/f")]).unwrap_err(),
            "the URL has a password and password_file=; keep one"
        );
        let late = Config { wait: Duration::from_secs(3), ..plain() };
        assert_eq!(check(ROWS, &late).unwrap_err().to_string(), "retry_max= lies outside 10ms to 2s");
        assert_eq!(check(ROWS, &plain()), Ok(()));
    }

    /// A variable without a value in a URL was taken for no CA, and every certificate of the system's CAs was accepted.
    #[test]
    fn an_empty_file_is_refused_unless_the_store_means_none() {
        let row = |perhaps: bool| {
            if perhaps { Row::perhaps_file("ca", |c| &mut c.file) } else { Row::file("ca", |c| &mut c.file) }
        };
        let mut config = plain();
        assert_eq!(row(false).read(&mut config, "").unwrap_err().to_string(), "ca= is the path of a file");
        assert_eq!((row(true).read(&mut config, ""), config), (Ok(()), plain()));
    }

    #[test]
    fn the_table_has_names_defaults_and_bounds() {
        let expected = "\
            | parameter | default | |\n|---|---|---|\n\
            | `retry_max` | 2 s | a pause; 10 ms to 2 s |\n\
            | `name` | `it` | a name |\n\
            | `perhaps` | | a text; `maybe` or `may` is the same |\n\
            | `file` | the system's | a file |\n\
            | `password_file` | | the password |\n\
            | `guard` | `on` | `on` or `off` |\n";
        assert_eq!(table(ROWS, &plain()).unwrap(), expected);
    }

    #[test]
    fn a_word_has_one_meaning() {
        let words = Words("guard", &[("on", 1), ("off", 2), ("late", 3)]);
        assert_eq!((words.read("off"), words.word(3), words.word(4)), (Ok(2), Some("late"), None));
        assert_eq!(words.read("x").unwrap_err().to_string(), "guard= is on, off or late");
    }
}
