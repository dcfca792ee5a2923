//! `Gate`: what a server was found fit with, and what each request that may grant is sent with.

use std::{sync::Arc, time::Duration};

use crate::guard::RecordedTerms;

/// What a server was found fit with: its run, its history of data, and the terms. The record has a field of this name as
/// long as the gate is open; in `tenure:one` the field counts tokens. A script that does not find it grants nothing: the
/// server restarted, failed over or was judged again since.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GateName {
    /// Empty where there is no record.
    run: String,
    history: String,
    text: String,
}

impl GateName {
    /// 16 digits of each id are 64 random bits: enough that no two are ever equal by chance.
    pub(crate) fn of(run_id: &str, replid: &str, terms: &RecordedTerms) -> Self {
        let [run, history] = [run_id, replid].map(|id| id.chars().take(16).collect::<String>());
        Self { text: format!("{run}.{history}.{terms}"), run, history }
    }

    /// Of a server without a record.
    pub(crate) fn bare(text: &str) -> Self {
        Self { run: String::new(), history: String::new(), text: text.to_owned() }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Without a record it is of every history.
    pub(crate) fn is_of_history(&self, replid: &str) -> bool {
        replid.starts_with(&self.history)
    }

    /// The same run and history, under whatever terms: those may change, and the counter goes on.
    pub(crate) fn is_same_run(&self, other: &Self) -> bool {
        (&self.run, &self.history) == (&other.run, &other.history)
    }
}

/// What a request to a server is sent with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    /// None, if it is closed: the server is not fit.
    pub(crate) name: Option<Arc<GateName>>,
    /// The longest lease that the server grants to this client through this gate.
    pub(crate) max_ttl: Duration,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Self { name: None, max_ttl: Duration::ZERO }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.name.is_none()
    }

    /// As scripts look it up. No field of a record is named `closed`.
    pub(crate) fn as_str(&self) -> &str {
        self.name.as_ref().map_or("closed", |name| name.as_str())
    }
}
