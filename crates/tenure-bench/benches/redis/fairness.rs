//! Many waiters who hold for a moment: who is served how often, and who waits longest.

use std::{cell::RefCell, os::fd::AsFd, rc::Rc, time::Duration};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use rslock::LockManager;
use tenure::{
    Lock,
    backend::{Host, Moment, TokioHost},
};
use tenure_bench::jain;
use tokio::{net::unix::pipe::Receiver, runtime::Runtime, task::LocalSet};

use crate::{
    cycles::TTL,
    meter::{Cost, Meter},
    server::Server,
};

pub(crate) const WAITERS: usize = 128;
const HOLD: Duration = Duration::from_millis(1);
const LENGTH: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) enum Contender {
    Tenure(Box<Lock>),
    Rslock(LockManager),
}

/// What one waiter has seen.
#[derive(Clone, Default)]
struct Diary {
    served: u64,
    longest: Duration,
    held: Duration,
    /// Since when it has been waiting.
    since: Option<Moment>,
}

/// What was seen of all.
pub(crate) struct Fairness {
    pub(crate) per_second: f64,
    pub(crate) hold: Duration,
    pub(crate) jain: f64,
    pub(crate) starved: usize,
    /// Also of those who still waited at the end.
    pub(crate) longest: Duration,
    pub(crate) commands: f64,
    pub(crate) cost: Cost,
}

impl Contender {
    pub(crate) fn tenure(runtime: &Runtime, server: &Server) -> Self {
        let locks = runtime.block_on(tenure::connect(&server.tenure_url())).expect("a URL");
        Self::Tenure(Box::new(locks.mutex("tenure/crowd")))
    }

    pub(crate) fn rslock(server: &Server) -> Self {
        Self::Rslock(LockManager::new(vec![server.url()]))
    }

    async fn run(self, diary: &RefCell<Diary>) {
        let pause = Pause::new();
        loop {
            let since = TokioHost.now();
            diary.borrow_mut().since = Some(since);
            match &self {
                Self::Tenure(lock) => {
                    let guard = lock.acquire().await.expect("the server answers");
                    hold(since, &pause, diary).await;
                    guard.release().await.expect("held");
                }
                Self::Rslock(locks) => {
                    let guard = locks.acquire("rslock/crowd", TTL).await.expect("the server answers");
                    hold(since, &pause, diary).await;
                    guard.release().await;
                }
            }
        }
    }
}

/// A pause of a millisecond that takes no more: tokio's own take two.
struct Pause {
    timer: TimerFd,
    /// The same timer once more, for it is read like a pipe.
    rings: Receiver,
}

impl Pause {
    fn new() -> Self {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK).expect("a timer");
        let same = timer.as_fd().try_clone_to_owned().expect("one more descriptor");
        Self { timer, rings: Receiver::from_owned_fd_unchecked(same).expect("a runtime that knows it") }
    }

    async fn wait(&self, length: Duration) {
        let when = Expiration::OneShot(TimeSpec::from_duration(length));
        self.timer.set(when, TimerSetTimeFlags::empty()).expect("a pause");
        while self.rings.try_read(&mut [0; 8]).is_err() {
            self.rings.readable().await.expect("the runtime lives");
        }
    }
}

async fn hold(since: Moment, pause: &Pause, diary: &RefCell<Diary>) {
    let granted = TokioHost.now();
    {
        let mut diary = diary.borrow_mut();
        diary.served += 1;
        diary.longest = diary.longest.max(since.elapsed(granted));
        diary.since = None;
    }
    pause.wait(HOLD).await;
    diary.borrow_mut().held += granted.elapsed(TokioHost.now());
}

/// Lets all run for five seconds as tasks of one thread, over one connection; then they leave.
pub(crate) fn measure(runtime: &Runtime, server: &Server, contender: &Contender) -> Fairness {
    let diaries: Vec<Rc<RefCell<Diary>>> = (0..WAITERS).map(|_| Rc::default()).collect();
    let calls = server.calls();
    let meter = Meter::start(server);
    let tasks = LocalSet::new();
    for diary in &diaries {
        let (contender, diary) = (contender.clone(), diary.clone());
        tasks.spawn_local(async move { contender.run(&diary).await });
    }
    let over = TokioHost.now() + LENGTH;
    tasks.block_on(runtime, async { TokioHost.sleep_until(over).await });
    let now = TokioHost.now();
    let diaries: Vec<Diary> = diaries.iter().map(|diary| diary.borrow().clone()).collect();
    let counts: Vec<u64> = diaries.iter().map(|diary| diary.served).collect();
    let served = counts.iter().sum::<u64>().max(1);
    let waits =
        diaries.iter().map(|diary| diary.since.map_or(diary.longest, |s| diary.longest.max(s.elapsed(now))));
    Fairness {
        per_second: served as f64 / LENGTH.as_secs_f64(),
        hold: diaries.iter().map(|diary| diary.held).sum::<Duration>() / u32::try_from(served).expect("few"),
        jain: jain(&counts),
        starved: counts.iter().filter(|count| **count == 0).count(),
        longest: waits.max().unwrap_or_default(),
        commands: server.calls().since(&calls) as f64 / served as f64,
        cost: meter.stop(served),
    }
}
