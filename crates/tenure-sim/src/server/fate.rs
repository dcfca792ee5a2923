//! What happens to a server: it restarts, takes over, is demoted, is emptied, or goes back to what it was.

use super::{Data, Kind, Life, Node, Role};
use crate::clockwork::Micros;

/// A whole machine as it was once: its data, and what its program knew of itself.
#[derive(Clone)]
pub(crate) struct Snapshot {
    data: Data,
    life: Life,
    replid: u64,
    is_promoted: bool,
    promoted_at: Option<Micros>,
}

impl Node {
    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// A new run of the program, with this data.
    pub(crate) fn restart(&mut self, now: Micros, down: Micros, data: Option<Data>, loads_history: bool) {
        self.life.run = self.fresh_id();
        self.life.started_wall = self.life.clock.wall(now + down);
        self.life.is_lossy = false;
        self.down_until = now + down;
        self.epoch += 1;
        if let Some(data) = data {
            self.data = data;
        }
        if let Role::Master { unheard_since: Some(_), has_replica } = &mut self.role {
            *has_replica = false;
        }
        if self.kind != Kind::Store {
            self.replid = self.fresh_id();
            self.is_promoted = loads_history;
            self.promoted_at = loads_history.then_some(now);
        }
    }

    /// The standby takes over with what it has.
    pub(crate) fn promote(&mut self, now: Micros, down: Micros) {
        let Some(standby) = self.standby.take() else { return };
        self.standby = Some(std::mem::replace(&mut self.life, standby));
        self.data = self.copy.take().unwrap_or_else(|| self.data.clone());
        self.replid = self.fresh_id();
        self.is_promoted = true;
        self.promoted_at = Some(now);
        self.down_until = now + down;
        self.epoch += 1;
    }

    /// The replica and its master receive nothing from each other any more. The connection is not closed.
    pub(crate) fn lose_replica(&mut self, now: Micros) {
        if let Role::Master { unheard_since, .. } = &mut self.role {
            unheard_since.get_or_insert(now);
        }
    }

    /// This replica takes over with what had reached it. Its master goes on until it is demoted, and has one replica less.
    pub(crate) fn take_over(&mut self, now: Micros, old: &mut Self) {
        self.data = old.copy.take().unwrap_or_else(|| old.data.clone());
        self.replid = self.fresh_id();
        self.is_promoted = true;
        self.promoted_at = Some(now);
        self.role = Role::Master { unheard_since: None, has_replica: false };
        if let Role::Master { unheard_since, has_replica } = &mut old.role {
            unheard_since.get_or_insert(now);
            *has_replica = false;
        }
    }

    /// It becomes the replica of this master, and the connections of its clients end.
    pub(crate) fn follow(&mut self, master: &mut Self) {
        self.role = Role::Replica;
        self.data = Data::default();
        self.epoch += 1;
        master.role = Role::Master { unheard_since: None, has_replica: true };
    }

    /// It forgets its former history, as a server without replicas does. False if it is too early for that.
    pub(crate) fn end_backlog(&mut self, now: Micros) -> bool {
        let ttl = u64::try_from(self.backlog_ttl.as_micros()).unwrap_or(u64::MAX);
        let is_early =
            self.promoted_at.is_some_and(|at| self.life.clock.run(now) < self.life.clock.run(at) + ttl);
        let is_copied = matches!(self.role, Role::Replica | Role::Master { has_replica: true, .. });
        if ttl == 0 || is_early || is_copied || self.kind == Kind::Store {
            return false;
        }
        self.replid = self.fresh_id();
        self.is_promoted = false;
        true
    }

    pub(crate) fn flush(&mut self) {
        self.data = Data::default();
        self.life.is_lossy = true;
    }

    /// No client reaches it any more.
    pub(crate) fn leave(&mut self) {
        self.is_away = true;
        self.epoch += 1;
    }

    /// Takes a snapshot of the machine as it is now.
    pub(crate) fn keep(&mut self) {
        let Self { data, life, replid, is_promoted, promoted_at, .. } = self;
        let (replid, is_promoted, promoted_at) = (*replid, *is_promoted, *promoted_at);
        self.snapshot =
            Some(Snapshot { data: data.clone(), life: life.clone(), replid, is_promoted, promoted_at });
    }

    /// The machine goes on from its snapshot: the same run, the same history, older data. Its clock is right.
    pub(crate) fn rewind(&mut self, now: Micros, down: Micros) {
        let Some(kept) = self.snapshot.clone() else { return };
        let Snapshot { data, life, replid, is_promoted, promoted_at } = kept;
        (self.data, self.life, self.replid) = (data, life, replid);
        (self.is_promoted, self.promoted_at) = (is_promoted, promoted_at);
        self.down_until = now + down;
        self.epoch += 1;
    }
}
