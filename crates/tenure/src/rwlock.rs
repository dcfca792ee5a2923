//! `RwLock`: many readers or one writer.

use tenure_core::Mode;

use crate::lock::Lock;

/// A read-write lock: many readers or one writer. A reader that comes after a waiting writer waits behind it, so that writers
/// are not starved. For the same reason a reader that asks for a second read lock may wait for itself: pass its
/// [`Lease`](crate::Lease) on instead.
///
/// Made by [`Locker::rwlock`](crate::Locker::rwlock).
#[derive(Clone)]
pub struct RwLock(Lock);

impl RwLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self(lock)
    }

    /// The lock as a reader takes it: together with other readers.
    pub fn read(&self) -> Lock {
        self.0.with_mode(Mode::READ)
    }

    /// The lock as a writer takes it: alone. The same lock as [`Locker::mutex`](crate::Locker::mutex) of that name.
    pub fn write(&self) -> Lock {
        self.0.with_mode(Mode::Exclusive)
    }
}
