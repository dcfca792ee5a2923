//! `KeyedMutex`: the verbs of one handle on one lock, one after the other, so that they do not race each other for its version.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{Host, LockName, locked};
use tokio::sync::OwnedMutexGuard;

/// How long one waits for another. It is about speed only: one that hangs must not stop those who could take another connection, and one
/// whose turn to hold has come has no more than the claim ttl.
const PATIENCE: Duration = Duration::from_millis(100);

type Key = Arc<tokio::sync::Mutex<()>>;

/// Who works on which lock.
#[derive(Default)]
pub(crate) struct KeyedMutex(Mutex<HashMap<LockName, Key>>);

/// The right to be the only verb of this handle on a lock.
pub(crate) struct KeyedGuard<'a> {
    mutex: &'a KeyedMutex,
    name: LockName,
    key: Key,
    held: Option<OwnedMutexGuard<()>>,
}

impl KeyedMutex {
    /// Waits until nobody else of this handle works on the lock, or for long enough.
    pub(crate) async fn lock(&self, name: &LockName, host: &dyn Host) -> KeyedGuard<'_> {
        let key = locked(&self.0).entry(name.clone()).or_default().clone();
        let mut guard = KeyedGuard { mutex: self, name: name.clone(), key, held: None };
        if let Ok(held) = guard.key.clone().try_lock_owned() {
            guard.held = Some(held);
            return guard;
        }
        let over = host.sleep_until(host.now() + PATIENCE);
        guard.held = tokio::select! {
            biased;
            held = guard.key.clone().lock_owned() => Some(held),
            () = over => None,
        };
        guard
    }
}

impl Drop for KeyedGuard<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut keys = locked(&self.mutex.0);
        // Two: the one here, and that in the map. Whoever wants it takes a third under this lock.
        if let Entry::Occupied(key) = keys.entry(self.name.clone())
            && Arc::strong_count(key.get()) <= 2
        {
            key.remove();
        }
    }
}
