//! What can be seen of a lock: holders, queue, time left.

use std::time::Duration;

use crate::{label::Label, mode::Mode, name::LockName, shown::shown, token::FencingToken};

/// The state of one lock, as the server saw it when asked.
#[derive(Clone, Debug, PartialEq)]
pub struct LockView {
    /// Which lock.
    pub name: LockName,
    /// Who holds it.
    pub holders: Vec<HolderView>,
    /// Who waits, in order.
    pub queue: Vec<WaiterView>,
    /// No smaller than any token granted.
    pub fence: FencingToken,
}

/// One holder. A foreign client has neither token nor label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// The owner as stored.
    pub owner: String,
    /// Alone or together.
    pub mode: Mode,
    /// `None` until it has entered, and for foreign holders.
    pub token: Option<FencingToken>,
    /// Who that is.
    pub label: Option<Label>,
    /// Since when, in time since the Unix epoch, for people; `None` for foreign holders.
    pub since: Option<Duration>,
    /// Time left on the server; `None` for a foreign holder whose lock never ends by itself.
    pub expires_in: Option<Duration>,
}

impl HolderView {
    /// Who that is, for people: the label, or the owner of a foreign client. One line, whatever is stored.
    pub fn who(&self) -> String {
        who(self.label.as_ref(), &self.owner)
    }
}

impl WaiterView {
    /// As [`HolderView::who`].
    pub fn who(&self) -> String {
        who(self.label.as_ref(), &self.owner)
    }
}

fn who(label: Option<&Label>, owner: &str) -> String {
    label.map_or_else(|| shown(owner).within(128).to_string(), Label::to_string)
}

/// One waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// The owner as stored.
    pub owner: String,
    /// Alone or together.
    pub mode: Mode,
    /// Who that is.
    pub label: Option<Label>,
    /// How long it has waited.
    pub waiting: Duration,
}

/// How grave a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Note,
    /// A promise is weaker than it could be.
    Warning,
    /// A promise is broken.
    Problem,
}

/// Something about the server or our assumptions that a person should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How grave.
    pub severity: Severity,
    /// What was seen.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

/// What became of the wish to rewrite a store's record of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// How long to wait before asking again; zero once the record is what this client's settings say.
    pub wait: Duration,
    /// What was done, or what is waited for.
    pub what: String,
}
