//! `Doubt`: a write whose answer nobody has seen yet.

use tenure_core::{Audience, LockName, OwnerId};

use crate::{ears::Ears, memory::Memory};

/// Whom a write lets in, or robs.
pub(crate) struct News {
    pub(crate) wakes: Vec<(Audience, OwnerId)>,
    /// Who is woken although it was not let in: it stands behind those who were.
    pub(crate) behind: Option<OwnerId>,
}

/// A write that was sent. Unless it is settled, the next verb of that lock makes sure what became of it; and those whom it may
/// concern in this process are told to run one, since nobody else tells them.
pub(crate) struct Doubt<'a> {
    memory: &'a Memory,
    ears: &'a Ears,
    name: &'a LockName,
    /// On top of which version.
    version: i64,
    news: News,
    is_settled: bool,
}

impl News {
    pub(crate) fn ring(&self, ears: &Ears) {
        for (audience, owner) in &self.wakes {
            ears.ring(*audience, *owner, self.behind == Some(*owner));
        }
    }
}

impl<'a> Doubt<'a> {
    pub(crate) fn new(
        memory: &'a Memory,
        ears: &'a Ears,
        (name, version): (&'a LockName, i64),
        news: News,
    ) -> Self {
        Self { memory, ears, name, version, news, is_settled: false }
    }

    pub(crate) fn news(&self) -> &News {
        &self.news
    }

    /// The server has said what became of it.
    pub(crate) fn settle(mut self) -> News {
        self.is_settled = true;
        News { wakes: std::mem::take(&mut self.news.wakes), behind: self.news.behind }
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        self.memory.doubt(self.name, self.version);
        self.news.ring(self.ears);
    }
}
