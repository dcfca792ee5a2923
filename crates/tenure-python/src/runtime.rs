//! The runtime of this process: one thread, which has the connections. No thread of Rust ever asks for the interpreter's lock: a
//! program that keeps it for long delays no request, and no renewal.

use std::{
    future::pending,
    io, mem, process,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tenure::backend::{BoxFuture, Host as _, TokioHost};
use tokio::runtime::Handle;

/// The longest that a release of what was dropped is waited for.
pub(crate) const FLUSH: Duration = Duration::from_secs(1);

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

/// Waits until all of them have left, for at most [`FLUSH`].
pub(crate) fn wait_for_leavers() {
    let began = TokioHost.now();
    let is_ours = || LEAVER.load(Ordering::SeqCst) == process::id();
    while is_ours() && LEAVING.load(Ordering::SeqCst) > 0 && began.elapsed(TokioHost.now()) < FLUSH {
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// The runtime of this process: a forked child makes another one.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn runtime() -> io::Result<Handle> {
    static RUNTIME: OnceLock<Mutex<Option<(u32, Handle)>>> = OnceLock::new();
    // No thread forks while it is locked: the caller has the interpreter's lock, which a fork needs too.
    let mut runtime = RUNTIME.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    match &*runtime {
        Some((pid, handle)) if *pid == process::id() => Ok(handle.clone()),
        _ => {
            let handle = start()?;
            // The parent's is not dropped here: it has threads that this process does not have.
            mem::forget(runtime.replace((process::id(), handle.clone())));
            Ok(handle)
        }
    }
}

fn start() -> io::Result<Handle> {
    let (tell, told) = mpsc::channel();
    let start = move || -> BoxFuture<'static, ()> {
        let _ = tell.send(Handle::current());
        Box::pin(pending())
    };
    TokioHost.spawn_apart("tenure", Box::new(start))?;
    told.recv().map_err(io::Error::other)
}
