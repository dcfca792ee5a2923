//! The errors of the library as exceptions of the module. Their classes are in `python/tenure/errors.py`.

use std::error::Error;

use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyModule},
};
use tenure::{
    AcquireError, BackendError, ConfigError, ErrorKind, HoldError, Loss, Lost, MemoError, OwnershipError,
    ReleaseError,
};

use crate::views::json;

/// An error of the library that becomes an exception.
pub(crate) trait Raise {
    fn raise(&self, py: Python<'_>) -> PyErr;
}

/// The exception of this class, with these attributes.
fn exception(py: Python<'_>, class: &str, message: &str, fields: &Bound<'_, PyDict>) -> PyErr {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let made = || -> PyResult<PyErr> {
        let errors = ERRORS.get_or_try_init(py, || py.import("tenure.errors").map(Bound::unbind))?;
        let error = errors.bind(py).getattr(class)?.call((message,), Some(fields))?;
        Ok(PyErr::from_value(error))
    };
    made().unwrap_or_else(|error| error)
}

fn plain(py: Python<'_>, class: &str, message: &str) -> PyErr {
    exception(py, class, message, &PyDict::new(py))
}

/// This handle belongs to the parent of this process.
pub(crate) fn forked() -> PyErr {
    let message = "this handle was made before a fork, and belongs to the parent process; call tenure.connect() in the child";
    Python::attach(|py| plain(py, "Forked", message))
}

/// A value that is not valid.
pub(crate) fn config(py: Python<'_>, message: &str) -> PyErr {
    plain(py, "ConfigError", message)
}

pub(crate) fn bug(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("BUG in tenure: {what}"))
}

/// The message with its causes.
fn whole(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl Raise for ConfigError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        plain(py, "ConfigError", &whole(self))
    }
}

/// The failure of a store, with this message.
fn store(py: Python<'_>, message: &str, error: &BackendError) -> PyErr {
    store_as(py, "StoreError", message, error)
}

fn store_as(py: Python<'_>, class: &str, message: &str, error: &BackendError) -> PyErr {
    if error.kind() == ErrorKind::Forked {
        return forked();
    }
    let kind = match error.kind() {
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::Throttled => "throttled",
        ErrorKind::Denied => "denied",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Corrupt => "corrupt",
        _ => "other",
    };
    let fields = PyDict::new(py);
    let set = fields
        .set_item("kind", kind)
        .and_then(|()| fields.set_item("is_transient", error.kind().is_transient()));
    set.map_or_else(|error| error, |()| exception(py, class, message, &fields))
}

impl Raise for BackendError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        store(py, &whole(self), self)
    }
}

impl Raise for Lost {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let cause = match self.cause() {
            Loss::Expired => "expired",
            Loss::Taken => "taken",
            Loss::MaxHold => "max_hold",
            Loss::Forked => return forked(),
            Loss::Released => "released",
            _ => "other",
        };
        let fields = PyDict::new(py);
        let set = || -> PyResult<()> {
            fields.set_item("cause", cause)?;
            fields.set_item("token", self.token().get())?;
            fields.set_item("at", self.at())
        };
        set().map_or_else(|error| error, |()| exception(py, "Lost", &whole(self), &fields))
    }
}

impl Raise for AcquireError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let fields = PyDict::new(py);
        let class = match self {
            Self::Config(error) => return error.raise(py),
            Self::Store(error) => return store(py, &whole(self), error),
            Self::TimedOut { waited, ahead, holder } => {
                let set = || -> PyResult<()> {
                    fields.set_item("waited", waited.as_secs_f64())?;
                    fields.set_item("ahead", *ahead)?;
                    fields.set_item("holder", holder.as_deref().map(json).transpose()?)
                };
                if let Err(error) = set() {
                    return error;
                }
                "Busy"
            }
            Self::GaveWay { by } => {
                if let Err(error) = json(&**by).and_then(|by| fields.set_item("by", by)) {
                    return error;
                }
                "GaveWay"
            }
            Self::Gone => "NotHeld",
            _ => "TenureError",
        };
        exception(py, class, &whole(self), &fields)
    }
}

impl Raise for HoldError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Acquire(error) => error.raise(py),
            Self::Lost(lost) => lost.raise(py),
            Self::NotCounted(MemoError::Store(error)) => store_as(py, "NotCounted", &whole(self), error),
            Self::NotCounted(error) => error.raise(py),
            _ => plain(py, "TenureError", &whole(self)),
        }
    }
}

impl Raise for MemoError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Config(error) => error.raise(py),
            Self::Lost(lost) => lost.raise(py),
            Self::Store(error) => store(py, &whole(self), error),
            _ => plain(py, "TenureError", &whole(self)),
        }
    }
}

impl Raise for OwnershipError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Lost(lost) => lost.raise(py),
            Self::Store(error) => store(py, &whole(self), error),
            _ => plain(py, "TenureError", &whole(self)),
        }
    }
}

impl Raise for ReleaseError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::AlreadyLost(lost) => lost.raise(py),
            Self::Unknown(error) => store(py, &whole(self), error),
            _ => plain(py, "TenureError", &whole(self)),
        }
    }
}
