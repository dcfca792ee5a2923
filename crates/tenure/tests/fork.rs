//! A forked child has nothing of what its parent holds, waits for or has connected to.

#![allow(clippy::disallowed_methods, reason = "real processes live in real time")]

use std::{
    future::Future,
    io::{BufRead, BufReader, PipeWriter, Write, pipe},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use fork::{Fork, fork};
use nix::{
    sys::{signal, wait::waitpid},
    unistd::Pid,
};
use tenure::{AcquireError, BackendError, ErrorKind, Locker, Loss, Lost, MemoError};
use tenure_testkit::patience::slowness;
use tokio::runtime::{Builder, Runtime};

use crate::stage::ms;

/// A child that hangs is given up after that.
const PATIENCE: Duration = Duration::from_secs(20);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// What the child writes, line by line; it ends when it has written, by no way on which it meets what it has of its parent.
fn in_a_child(work: impl FnOnce(&mut PipeWriter)) -> Vec<String> {
    let (reader, mut writer) = pipe().unwrap();
    match fork().unwrap() {
        Fork::Child => {
            drop(reader);
            work(&mut writer);
            drop(writer);
            signal::kill(Pid::this(), signal::SIGKILL).unwrap();
            unreachable!("it was killed");
        }
        Fork::Parent(child) => {
            drop(writer);
            let child = Pid::from_raw(child);
            let lines = thread::spawn(move || BufReader::new(reader).lines().map_while(Result::ok).collect());
            let began = std::time::Instant::now();
            while !lines.is_finished() && began.elapsed() < PATIENCE * slowness() {
                thread::sleep(ms(10));
            }
            let has_hung = !lines.is_finished();
            // OK to fail: it has ended.
            let _ = signal::kill(child, signal::SIGKILL);
            waitpid(child, None).unwrap();
            let mut lines: Vec<String> = lines.join().unwrap();
            lines.extend(has_hung.then(|| "hangs".to_owned()));
            lines
        }
    }
}

/// Whether an answer says that this process was forked.
trait SaysForked {
    fn is_forked(&self) -> bool;
}

impl SaysForked for BackendError {
    fn is_forked(&self) -> bool {
        self.kind() == ErrorKind::Forked
    }
}

impl SaysForked for AcquireError {
    fn is_forked(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_forked())
    }
}

impl SaysForked for Lost {
    fn is_forked(&self) -> bool {
        self.cause() == Loss::Forked
    }
}

impl SaysForked for MemoError {
    fn is_forked(&self) -> bool {
        matches!(self, Self::Lost(lost) if lost.is_forked())
    }
}

fn tell<A, E: SaysForked>(to: &mut PipeWriter, what: &str, answer: Result<A, E>) {
    if !answer.is_err_and(|error| error.is_forked()) {
        writeln!(to, "{what} is not refused").unwrap();
    }
}

/// Every verb of a handle, in the child.
async fn ask_all(locks: &Locker, to: &mut PipeWriter) {
    let (job, owner) = (locks.mutex("job"), locks.new_owner());
    tell(to, "acquire", job.acquire().await);
    tell(to, "within", job.clone().within(ms(10)).acquire().await);
    tell(to, "try_acquire", job.try_acquire().await);
    tell(to, "read", locks.rwlock("job").read().acquire().await);
    tell(to, "a chosen owner", locks.mutex("job").owner(owner).acquire().await);
    tell(to, "idle", locks.mutex("idle").keep_idle(ms(60_000)).acquire().await);
    tell(to, "all", locks.all(["job", "other"]).acquire().await);
    tell(to, "any", locks.any(["job", "other"]).acquire().await);
    tell(to, "campaign", locks.election("job").campaign().await);
    tell(to, "leader", locks.election("job").leader().await);
    tell(to, "observe", locks.election("job").observe().next().await);
    tell(to, "attach", locks.mutex("job").attach(owner).await);
    tell(to, "inspect", locks.inspect("job").await);
    tell(to, "list", locks.list("").await);
    tell(to, "watch", locks.watch("job").next().await);
    tell(to, "renew", locks.detached("job", owner).unwrap().renew(ms(1000)).await);
    tell(to, "release", locks.detached("job", owner).unwrap().release().await);
    tell(to, "force_release", locks.force_release("job").await);
    tell(to, "diagnose", locks.diagnose().await);
    if locks.flush(ms(10)).await {
        writeln!(to, "flush is true").unwrap();
    }
}

