//! The visible state of a lock: holders, queue, time left.

use std::time::Duration;

use crate::{
    label::Label, mode::Mode, name::LockName, priority::Priority, shown::shown, token::FencingToken,
};

/// The state of one lock when the server answered.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockView {
    /// The name of the lock.
    pub name: LockName,
    /// The holders.
    pub holders: Vec<HolderView>,
    /// The waiters, in the order of the queue.
    pub queue: Vec<WaiterView>,
    /// At least as large as every token granted.
    pub fence: FencingToken,
    /// The memo that a holder stored with the lock, if it has not expired. A query for one lock always returns it;
    /// some stores omit it in lists of locks (etcd, ZooKeeper).
    pub memo: Option<MemoView>,
    /// The last lease has expired, and the lock may be kept by a transaction that [relies](crate::Ownership) on its owner: the
    /// sessions that may have it, for people. Only PostgreSQL, MySQL and MariaDB return it, and only to a query for one lock. Where
    /// the server names no session to this user, it is `None`.
    pub kept_by: Option<String>,
}

impl LockView {
    /// For a backend: the state of this lock, without a memo. Set the memo afterwards.
    pub fn new(
        name: LockName,
        holders: Vec<HolderView>,
        queue: Vec<WaiterView>,
        fence: FencingToken,
    ) -> Self {
        Self { name, holders, queue, fence, memo: None, kept_by: None }
    }
}

/// A memo stored with a lock. Its author may no longer hold the lock: compare the owner with those of the holders.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoView {
    /// The text, which may be anything.
    pub text: String,
    /// The owner that wrote it.
    pub owner: String,
    /// The token under which it was written.
    pub token: FencingToken,
    /// How long ago it was stored, by the store's clock. In JSON `age_ms`.
    #[cfg_attr(feature = "serde", serde(rename = "age_ms", serialize_with = "json::millis"))]
    pub age: Duration,
    /// How long it will be kept. In JSON `left_ms`.
    #[cfg_attr(feature = "serde", serde(rename = "left_ms", serialize_with = "json::millis"))]
    pub left: Duration,
}

impl MemoView {
    /// For a backend: a stored memo.
    pub fn new(
        text: impl Into<String>,
        (owner, token): (impl Into<String>, FencingToken),
        age: Duration,
        left: Duration,
    ) -> Self {
        Self { text: text.into(), owner: owner.into(), token, age, left }
    }
}

/// One holder. A client other than Tenure has neither token nor label.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HolderView {
    /// The owner, as the store has it.
    pub owner: String,
    /// Exclusive or shared.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::text"))]
    pub mode: Mode,
    /// Its fencing token, or the last one of its block. `None` while a hand-off waits for the owner's claim, and
    /// for a client other than Tenure.
    pub token: Option<FencingToken>,
    /// Host, process and command of the owner.
    pub label: Option<Label>,
    /// When it was granted, since the Unix epoch, for people. `None` for a client other than Tenure. In JSON RFC
    /// 3339, in UTC.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::rfc3339"))]
    pub since: Option<Duration>,
    /// The time left on the server. `None` if the lease does not expire. In JSON `expires_in_ms`.
    #[cfg_attr(feature = "serde", serde(rename = "expires_in_ms", serialize_with = "json::millis_if_any"))]
    pub expires_in: Option<Duration>,
    /// True if it was acquired in this process, through the `Locker` that answers or a clone of it. Only the crate
    /// `tenure` can set this, not a store: it is `false` in the answer of a backend.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub is_this_process: bool,
}

impl HolderView {
    /// For a backend: a holder with owner and mode only. Set the other fields afterwards.
    pub fn new(owner: impl Into<String>, mode: Mode) -> Self {
        let owner = owner.into();
        Self { owner, mode, token: None, label: None, since: None, expires_in: None, is_this_process: false }
    }

    /// For a backend: a client that is not Tenure, of which no more is known than that it is there. What it has written is not
    /// shown: it may be a secret.
    pub fn foreign(expires_in: Option<Duration>) -> Self {
        Self { expires_in, ..Self::new(FOREIGN, Mode::Exclusive) }
    }

    /// True if it is a client that is not Tenure.
    pub fn is_foreign(&self) -> bool {
        self.since.is_none() && self.label.is_none() && self.token.is_none()
    }

    /// The holder in one line, for people: its label, or its owner if it has none.
    pub fn who(&self) -> String {
        let who = who(self.label.as_ref(), &self.owner);
        if self.is_this_process { format!("this process ({who})") } else { who }
    }
}

impl WaiterView {
    /// For a backend: a waiter.
    pub fn new(owner: impl Into<String>, mode: Mode, label: Option<Label>, waiting: Duration) -> Self {
        Self { owner: owner.into(), mode, priority: Priority::Normal, label, waiting }
    }

    /// For a backend: the same in another class.
    #[must_use]
    pub fn with_priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// The waiter in one line, as [`HolderView::who`].
    pub fn who(&self) -> String {
        who(self.label.as_ref(), &self.owner)
    }
}

/// The owner of a holder of which nothing is known.
const FOREIGN: &str = "a client that is not Tenure";

fn who(label: Option<&Label>, owner: &str) -> String {
    label.map_or_else(|| shown(owner).within(128).to_string(), Label::to_string)
}

