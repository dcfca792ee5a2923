//! `Unstopped`: work that other processes wait for, in which this one does not suspend itself.

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use crate::locked;

static THREADS: Mutex<Threads> = Mutex::new(Threads { working: 0, suspending: 0 });
static DONE: Condvar = Condvar::new();

struct Threads {
    /// So many are at such work.
    working: usize,
    /// So many wait for them. Mostly none does, and to notify is a system call.
    suspending: usize,
}

thread_local! {
    /// How many of them this thread has, one in the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Longer than any such work: the thread that was asked to suspend this process is not kept waiting by one that hangs.
const PATIENCE: Duration = Duration::from_secs(1);

/// While one is there, [`suspend`] waits. For work without a wait, on what is taken from others: a transaction on a file, a lock on a
/// directory.
#[derive(Debug)]
pub struct Unstopped(PhantomData<*const ()>);

impl Unstopped {
    /// From here until it is dropped. Waits while this process is suspended.
    pub fn begin() -> Self {
        DEPTH.with(|depth| {
            if depth.get() == 0 {
                locked(&THREADS).working += 1;
            }
            depth.set(depth.get() + 1);
        });
        Self(PhantomData)
    }
}

impl Drop for Unstopped {
    fn drop(&mut self) {
        DEPTH.with(|depth| {
            depth.set(depth.get() - 1);
            if depth.get() == 0 {
                let mut threads = locked(&THREADS);
                threads.working -= 1;
                if threads.suspending > 0 {
                    DONE.notify_all();
                }
            }
        });
    }
}

/// Runs what suspends this process, when no thread of it has anything that other processes wait for; after a second in any case.
///
/// A program that handles `SIGTSTP` sends itself the signal that stops it in here. A process that is stopped in the middle of a
/// transaction on the file of SQLite keeps every other process from all locks of that file until it goes on. Against a `SIGSTOP` from
/// outside nothing helps.
///
/// # Example
/// ```
/// let suspended = tenure_core::suspend(|| "here it stops, and goes on when it is continued");
/// assert!(suspended.starts_with("here"));
/// ```
pub fn suspend<A>(stop: impl FnOnce() -> A) -> A {
    suspend_within(PATIENCE, stop)
}

fn suspend_within<A>(patience: Duration, stop: impl FnOnce() -> A) -> A {
    let mut threads = locked(&THREADS);
    threads.suspending += 1;
    let none = DONE.wait_timeout_while(threads, patience, |threads| threads.working > 0);
    let (mut threads, _) = none.unwrap_or_else(PoisonError::into_inner);
    threads.suspending -= 1;
    // Who begins meanwhile waits until it goes on.
    stop()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "threads are watched in real time")]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering::SeqCst},
            mpsc,
        },
        thread,
        time::Instant,
    };

    use super::*;

    /// One test for all: what is looked at belongs to the process.
    #[test]
    fn a_process_is_suspended_between_two_pieces_of_work() {
        let (began, begins) = mpsc::channel();
        let (go, goes) = mpsc::channel();
        let is_done = Arc::new(AtomicBool::new(false));
        let work = thread::spawn({
            let is_done = is_done.clone();
            move || {
                let _outer = Unstopped::begin();
                drop(Unstopped::begin());
                began.send(()).unwrap();
                goes.recv().unwrap();
                thread::sleep(Duration::from_millis(20));
                is_done.store(true, SeqCst);
            }
        });
        begins.recv().unwrap();
        go.send(()).unwrap();
        let (asked, patience) = (Instant::now(), Duration::from_secs(60));
        let beginner = suspend_within(patience, || {
            assert!(is_done.load(SeqCst), "the work is done before");
            let beginner = thread::spawn(|| drop(Unstopped::begin()));
            thread::sleep(Duration::from_millis(20));
            assert!(!beginner.is_finished(), "nobody begins meanwhile");
            beginner
        });
        assert!(asked.elapsed() < patience, "it hears that the work is done");
        beginner.join().unwrap();
        work.join().unwrap();

        // One that hangs is not waited for.
        let (_never, hangs) = mpsc::channel::<()>();
        let (began, begins) = mpsc::channel();
        thread::spawn(move || {
            let _work = Unstopped::begin();
            began.send(()).unwrap();
            hangs.recv()
        });
        begins.recv().unwrap();
        assert_eq!(suspend(|| 1), 1);
    }
}
