//! The runtime of this process: one thread, which has the connections. No thread of Rust ever asks for the interpreter's lock: a
//! program that keeps it for long delays no request, and no renewal.

use std::{
    io, process,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tokio::runtime::{Builder, Handle};

/// The interpreter has begun to end. A thread that takes its lock from now on would be ended in the middle of a call.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// How many threads are on their way back to the interpreter.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

/// A thread on its way from a wait back to the interpreter; made before it asks for the lock, and dropped when it has it.
pub(crate) struct Return(());

impl Return {
    /// Stays here until the process ends, if the interpreter has begun to: all but the thread that ends it.
    pub(crate) fn begin(is_main: bool) -> Self {
        RETURNING.fetch_add(1, Ordering::SeqCst);
        if IS_ENDING.load(Ordering::SeqCst) && !is_main {
            RETURNING.fetch_sub(1, Ordering::SeqCst);
            loop {
                thread::park();
            }
        }
        Self(())
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        RETURNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// From now on no thread returns to the interpreter. Waits for those that are on their way: without its lock.
pub(crate) fn let_no_one_return() {
    IS_ENDING.store(true, Ordering::SeqCst);
    // In a forked child the count may have threads that only the parent has.
    for _ in 0..LONGEST_RETURN_MS {
        if RETURNING.load(Ordering::SeqCst) == 0 {
            return;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// How long a thread may take to get the interpreter's lock, in ms.
const LONGEST_RETURN_MS: u32 = 500;

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
