//! One request to the library, to be waited for by a thread or by an event loop.

use std::{future::Future, pin::Pin, sync::Mutex, time::Duration};

use pyo3::{BoundObject as _, exceptions::PyRuntimeError, prelude::*};
use tenure::backend::{Host as _, TokioHost};
use tokio::{select, task::AbortHandle};

use crate::{
    errors::{Raise, bug},
    loops::{Answer, Completions},
    own::Own,
    runtime::{Return, runtime},
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
        let runtime = runtime()?;
        let mut work = self.take()?;
        loop {
            let wait = async {
                if !is_main {
                    return Some((&mut work).await);
                }
                let look = TokioHost.sleep_until(TokioHost.now() + LOOK);
                select! {
                    biased;
                    answer = &mut work => Some(answer),
                    () = look => None,
                }
            };
            let (answer, returned) = py.detach(|| {
                let answer = runtime.block_on(wait);
                (answer, Return::begin(is_main))
            });
            drop(returned);
            match answer {
                Some(answer) => return answer(py),
                None => py.check_signals().inspect_err(|_| {
                    // What withdraws it may need the runtime.
                    let _runtime = runtime.enter();
                    work = Box::pin(std::future::pending());
                })?,
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

/// A request under way.
#[pyclass(module = "tenure._native", frozen)]
pub(crate) struct Started {
    task: Own<AbortHandle>,
}

#[pymethods]
impl Started {
    /// Its caller does not wait any more: a claim is withdrawn, any other request goes on or not.
    fn abort(&self) -> PyResult<()> {
        self.task.get()?.abort();
        Ok(())
    }
}
