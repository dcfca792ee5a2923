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
    use tenure::command::HeldBack;

    #[pymodule_export]
    use crate::{
        call::{Call, Started},
        journal::{next_events, start_journal, stop_journal},
        leases::{Guard, Lease},
        locks::{Election, Lock, Observer, Once, Store, Turn, Watch},
        loops::Completions,
    };

    /// The interpreter ends: a thread that waits in a call does not return to it.
    #[pyfunction]
    fn interpreter_ends(py: Python<'_>) {
        py.detach(super::runtime::let_no_one_return);
    }

    thread_local! {
        static FORKING: RefCell<Option<HeldBack>> = const { RefCell::new(None) };
    }

    /// This thread is about to fork: no other thread is in the middle of a file.
    #[pyfunction]
    fn before_fork() {
        FORKING.set(Some(HeldBack::begin()));
    }

    /// It has forked; in the parent and in the child.
    #[pyfunction]
    fn after_fork() {
        FORKING.take();
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
