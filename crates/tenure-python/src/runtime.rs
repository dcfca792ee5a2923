//! The runtime of this process: one thread, which has the connections. No thread of Rust ever asks for the interpreter's lock: a
//! program that keeps it for long delays no request, and no renewal.

use std::{
    io, process,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tenure::backend::{Host as _, TokioHost};
use tokio::runtime::{Builder, Handle};

/// How many values are on their way out.
static LEAVING: AtomicUsize = AtomicUsize::new(0);
/// The process that they belong to.
static LEAVER: AtomicU32 = AtomicU32::new(0);

/// Ends a value apart: what it does in the end may wait for a file, and a thread of the interpreter must not.
pub(crate) fn leave<F: Future<Output = ()> + Send + 'static>(last: F) {
    let Ok(runtime) = runtime() else { return };
    if LEAVER.swap(process::id(), Ordering::SeqCst) != process::id() {
        LEAVING.store(0, Ordering::SeqCst);
    }
    LEAVING.fetch_add(1, Ordering::SeqCst);
    runtime.spawn(async move {
        last.await;
        LEAVING.fetch_sub(1, Ordering::SeqCst);
    });
}

/// Waits until all of them have left, for at most this long.
pub(crate) fn wait_for_leavers(limit: Duration) {
    let began = TokioHost.now();
    let is_ours = || LEAVER.load(Ordering::SeqCst) == process::id();
    while is_ours() && LEAVING.load(Ordering::SeqCst) > 0 && began.elapsed(TokioHost.now()) < limit {
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// The runtime of this process: a forked child makes another one.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn runtime() -> io::Result<Handle> {
    static RUNTIME: OnceLock<Mutex<Option<(u32, Handle)>>> = OnceLock::new();
    // Nobody forks while it is locked: whoever comes here has the interpreter's lock, and so does a fork.
    let mut runtime =
        RUNTIME.get_or_init(Mutex::default).lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*runtime {
        Some((pid, handle)) if *pid == process::id() => Ok(handle.clone()),
        _ => {
            let handle = start()?;
            // The parent's is not dropped here: it has threads that this process does not have.
            std::mem::forget(runtime.replace((process::id(), handle.clone())));
            Ok(handle)
        }
    }
}

fn start() -> io::Result<Handle> {
    let (tell, told) = mpsc::channel();
    let run = move || match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let _ = tell.send(Ok(runtime.handle().clone()));
            runtime.block_on(std::future::pending::<()>());
        }
        Err(error) => drop(tell.send(Err(error))),
    };
    thread::Builder::new().name("tenure".into()).spawn(run)?;
    told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))
}