/// One waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WaiterView {
    /// The owner, as the store has it.
    pub owner: String,
    /// Exclusive or shared.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::text"))]
    pub mode: Mode,
    /// Its class: a client of a higher one is granted the lock first. In JSON `low`, `normal`, `high` or `urgent`.
    pub priority: Priority,
    /// Host, process and command of the owner.
    pub label: Option<Label>,
    /// How long it has waited. In JSON `waiting_ms`.
    #[cfg_attr(feature = "serde", serde(rename = "waiting_ms", serialize_with = "json::millis"))]
    pub waiting: Duration,
}

/// The severity of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Severity {
    /// For information.
    Note,
    /// A promise is weaker than it could be.
    Warning,
    /// A promise is broken.
    Problem,
}

/// A fact about a store that weakens its promises, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The fact.
    pub what: String,
    /// The remedy.
    pub remedy: String,
}

impl Finding {
    /// For a backend: a finding.
    pub fn new(severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity, what: what.into(), remedy: remedy.into() }
    }
}

/// The settings that a request to adopt those of this client may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adopt {
    /// All but a larger `max_ttl`.
    #[default]
    Settings,
    /// A larger `max_ttl` as well. The operator knows that no client with the smaller one runs or will be started:
    /// it would wait too short after a loss of data.
    LargerMaxTtl,
}

/// The answer to a request to replace the settings recorded in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adoption {
    /// How long to wait before the next call; zero once the recorded settings are those of this client.
    pub wait: Duration,
    /// The change that was made, or the reason for the wait.
    pub what: String,
}

impl Adoption {
    /// For a backend: the change that was made, and how long to wait; zero if nothing is left to do.
    pub fn new(wait: Duration, what: impl Into<String>) -> Self {
        Self { wait, what: what.into() }
    }
}

/// How `serde` writes a view: the format of `tenure ls --json`, which is a contract.
#[cfg(feature = "serde")]
mod json {
    use std::{
        fmt::Display,
        time::{Duration, SystemTime},
    };

    use serde::{Serialize, Serializer};

    pub(super) fn text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn millis<S: Serializer>(d: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        d.as_millis().serialize(serializer)
    }

    pub(super) fn millis_if_any<S: Serializer>(
        d: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        d.map(|d| d.as_millis()).serialize(serializer)
    }

    /// To the millisecond. A store may return any number: a time after the year 9999 becomes the end of that year.
    pub(super) fn rfc3339<S: Serializer>(since: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        let last = Duration::from_millis(253_402_300_799_999);
        let text = since.map(|since| {
            let then = SystemTime::UNIX_EPOCH + since.min(last);
            humantime::format_rfc3339_millis(then).to_string()
        });
        text.serialize(serializer)
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    /// The format is a contract: `tenure ls --json` prints it.
    #[test]
    fn a_view_is_written_as_the_command_prints_it() {
        let mut holder = HolderView::new("abc", Mode::permit(NonZeroU32::new(3).unwrap()));
        holder.token = Some(FencingToken::new(7));
        holder.label = Some(Label::new("web-3", 4711, "eve", "/bin/import.sh"));
        holder.since = Some(Duration::from_micros(1_700_000_000_123_999));
        holder.expires_in = Some(Duration::from_micros(6_230_999));
        holder.is_this_process = true;
        let foreign = HolderView::new("x", Mode::Exclusive);
        let waiter = WaiterView::new("def", Mode::READ, None, Duration::from_millis(12));
        let name = LockName::new("job").unwrap();
        let view = LockView::new(name, vec![holder, foreign], vec![waiter], FencingToken::new(9));
        let expected = concat!(
            r#"{"name":"job","holders":[{"owner":"abc","mode":"shared:3","token":7,"#,
            r#""label":{"host":"web-3","pid":4711,"user":"eve","command":"import.sh"},"#,
            r#""since":"2023-11-14T22:13:20.123Z","expires_in_ms":6230},"#,
            r#"{"owner":"x","mode":"exclusive","token":null,"label":null,"since":null,"expires_in_ms":null}],"#,
            r#""queue":[{"owner":"def","mode":"shared","priority":"normal","label":null,"waiting_ms":12}],"fence":9,"memo":null,"#,
            r#""kept_by":null}"#
        );
        assert_eq!(serde_json::to_string(&view).unwrap(), expected);
    }

    #[test]
    fn a_memo_says_whose_it_is_and_how_old() {
        let (age, left) = (Duration::from_micros(1_500_999), Duration::from_secs(9));
        let memo = MemoView::new("10.0.0.7:80", ("abc", FencingToken::new(7)), age, left);
        let expected = r#"{"text":"10.0.0.7:80","owner":"abc","token":7,"age_ms":1500,"left_ms":9000}"#;
        assert_eq!(serde_json::to_string(&memo).unwrap(), expected);
    }

    /// A store may hold any number: printing it must not panic.
    #[test]
    fn a_time_that_no_calendar_has_is_written_all_the_same() {
        let mut holder = HolderView::new("abc", Mode::Exclusive);
        holder.since = Some(Duration::MAX);
        assert!(serde_json::to_string(&holder).unwrap().contains("9999-12-31T23:59:59.999Z"));
    }

    #[test]
    fn a_finding_is_three_words() {
        let finding = Finding::new(Severity::Warning, "seen", "do");
        let expected = r#"{"severity":"warning","what":"seen","remedy":"do"}"#;
        assert_eq!(serde_json::to_string(&finding).unwrap(), expected);
    }
}
