//! How an answer reaches an event loop: through a socket that the loop reads, so that no thread of Rust needs the interpreter's lock.

use std::{
    io::{ErrorKind, Read, Write},
    mem,
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pyo3::prelude::*;

use crate::{errors::bug, own::Own};

/// What a request returned, to be made a Python value by a thread that has the interpreter's lock. Dropped before that, it releases
/// the lock in it.
pub(crate) type Answer = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// The answers that an event loop has not fetched.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Completions {
    mine: Own<(UnixStream, Arc<Arrived>)>,
}

struct Arrived {
    /// `None` once no loop fetches them.
    answers: Mutex<Option<Vec<(u64, Answer)>>>,
    bell: UnixStream,
}

impl Arrived {
    fn answers(&self) -> MutexGuard<'_, Option<Vec<(u64, Answer)>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, number: u64, answer: Answer) {
        let is_first = {
            let mut arrived = self.answers();
            let Some(answers) = &mut *arrived else { return };
            answers.push((number, answer));
            answers.len() == 1
        };
        if is_first {
            // OK to ignore: a socket that is full rings already, and one that is closed has no loop.
            let _ = (&self.bell).write(&[1]);
        }
    }
}

/// The promise of one answer: if the work panics or is aborted, the loop gets an error.
pub(crate) struct Expected {
    number: u64,
    arrived: Arc<Arrived>,
    is_complete: bool,
}

impl Expected {
    pub(crate) fn complete(&mut self, answer: Answer) {
        self.is_complete = true;
        self.arrived.push(self.number, answer);
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        if !self.is_complete {
            self.arrived.push(self.number, Box::new(|_| Err(bug("a request ended without an answer"))));
        }
    }
}

impl Completions {
    pub(crate) fn expect(&self, number: u64) -> PyResult<Expected> {
        Ok(Expected { number, arrived: self.mine.get()?.1.clone(), is_complete: false })
    }
}

/// Its loop has ended: what comes is released.
impl Drop for Completions {
    fn drop(&mut self) {
        if let Ok((_, arrived)) = self.mine.get() {
            let answers = arrived.answers().take();
            drop(answers);
        }
    }
}

/// One answer: its number, and its value or its exception.
type Fetched = (u64, Option<Py<PyAny>>, Option<PyErr>);

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Self> {
        let (ear, bell) = UnixStream::pair()?;
        ear.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        Ok(Self { mine: Own::new((ear, Arc::new(Arrived { answers: Mutex::new(Some(Vec::new())), bell }))) })
    }

    /// The descriptor that is readable while an answer waits.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.mine.get()?.0.as_raw_fd())
    }

    /// All answers that have come.
    fn fetch(&self, py: Python<'_>) -> PyResult<Vec<Fetched>> {
        let (ear, arrived) = self.mine.get()?;
        // Before the answers: a bell after this belongs to an answer that may be fetched here or not.
        let mut rings = [0; 64];
        loop {
            match (&*ear).read(&mut rings) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(64) => {}
                _ => break,
            }
        }
        let answers = arrived.answers().as_mut().map(mem::take).unwrap_or_default();
        let fetched = answers.into_iter().map(|(number, answer)| match answer(py) {
            Ok(value) => (number, Some(value), None),
            Err(error) => (number, None, Some(error)),
        });
        Ok(fetched.collect())
    }
}
