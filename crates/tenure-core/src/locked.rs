//! `locked`: a mutex that nobody leaves in a bad state.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also if somebody panicked while they had it.
///
/// Only for what no code that can panic changes halfway.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
