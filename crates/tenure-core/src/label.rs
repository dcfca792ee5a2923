//! `Label`: host, pid, user and command of an owner, for people.

use std::fmt;

use crate::shown::shown;

/// Host, process, user and command of an owner, for people. It also has marks: whether to notify the owner of waiters, whether
/// it gives way to a newer one, and whether it asks the holder to stop. No rule of a lock depends on them.
///
/// It has only the base name of the command, because arguments may hold passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Label {
    /// Host name, at most 63 bytes.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// User name, at most 32 bytes.
    pub user: String,
    /// Base name of the program, at most 32 bytes.
    pub command: String,
    /// The owner may keep an idle lease, and releases it after a hint that a client waits. For the engine.
    #[doc(hidden)]
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "std::ops::Not::not"))]
    pub idles: bool,
    /// A command of `tenure` runs under the lease, so another process must not attach to it. For the command.
    #[doc(hidden)]
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "std::ops::Not::not"))]
    pub runs: bool,
    /// Of the waiters with this mark only the newest goes on waiting. For the engine.
    #[doc(hidden)]
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "std::ops::Not::not"))]
    pub latest: bool,
    /// A waiter that asks the holder to stop. For the engine.
    #[doc(hidden)]
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "std::ops::Not::not"))]
    pub replaces: bool,
}

impl Label {
    /// A label. Every part is cut to its maximum length; control characters become `?`.
    pub fn new(host: &str, pid: u32, user: &str, command: &str) -> Self {
        let command = command.rsplit('/').find(|part| !part.is_empty()).unwrap_or(command);
        Self {
            host: tame(host, 63),
            pid,
            user: tame(user, 32),
            command: tame(command, 32),
            idles: false,
            runs: false,
            latest: false,
            replaces: false,
        }
    }

    /// The same label for an owner that wants hints about waiters, or does not. For the engine and backends.
    #[must_use]
    #[doc(hidden)]
    pub fn idling(self, idles: bool) -> Self {
        Self { idles, ..self }
    }

    /// The same label for an owner under whose lease a command runs, or does not. For the command and backends.
    #[must_use]
    #[doc(hidden)]
    pub fn running(self, runs: bool) -> Self {
        Self { runs, ..self }
    }

    /// The same label for an owner that gives way to a newer one, and that asks the holder to stop, or does not. For the engine
    /// and backends.
    #[must_use]
    #[doc(hidden)]
    pub fn giving_way(self, latest: bool, replaces: bool) -> Self {
        Self { latest, replaces, ..self }
    }
}

/// `web-3 pid 4711 import.sh`: a label that was read from a store may hold any text.
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pid {} {}", shown(&self.host).within(64), self.pid, shown(&self.command).within(64))
    }
}

fn tame(text: &str, max_bytes: usize) -> String {
    let mut tamed = String::new();
    for c in text.chars().map(|c| if c.is_control() { '?' } else { c }) {
        if tamed.len() + c.len_utf8() > max_bytes {
            break;
        }
        tamed.push(c);
    }
    tamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_short_tame_and_without_a_path() {
        let label = Label::new(&"h".repeat(80), 7, "eve\x1b[2J", "/usr/local/bin/import.sh");
        assert_eq!(label.host.len(), 63);
        assert_eq!(label.user, "eve?[2J");
        assert_eq!(label.command, "import.sh");
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        assert_eq!(Label::new("", 0, &"é".repeat(20), "").user, "é".repeat(16));
    }
}
