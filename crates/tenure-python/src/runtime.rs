//! The runtime of this process: one thread, which has the connections. No thread of Rust ever asks for the interpreter's lock: a
//! program that keeps it for long delays no request, and no renewal.

use std::{
    io, process,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use tokio::runtime::{Builder, Handle};

/// The interpreter has begun to end. A thread that takes its lock from now on would be ended in the middle of a call.
pub(crate) static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Where this thread stays until the process ends, if the interpreter has begun to.
pub(crate) fn stay_if_ending() {
    while IS_ENDING.load(Ordering::Acquire) {
        thread::park();
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
