//! `lock`, `renew`, `unlock`: leases for scripts. They are not renewed automatically. `attach`: a command under
//! such a lease, which another process acquired.

use std::{future::pending, os::unix::process::parent_id, time::Duration};

use nix::sys::signal::Signal;
use serde::Serialize;
use tenure::{
    AcquireError, Guards, LockName, Locker, OwnerId,
    backend::{EndOfGrant, Released, Renewal},
};

use crate::{
    args::{Attach, Global, LockArgs, Renew, Unlock},
    exit::{self, Stop, chain},
    nested::{self, Nesting},
    processes,
    release::left_to_ttl,
    run::{self, CommandEnd, LockNames, Started, Task},
    signals::{Signals, unhandled},
    store, text, view,
    waiting::{Budget, LEAVE_PATIENCE, LockWait, Question, drained},
};

#[derive(Serialize)]
struct LeaseJson<'a> {
    name: &'a str,
    owner: String,
    token: u64,
    ttl_ms: u128,
}

pub(crate) async fn lock(global: &Global, args: LockArgs) -> Result<u8, Stop> {
    let (name, mode) = (args.name.as_str(), args.mode.mode()?);
    if let Some(owner) = args.owner {
        nested::refuse_own(&args.name, owner, "an owner is for one lease: choose another one")?;
    }
    let locks = store::connect(global).await?;
    outlives_its_process(&locks, KEEP)?;
    let mut signals = Signals::listen()?;
    let claim = (&args.name, mode);
    if let Nesting::Never(stop) = nested::nesting(global, &locks, claim, signals.asked_to_end()).await? {
        return Err(stop);
    }
    let lock = run::one(&locks, &args.name, mode);
    let lock = lock
        .priority(args.class.priority)
        .ttl(args.ttl.ttl())
        .label(processes::label_of(parent_id()))
        .free_at_death(false);
    let lock = if let Some(owner) = args.owner { lock.owner(owner) } else { lock };
    let waiting = LockWait::new(global, &locks, name, args.conflict_exit_code);
    let guard = waiting.acquire(lock, Budget::new(args.wait), &mut signals).await?;
    let (owner, ttl_ms) = (guard.owner().to_string(), args.ttl.ttl().as_millis());
    // On a quorum it is a mutex of its own, the slot.
    let slot = guard.name().clone();
    let lease = LeaseJson { name: slot.as_str(), owner, token: guard.token().get(), ttl_ms };
    let printed = view::try_print(&view::json(&lease));
    if let (Err(error), None) = (&printed, args.owner) {
        // A lease with an unknown owner could be neither renewed nor released.
        drop(guard);
        let is_back = drained(&locks, ORPHANED, signals.asked_to_end()).await;
        let fate = if is_back { "the lock was released" } else { "the lock is free after its ttl" };
        return Err(Stop::internal(format!("{name}: cannot print the owner: {error}; {fate}")));
    }
    left_to_ttl([guard].into_iter().collect()).await;
    all_have_heard(&locks, signals.asked_to_end()).await;
    // The caller knows the owner, and an earlier answer may have granted it this lease: it is not released.
    printed.map(|()| 0).map_err(|error| {
        let fate = "the owner that was named holds the lock: ask again, or release it with `tenure unlock`";
        Stop::internal(format!("{name}: cannot print the token: {error}; {fate}"))
    })
}

/// A quorum has answered. If the process ended now, the other nodes would not receive the release.
async fn all_have_heard(locks: &Locker, signal: impl Future<Output = Signal>) {
    drained(locks, LEAVE_PATIENCE, signal).await;
}

/// Why a script cannot use it.
const KEEP: &str = "a script cannot keep it";

/// A lease that is a session ends with the process that acquired it, or shortly after; so this is refused.
fn outlives_its_process(locks: &Locker, so: &str) -> Result<(), Stop> {
    let promises = locks.promises();
    if promises.end == EndOfGrant::Session {
        let line = format!(
            "a lease of {} ends with the process that took it, so {so}; use `tenure run`",
            promises.backend
        );
        return Err(Stop::usage(line));
    }
    Ok(())
}

pub(crate) async fn renew(global: &Global, args: &Renew) -> Result<u8, Stop> {
    let locks = store::open(global).await?;
    outlives_its_process(&locks, KEEP)?;
    let max = locks.promises().max_ttl;
    if args.ttl.ttl() > max {
        return Err(Stop::usage(format!(
            "{}: --ttl: this store accepts {} at most",
            args.name,
            text::seconds(max)
        )));
    }
    let lease = locks.detached(&args.name, args.owner).map_err(|error| Stop::usage(error.to_string()))?;
    let question = Question::new(global, "renewing the lease").about(&args.name);
    let renewal = question.answered(unhandled(), lease.renew(args.ttl.ttl())).await?;
    all_have_heard(&locks, unhandled()).await;
    match renewal {
        Renewal::Renewed => Ok(0),
        Renewal::Gone => Err(Stop::new(args.lost_exit_code, gone(&args.name))),
    }
}

