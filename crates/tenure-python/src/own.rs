//! What belongs to one process.

use std::{mem, process};

use pyo3::PyResult;

use crate::errors::forked;

/// A value that a forked child neither uses nor drops: a thread of the parent may have locked a mutex in it, and the child does
/// not have that thread.
pub(crate) struct Own<T> {
    pid: u32,
    value: Option<T>,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { pid: process::id(), value: Some(value) }
    }

    /// # Errors
    /// `Forked` in a child of the process that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if !self.is_ours() {
            return Err(forked());
        }
        Ok(self.value.as_ref().expect("BUG: used after its end"))
    }

    /// The value itself, at the end; `None` in a forked child.
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.is_ours() { self.value.take() } else { None }
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.pid == process::id()
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            mem::forget(self.value.take());
        }
    }
}
