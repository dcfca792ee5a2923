//! `Observer`: who leads, for those who only want to know.

use std::{fmt, future::pending, time::Duration};

use tenure_core::{BackendError, FencingToken, HolderView, Label, LockView};

use crate::{
    engine::{News, request::forked},
    lock::Lock,
    pace::Pace,
};

/// Follows an election.
///
/// It has a connection of its own on stores that bring hints.
///
/// # Dropping
/// Ends it, and the connection. Nothing is left in the store: an observer has no place there.
pub struct Observer {
    lock: Lock,
    /// From the first pause on.
    news: Option<News>,
    pace: Pace,
    /// What was answered last, if anything was.
    told: Option<Option<Leader>>,
}

impl Observer {
    pub(super) fn new(lock: Lock, pause: Duration) -> Self {
        Self { lock, news: None, pace: Pace::new(pause), told: None }
    }

    /// Who leads now: at once the first time, and then as soon as another one leads, nobody does, or the leader has
    /// proclaimed something else.
    ///
    /// # Timing
    /// Leaders tell their observers when they begin, [proclaim](crate::Term::proclaim) and [resign](crate::Leadership::resign),
    /// on stores that mint a token on [entry](crate::Minting::Entry): then a change is seen a few requests later, on SQLite up
    /// to 100 ms later. Nobody tells that a lead was lost or dropped, and a hint may be lost, as those are that come before this
    /// has begun to listen; so it looks once [a second](crate::Election::every) too. Changes are seen in their order; a leader
    /// who has come and gone between two looks is not seen.
    ///
    /// # Errors
    /// The store's. The next call looks again, a second after this one.
    ///
    /// # Cancel safety
    /// Nothing is lost: what has changed meanwhile is the next answer.
    pub async fn next(&mut self) -> Result<Option<Leader>, BackendError> {
        let host = self.lock.host();
        loop {
            let hint = async {
                if self.news.is_none() {
                    self.news = self.lock.news().await;
                }
                match &mut self.news {
                    Some(news) => news.next().await,
                    None => pending().await,
                }
            };
            let asking = self.pace.ask(&*host, hint, self.lock.inspect());
            let now = Leader::of(self.lock.engine().unless_forked(|| Err(forked()), asking).await?);
            if self.told.as_ref() != Some(&now) {
                self.told = Some(now.clone());
                return Ok(now);
            }
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("election", &self.lock.named()).finish_non_exhaustive()
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The owner of its lease: new for every term.
    pub owner: String,
    /// Its term: its fencing token.
    pub term: FencingToken,
    /// Host, process and command, for people.
    pub label: Option<Label>,
    /// What it has proclaimed in this term.
    pub proclaimed: Option<String>,
    /// True if it leads through this [`Locker`](crate::Locker) or a clone of it.
    pub is_this_process: bool,
}

impl Leader {
    /// A memo of an earlier leader is none of this one's.
    pub(super) fn of(view: LockView) -> Option<Self> {
        let LockView { holders, memo, .. } = view;
        let HolderView { owner, token, label, is_this_process, .. } =
            holders.into_iter().find(|holder| holder.token.is_some())?;
        let proclaimed = memo.filter(|memo| memo.owner == owner).map(|memo| memo.text);
        Some(Self { term: token?, owner, label, proclaimed, is_this_process })
    }
}
