//! `Clockwork`: virtual time, and the tasks of many processes in one thread.
//!
//! It replaces tokio's paused runtime, because it does three things that tokio cannot:
//!
//! * It **stops a process**: none of its tasks is polled, while its clocks, the network and the servers go on.
//! * It **kills a process**: all of its tasks are dropped immediately.
//! * It **draws the next task from the seed**, from a sorted set. So neither the order of wakeups nor the iteration order
//!   of a map in product code changes the history.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
};

use tenure_core::{BoxFuture, locked};

use crate::chance::Chance;

/// µs of true time since the world began.
pub type Micros = u64;

/// A process: what can be stopped and killed.
pub type Pid = usize;

/// This many polls within one instant count as a livelock.
const POLLS_MAX: u32 = 200_000;

/// Virtual time, and the tasks of all processes.
pub(crate) struct Clockwork {
    core: Mutex<Core>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Ready(Mutex<BTreeSet<usize>>);

struct Core {
    now: Micros,
    sequence: u64,
    due: BinaryHeap<Reverse<Due>>,
    tasks: Vec<Option<Task>>,
    processes: Vec<Process>,
    chance: Chance,
}

struct Task {
    process: Pid,
    /// Absent while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
    is_main: bool,
}

struct Process {
    is_alive: bool,
    stopped_until: Micros,
    /// Tasks that were woken while it was stopped.
    held: BTreeSet<usize>,
}

struct Due {
    at: Micros,
    sequence: u64,
    what: What,
}

enum What {
    Timer(Arc<Timer>),
    Run(Box<dyn FnOnce() + Send>),
    Resume(Pid),
}

#[derive(Default)]
struct Timer(Mutex<Option<Waker>>);

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        locked(&self.ready.0).insert(self.task);
    }
}

impl Clockwork {
    /// A world without processes, at time zero.
    pub(crate) fn new(chance: Chance) -> Arc<Self> {
        let core = Core {
            now: 0,
            sequence: 0,
            due: BinaryHeap::new(),
            tasks: Vec::new(),
            processes: Vec::new(),
            chance,
        };
        Arc::new(Self { core: Mutex::new(core), ready: Arc::default() })
    }

    /// True time.
    pub(crate) fn now(&self) -> Micros {
        locked(&self.core).now
    }

    /// A new process.
    pub(crate) fn process(&self) -> Pid {
        let mut core = locked(&self.core);
        core.processes.push(Process { is_alive: true, stopped_until: 0, held: BTreeSet::new() });
        core.processes.len() - 1
    }

    /// Starts a task of a process. The task of a dead process is dropped immediately.
    pub(crate) fn spawn(&self, process: Pid, task: BoxFuture<'static, ()>) {
        self.start(process, task, false);
    }

    /// Starts a task that [`end_mains`](Self::end_mains) ends.
    pub(crate) fn spawn_main(&self, process: Pid, task: BoxFuture<'static, ()>) {
        self.start(process, task, true);
    }

    fn start(&self, process: Pid, future: BoxFuture<'static, ()>, is_main: bool) {
        let mut core = locked(&self.core);
        if !core.processes[process].is_alive {
            drop(core);
            drop(future);
            return;
        }
        let task = core.tasks.len();
        let waker = Waker::from(Arc::new(TaskWaker { task, ready: self.ready.clone() }));
        core.tasks.push(Some(Task { process, future: Some(future), waker, is_main }));
        drop(core);
        locked(&self.ready.0).insert(task);
    }

    /// Calls `run` at this time, whatever the processes do.
    pub(crate) fn at(&self, at: Micros, run: impl FnOnce() + Send + 'static) {
        locked(&self.core).push(at, What::Run(Box::new(run)));
    }

    /// Ends at this time, or a little later if its process is stopped.
    pub(crate) fn until(self: &Arc<Self>, at: Micros) -> Sleep {
        Sleep { clockwork: self.clone(), at, timer: None }
    }

    /// Stops a process until `until`. It does nothing, and can notice the stop only by its clocks.
    pub(crate) fn stop(&self, process: Pid, until: Micros) {
        let mut core = locked(&self.core);
        let known = &mut core.processes[process].stopped_until;
        *known = until.max(*known);
        let until = *known;
        core.push(until, What::Resume(process));
    }

    /// Kills a process: all of its tasks are dropped, and it never sends anything again.
    pub(crate) fn kill(&self, process: Pid) {
        locked(&self.core).processes[process].is_alive = false;
        self.drop_tasks(|task| task.process == process);
    }

    /// Ends every task that was started as the main one of its process.
    pub(crate) fn end_mains(&self) {
        self.drop_tasks(|task| task.is_main);
    }

