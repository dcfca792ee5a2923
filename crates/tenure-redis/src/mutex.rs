//! `locked`: a mutex that nobody leaves in a bad state.

use std::sync::{Mutex, MutexGuard, PoisonError};

// OK because no code that can panic runs while one of these is locked.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