const UNLOCK_ENDS_IT: &str = "the outer command would run on without the lock: end that command, which releases it, or take it by \
     `tenure break`";

pub(crate) async fn unlock(global: &Global, args: &Unlock) -> Result<u8, Stop> {
    nested::refuse_own(&args.name, args.owner, UNLOCK_ENDS_IT)?;
    let locks = store::open(global).await?;
    let lease = locks.detached(&args.name, args.owner).map_err(|error| Stop::usage(error.to_string()))?;
    let question = Question::new(global, "releasing the lock").about(&args.name);
    let released = question.answered(unhandled(), lease.release()).await?;
    all_have_heard(&locks, unhandled()).await;
    match released {
        Released::Released => Ok(0),
        Released::WasGone => Err(Stop::new(args.lost_exit_code, gone(&args.name))),
    }
}

fn gone(name: &LockName) -> String {
    let see = text::word(name.as_str());
    format!(
        "{name}: this owner does not hold the lock: the lease has ended or was broken, or NAME, OWNER or --url is wrong. \
         See tenure show {see}"
    )
}

const ATTACH_ENDS_IT: &str =
    "`attach` would release it while the outer command runs on: run the inner command without `tenure`";

pub(crate) async fn attach(global: &Global, args: Attach) -> Result<u8, Stop> {
    let task = Task::from(&args);
    task.check()?;
    let (name, owner) = (args.name, args.owner);
    nested::refuse_own(&name, owner, ATTACH_ENDS_IT)?;
    let mut started = Started::new(global, &task, LockNames::only(name.clone())).await?;
    outlives_its_process(started.locks(), "another one cannot go on with it")?;
    refuse_of_a_run(global, &mut started, &name, owner).await?;
    started.may_linger()?;
    let attached = ask_to_attach(global, &mut started, &name, owner).await?;
    let guards = attached.map_err(|error| match error {
        AcquireError::Gone => task.lost(gone(&name)),
        AcquireError::Config(error) => Stop::usage(error.to_string()).of(&name),
        other => Stop::internal(chain(&other)).of(&name),
    })?;
    let Some(guards) = guards else {
        let (works, see) = ("another `tenure attach` works under this lease", text::word(&place_of(owner)));
        return Err(Stop::new(exit::CONFLICT, format!("{name}: {works}. See tenure show {see}")));
    };
    match started.run(guards, async |_| Ok(())).await? {
        CommandEnd::Ended(code) => Ok(code),
        CommandEnd::Lost(line) => Err(task.lost(line)),
    }
}

/// L1: `show` also prints the owner of a running `tenure run`. A lease never changes from one kind to the other, so this
/// answer cannot become outdated.
async fn refuse_of_a_run(
    global: &Global,
    started: &mut Started<'_>,
    name: &LockName,
    owner: OwnerId,
) -> Result<(), Stop> {
    let (question, locks) =
        (Question::new(global, "attaching to the lease").about(name), started.locks().clone());
    let view = question.answered(started.signals().asked_to_end(), locks.inspect(name)).await?;
    let owner = owner.to_string();
    let held = view.holders.into_iter().find(|holder| holder.owner == owner);
    match held.and_then(|holder| holder.label).filter(|label| label.runs) {
        None => Ok(()),
        Some(label) => Err(Stop::usage(format!(
            "{name}: this is the lease of a command that runs: {label}. Attach to a lease of `tenure lock`, or wait for the \
             lock with `tenure run`"
        ))),
    }
}

/// The name of the lock that excludes a second command under the lease of this owner.
fn place_of(owner: OwnerId) -> String {
    format!("attach:{owner}")
}

/// The lease, and the lock that excludes a second command under it; `None` if another command holds that. It is acquired
/// first, because attaching renews the lease, and another command may use it.
async fn ask_to_attach(
    global: &Global,
    started: &mut Started<'_>,
    name: &LockName,
    owner: OwnerId,
) -> Result<Result<Option<Guards>, AcquireError>, Stop> {
    let (lock, place) = (started.locks().mutex(name), started.locks().mutex(place_of(owner)));
    let (lock, place) = (started.set(lock), started.set(place));
    let locks = started.locks().clone();
    let question = Question::new(global, "attaching to the lease").about(name);
    let both = async {
        let Some(place) = place.try_acquire().await? else { return Ok(None) };
        match lock.attach(owner).await {
            Ok(guard) => Ok(Some([guard, place].into_iter().collect())),
            Err(error) => {
                drop(place);
                drained(&locks, LEAVE_PATIENCE, pending()).await;
                Err(error)
            }
        }
    };
    let attaching = question.answered(started.signals().asked_to_end(), async {
        match both.await {
            Err(AcquireError::Store(error)) => Err(error),
            answer => Ok(answer),
        }
    });
    attaching.await
}

/// How long to wait for the release of a lease that no other process can release: longer than for a place in a queue.
const ORPHANED: Duration = Duration::from_secs(10);
