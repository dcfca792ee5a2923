//! One request to the library, to be waited for by a thread or by an event loop.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use pyo3::{BoundObject as _, exceptions::PyRuntimeError, prelude::*};
use tenure::backend::{Host as _, TokioHost};
use tokio::task::AbortHandle;

use crate::{
    errors::{Raise, bug, forked},
    loops::{Answer, Completions},
    own::Own,
    runtime::runtime,
};

type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// How long the main thread waits before it looks for a signal, such as Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// A request that has not been sent. Dropped, it never is.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Call {
    work: Own<Mutex<Option<Work>>>,
}

impl Call {
    /// What the work returns is made a Python value by `make`.
    pub(crate) fn new<T, E, V>(
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        make: impl FnOnce(Python<'_>, T) -> PyResult<V> + Send + 'static,
    ) -> Self
    where
        T: Send + 'static,
        E: Raise + Send + 'static,
        V: for<'py> IntoPyObject<'py>,
    {
        let work = async move {
            let answer: Answer = match work.await {
                Ok(value) => Box::new(move |py| {
                    let value = make(py, value)?.into_pyobject(py).map_err(Into::into)?;
                    Ok(value.into_any().into_bound().unbind())
                }),
                Err(error) => Box::new(move |py| Err(error.raise(py))),
            };
            answer
        };
        Self { work: Own::new(Mutex::new(Some(Box::pin(work)))) }
    }

    fn take(&self) -> PyResult<Work> {
        let mut work = self.work.get()?.lock().map_err(|_| bug("a call panicked"))?;
        work.take().ok_or_else(|| PyRuntimeError::new_err("this call was made before"))
    }
}

#[pymethods]
impl Call {
    /// Waits for the answer. `is_main`: in the main thread, which looks for signals; a call that one ends is withdrawn.
    fn block(&self, py: Python<'_>, is_main: bool) -> PyResult<Py<PyAny>> {
        let (runtime, mut work) = (runtime()?, self.take()?);
        loop {
            let answer = py.detach(|| {
                let _runtime = runtime.enter();
                wait(&mut work, is_main.then_some(LOOK))
            });
            if let Some(answer) = answer {
                return answer(py);
            }
            if let Err(interrupted) = py.check_signals() {
                // What withdraws it may need the runtime.
                let _runtime = runtime.enter();
                drop(work);
                return Err(interrupted);
            }
            if !self.work.is_ours() {
                // A handler of a signal has forked: this is the child.
                mem::forget(work);
                return Err(forked());
            }
        }
    }

    /// Begins the request; its answer comes to `completions` under this number.
    fn start(&self, completions: &Completions, number: u64) -> PyResult<Started> {
        let (runtime, work) = (runtime()?, self.take()?);
        let mut expected = completions.expect(number)?;
        let task = runtime.spawn(async move { expected.complete(work.await) });
        Ok(Started { task: Own::new(task.abort_handle()) })
    }
}

/// Waits in this thread for at most this long. No timer of the runtime: it would wake its thread for each wait.
fn wait(work: &mut Work, limit: Option<Duration>) -> Option<Answer> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let began = TokioHost.now();
    loop {
        if let Poll::Ready(answer) = work.as_mut().poll(&mut context) {
            return Some(answer);
        }
        match limit.map(|limit| limit.saturating_sub(began.elapsed(TokioHost.now()))) {
            Some(Duration::ZERO) => return None,
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// A request under way.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Started {
    task: Own<AbortHandle>,
}

#[pymethods]
impl Started {
    /// Its caller does not wait any more: a claim is withdrawn, any other request goes on or not.
    fn abort(&self) {
        if let Ok(task) = self.task.get() {
            task.abort();
        }
    }
}

/// No loop waits for it any more.
impl Drop for Started {
    fn drop(&mut self) {
        self.abort();
    }
}
