//! The library for Python: `tenure._native`, below the classes in `python/tenure`. What waits is a [`call::Call`]; what users see is
//! written in Python.

mod call;
mod errors;
mod journal;
mod leases;
mod locks;
mod loops;
mod own;
mod runtime;
mod settings;
mod views;

use pyo3::prelude::*;

/// What the classes in `python/tenure` are built on; not for users.
#[pymodule]
mod _native {
    use std::cell::RefCell;

    use pyo3::prelude::*;
    use tenure::command::{HeldBack, this_process};

    #[pymodule_export]
    use crate::{
        call::{Call, Started},
        journal::{next_events, start_journal, stop_journal},
        leases::{Guard, Lease},
        locks::{Election, Lock, Observer, Once, Store, Turn, Watch},
        loops::Completions,
    };

    /// Waits until what has gone out of scope is released, for at most a second.
    #[pyfunction]
    fn wait_for_leavers(py: Python<'_>) {
        py.detach(super::runtime::wait_for_leavers);
    }

    thread_local! {
        static FORKING: RefCell<Option<HeldBack>> = const { RefCell::new(None) };
    }

    /// This thread is about to fork: no other thread is in the middle of a file.
    #[pyfunction]
    fn before_fork(py: Python<'_>) {
        // Without the lock of the interpreter, for which a thread in the middle of a file may wait.
        py.detach(|| FORKING.set(Some(HeldBack::begin())));
    }

    /// It has forked.
    #[pyfunction]
    fn after_fork_in_parent() {
        FORKING.take();
    }

    /// It was forked.
    #[pyfunction]
    fn after_fork_in_child() {
        if let Some(held_back) = FORKING.take() {
            held_back.end_in_child();
        }
        super::journal::forget_events();
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Known before any fork: it asks the directory of users, which may take long.
        this_process();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