    /// Ends all tasks and forgets what is due, so that nothing of this world keeps itself alive.
    pub(crate) fn end(&self) {
        locked(&self.core).processes.iter_mut().for_each(|process| process.is_alive = false);
        self.drop_tasks(|_| true);
        let due = std::mem::take(&mut locked(&self.core).due);
        drop(due);
    }

    fn drop_tasks(&self, is_chosen: impl Fn(&Task) -> bool) {
        let mut dropped = Vec::new();
        {
            let mut core = locked(&self.core);
            for slot in &mut core.tasks {
                if slot.as_ref().is_some_and(&is_chosen) {
                    dropped.push(slot.take());
                }
            }
        }
        // Outside the lock, because a dropped value may start tasks.
        drop(dropped);
    }

    /// Lets time pass until `until`. `after` is called whenever a process has done something.
    ///
    /// # Panics
    /// If the world polls tasks endlessly while no time passes.
    pub(crate) fn run_until(&self, until: Micros, mut after: impl FnMut(Pid)) {
        let mut polls = 0;
        loop {
            while let Some(process) = self.poll_one() {
                after(process);
                polls += 1;
                assert!(polls < POLLS_MAX, "BUG: the world runs in a circle at {} µs", self.now());
            }
            let mut core = locked(&self.core);
            let is_due = core.due.peek().is_some_and(|Reverse(due)| due.at <= until);
            let next = if is_due { core.due.pop() } else { None };
            let Some(Reverse(due)) = next else {
                core.now = until;
                return;
            };
            if due.at > core.now {
                polls = 0;
            }
            core.now = core.now.max(due.at);
            drop(core);
            self.happen(due.what);
        }
    }

    fn happen(&self, what: What) {
        match what {
            What::Timer(timer) => {
                let waker = locked(&timer.0).take();
                waker.into_iter().for_each(Waker::wake);
            }
            What::Run(run) => run(),
            What::Resume(process) => {
                let mut core = locked(&self.core);
                let now = core.now;
                if core.processes[process].stopped_until <= now {
                    let held = std::mem::take(&mut core.processes[process].held);
                    drop(core);
                    locked(&self.ready.0).extend(held);
                }
            }
        }
    }

    /// Polls one ready task, drawn by chance. Returns the process of the task.
    fn poll_one(&self) -> Option<Pid> {
        loop {
            let (at, process, mut future, waker) = {
                let mut ready = locked(&self.ready.0);
                let mut core = locked(&self.core);
                if ready.is_empty() {
                    return None;
                }
                let nth = if ready.len() == 1 { 0 } else { core.chance.index(ready.len()) };
                let at = *ready.iter().nth(nth)?;
                ready.remove(&at);
                let now = core.now;
                let Some(task) = core.tasks.get_mut(at).and_then(Option::as_mut) else { continue };
                let process = task.process;
                let Some(future) = task.future.take() else { continue };
                let waker = task.waker.clone();
                if core.processes[process].stopped_until > now {
                    core.processes[process].held.insert(at);
                    if let Some(task) = &mut core.tasks[at] {
                        task.future = Some(future);
                    }
                    continue;
                }
                (at, process, future, waker)
            };
            let is_over = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            let mut core = locked(&self.core);
            // The task may have killed its own process.
            let slot = &mut core.tasks[at];
            let leaving = match slot.as_mut() {
                Some(task) if !is_over => {
                    task.future = Some(future);
                    None
                }
                _ => Some((slot.take(), future)),
            };
            drop(core);
            drop(leaving);
            return Some(process);
        }
    }
}

impl Core {
    fn push(&mut self, at: Micros, what: What) {
        self.sequence += 1;
        let (at, sequence) = (at.max(self.now), self.sequence);
        self.due.push(Reverse(Due { at, sequence, what }));
    }
}

/// A wait for a point in true time.
pub(crate) struct Sleep {
    clockwork: Arc<Clockwork>,
    at: Micros,
    timer: Option<Arc<Timer>>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut core = locked(&self.clockwork.core);
        if core.now >= self.at {
            return Poll::Ready(());
        }
        let Some(timer) = &self.timer else {
            let timer = Arc::new(Timer(Mutex::new(Some(cx.waker().clone()))));
            core.push(self.at, What::Timer(timer.clone()));
            drop(core);
            self.timer = Some(timer);
            return Poll::Pending;
        };
        let mut waker = locked(&timer.0);
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            locked(&timer.0).take();
        }
    }
}

#[cfg(test)]
#[path = "clockwork_tests.rs"]
mod tests;