/// L1, hazard 27: a child that went on with the handle of its parent was granted a lease that no thread of its renewed, took the token
/// of a lease that its parent kept idle, or waited for ever.
#[test]
fn no_verb_works_in_a_forked_child_and_the_parent_notices_nothing() {
    let parent = runtime();
    let locks = parent.block_on(tenure::connect("memory:")).unwrap();
    let idle = locks.mutex("idle").keep_idle(ms(60_000));
    let guard = parent.block_on(async {
        // What is kept idle is heard of from the second lease on.
        for _ in 0..3 {
            idle.acquire().await.unwrap().release().await.unwrap();
            tokio::time::sleep(ms(20)).await;
        }
        locks.mutex("held").acquire().await.unwrap()
    });
    let wrong = in_a_child(|to| {
        runtime().block_on(async {
            ask_all(&locks, to).await;
            tell(to, "check", guard.check());
            tell(to, "note", guard.set_memo("text", ms(1000)).await);
            tell::<(), _>(to, "lost", Err(guard.lost().await));
            tell(to, "nearly_lost", guard.expires_within(ms(100)).await);
            guard.renewal_failing().await;
        });
    });
    assert_eq!(wrong, [""; 0]);
    parent.block_on(async {
        guard.check().unwrap();
        guard.release().await.unwrap();
        idle.acquire().await.unwrap().release().await.unwrap();
        assert!(locks.flush(PATIENCE).await);
    });
}

/// The same for programs without a runtime, whose calls waited for a thread that the child does not have.
#[test]
fn no_verb_of_the_blocking_api_works_in_a_forked_child() {
    let locks = tenure::blocking::connect("memory:").unwrap();
    let guard = locks.mutex("held").acquire().unwrap();
    let wrong = in_a_child(|to| {
        tell(to, "acquire", locks.mutex("job").acquire());
        tell(to, "try_acquire", locks.mutex("job").try_acquire());
        tell(to, "within", locks.mutex("held").within(ms(50)).acquire());
        tell(to, "inspect", locks.inspect("job"));
        tell(to, "all", locks.all(["job", "other"]).acquire());
        tell(to, "campaign", locks.election("job").campaign());
        tell(to, "check", guard.check());
    });
    assert_eq!(wrong, [""; 0]);
    guard.release().unwrap();
}

/// A future that waited in the parent says so at its next poll, and neither it nor a guard touches anything when it is dropped.
#[test]
fn what_waited_in_the_parent_is_refused_in_the_child() {
    let parent = runtime();
    let locks = parent.block_on(tenure::connect("memory:")).unwrap();
    let held = parent.block_on(locks.mutex("held").acquire()).unwrap();
    let (first, second, read) = (locks.mutex("held"), locks.mutex("held"), locks.rwlock("held").read());
    let mut waiting: Vec<Pin<Box<dyn Future<Output = _>>>> = vec![
        Box::pin(first.acquire()),
        // Behind the first one, in the queue of the process.
        Box::pin(second.acquire()),
    ];
    waiting.push(Box::pin(read.acquire()));
    let mut lost = Box::pin(held.lost());
    let poll_all = |waiting: &mut Vec<Pin<Box<dyn Future<Output = _>>>>| {
        let mut context = Context::from_waker(Waker::noop());
        waiting.iter_mut().map(|one| one.as_mut().poll(&mut context)).collect::<Vec<_>>()
    };
    parent.block_on(async {
        for _ in 0..20 {
            assert!(poll_all(&mut waiting).iter().all(Poll::is_pending));
            assert!(lost.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            tokio::time::sleep(ms(1)).await;
        }
    });
    let mut left: Vec<_> = waiting.into_iter().map(Some).collect();
    let wrong = in_a_child(|to| {
        for (number, one) in left.iter_mut().enumerate() {
            let mut one = pin!(one.take().unwrap());
            match one.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => tell(to, &format!("wait {number}"), answer),
                Poll::Pending => writeln!(to, "wait {number} goes on").unwrap(),
            }
        }
        match lost.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(why) => tell::<(), _>(to, "lost", Err(why)),
            Poll::Pending => writeln!(to, "lost goes on").unwrap(),
        }
        drop(locks);
    });
    assert_eq!(wrong, [""; 0]);
    drop((left, lost));
    held.check().unwrap();
    parent.block_on(held.release()).unwrap();
}
