//! `KeyedMutex`: the verbs of one handle on one lock, one after the other.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{Host, LockName, locked};
use tokio::sync::OwnedMutexGuard;

type KeyLock = Arc<tokio::sync::Mutex<()>>;

/// The verbs of one handle on one lock, one after the other, so that they do not race each other for its
/// version.
#[derive(Default)]
pub(crate) struct KeyedMutex(Mutex<HashMap<LockName, KeyLock>>);

/// The right to be the only verb of this handle on a lock.
pub(crate) struct KeyedGuard<'a> {
    mutex: &'a KeyedMutex,
    name: LockName,
    key: KeyLock,
    held: Option<OwnedMutexGuard<()>>,
}

impl KeyedMutex {
    /// How long one verb waits for another one on its lock. It affects only speed: a verb that hangs must not stop
    /// verbs that could use another connection, and an owner whose turn has come has no more than the claim ttl.
    const PATIENCE: Duration = Duration::from_millis(100);

    /// Waits until no other verb of this handle works on the lock, or until the patience has passed.
    pub(crate) async fn lock(&self, name: &LockName, host: &dyn Host) -> KeyedGuard<'_> {
        let key = locked(&self.0).entry(name.clone()).or_default().clone();
        let mut guard = KeyedGuard { mutex: self, name: name.clone(), key, held: None };
        if let Ok(held) = guard.key.clone().try_lock_owned() {
            guard.held = Some(held);
            return guard;
        }
        let over = host.sleep_until(host.now() + Self::PATIENCE);
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
        // Two: the one here, and that in the map. A verb that needs it takes a third under this mutex.
        if let Entry::Occupied(key) = keys.entry(self.name.clone())
            && Arc::strong_count(key.get()) <= 2
        {
            key.remove();
        }
    }
}
