//! `Unstopped`: work that other processes wait for, during which this process does not suspend itself.

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::locked;

static THREADS: Mutex<Threads> = Mutex::new(Threads { working: 0, suspending: 0 });
static DONE: Condvar = Condvar::new();

#[derive(Debug)]
struct Threads {
    /// The number of pieces of such work.
    working: usize,
    /// The number of threads that wait for them. It is mostly zero, and notifying is a system call.
    suspending: usize,
}

thread_local! {
    /// How many of them this thread has, nested.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Longer than any such work: work that hangs does not delay a suspend indefinitely.
const PATIENCE: Duration = Duration::from_secs(1);

/// While a value exists, [`suspend`] waits. For work without a wait on shared resources: a transaction on a file, a
/// lock on a directory.
#[derive(Debug)]
pub struct Unstopped(PhantomData<*const ()>);

impl Unstopped {
    /// Holds suspends back until it is dropped. Waits while this process is suspended.
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

/// Runs the code that suspends this process, when no thread has work that other processes wait for; after 1 s in
/// any case.
///
/// A program that handles `SIGTSTP` sends itself the stop signal in here. A process that is stopped during a
/// transaction on an SQLite file blocks all locks of that file for every other process until it continues. This
/// does not help against a `SIGSTOP` from outside.
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
    // Work that begins in the meantime waits until the process continues.
    let _held_back = HeldBack::within(patience);
    stop()
}

/// While a value exists, no thread of this process begins such work. For a program that forks between two calls of its own, as an
/// interpreter does: what a thread has locked at that moment stays locked in the child.
#[derive(Debug)]
pub struct HeldBack {
    threads: MutexGuard<'static, Threads>,
}

impl HeldBack {
    /// Waits until no thread has such work, for at most 1 s.
    pub fn begin() -> Self {
        Self::within(PATIENCE)
    }

    fn within(patience: Duration) -> Self {
        let mut threads = locked(&THREADS);
        threads.suspending += 1;
        let none = DONE.wait_timeout_while(threads, patience, |threads| threads.working > 0);
        let (mut threads, _) = none.unwrap_or_else(PoisonError::into_inner);
        threads.suspending -= 1;
        // This thread may do such work in the meantime.
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Self { threads }
    }

    /// Goes on in the child of a fork, in which no other thread works.
    pub fn end_in_child(mut self) {
        (self.threads.working, self.threads.suspending) = (0, 0);
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
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

    /// One test for all, because the state that it checks belongs to the process.
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

        // Work that hangs is not waited for.
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
