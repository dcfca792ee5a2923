//! `Turns`: the verbs of one handle on one lock, one after the other, so that they do not race each other for its version.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{Host, LockName};
use tokio::sync::OwnedMutexGuard;

use crate::memory::locked;

/// How long one waits for another. It is about speed only: one that hangs must not stop those who could take another connection, and one
/// whose turn to hold has come has no more than the claim ttl.
const PATIENCE: Duration = Duration::from_millis(100);

type Gate = Arc<tokio::sync::Mutex<()>>;

/// Who works on which lock.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<LockName, Gate>>);

/// The right to be the only verb of this handle on a lock.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    name: LockName,
    gate: Gate,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits until nobody else of this handle works on the lock, or for long enough.
    pub(crate) async fn take(&self, name: &LockName, host: &dyn Host) -> Turn<'_> {
        let gate = locked(&self.0).entry(name.clone()).or_default().clone();
        let mut turn = Turn { turns: self, name: name.clone(), gate, held: None };
        if let Ok(held) = turn.gate.clone().try_lock_owned() {
            turn.held = Some(held);
            return turn;
        }
        let over = host.sleep_until(host.now() + PATIENCE);
        turn.held = tokio::select! {
            biased;
            held = turn.gate.clone().lock_owned() => Some(held),
            () = over => None,
        };
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut gates = locked(&self.turns.0);
        // Two: the one here, and that in the map. Whoever wants it takes a third under this lock.
        if let Entry::Occupied(gate) = gates.entry(self.name.clone())
            && Arc::strong_count(gate.get()) <= 2
        {
            gate.remove();
        }
    }
}
