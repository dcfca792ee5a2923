//! Transactions of programs, in the store that holds their locks: they rely on an owner, rest, and commit.

use std::{sync::Arc, time::Duration};

use tenure::ownership::Ownership;
use tenure_core::locked;

use crate::{
    history::{GrantId, LockId, What},
    world::World,
};

/// The server that has the locks and the data.
const SERVER: usize = 0;

/// A transaction. If its program is killed, the server ends it, immediately or when it has stood still for too long.
pub(crate) struct Transaction {
    world: Arc<World>,
    id: u64,
    /// How long it may stand still after a statement.
    bound: Duration,
    /// The server does not see that its client is gone.
    is_cut_off: bool,
}

impl Transaction {
    pub(crate) fn begin(world: &Arc<World>, bound: Duration, is_cut_off: bool) -> Self {
        let id = world.next_ask() as u64;
        locked(&world.transactions).insert(id);
        Self { world: world.clone(), id, bound, is_cut_off }
    }

    /// The check. The server limits from then on how long it may stand still.
    pub(crate) fn rely(&self, ownership: &Ownership, (grant, lock, token): (GrantId, LockId, u64)) -> bool {
        let sql = ownership.sql().expect("BUG: cells have rows");
        let owns = locked(&self.world.nodes[SERVER]).data.cells.rely(self.id, sql.row(), sql.proof());
        let (world, id) = (self.world.clone(), self.id);
        let bound = u64::try_from(self.bound.as_micros()).unwrap_or(u64::MAX / 2);
        world.clockwork.at(world.now() + bound, {
            let world = world.clone();
            move || world.end_transaction(id)
        });
        if !owns {
            world.note(What::NotOwner { grant, lock, token });
        }
        owns
    }

    /// What it wrote is there from now on, unless the server has ended it.
    pub(crate) fn commit(self, grant: GrantId, lock: LockId, token: u64) {
        if locked(&self.world.transactions).contains(&self.id) {
            self.world.note(What::Committed { grant, lock, token });
        }
        self.world.end_transaction(self.id);
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_cut_off {
            self.world.end_transaction(self.id);
        }
    }
}

impl World {
    fn end_transaction(&self, id: u64) {
        locked(&self.transactions).remove(&id);
        locked(&self.nodes[SERVER]).data.cells.end(id);
    }
}
