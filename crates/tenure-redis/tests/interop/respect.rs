//! What is theirs stays as it is: value and end while we wait, and the lock itself when one of us comes late.

use tenure::{
    ErrorKind, ReleaseError,
    backend::{Released, Renewal},
    view::BreakScope,
};
use tenure_testkit::patience::eventually;

use crate::{
    client::{Client, Library},
    stage::{LONG, NAME, PATIENCE, SHORT, Stage, assert_foreign, name},
};

/// Waiters that ask again so often that a test sees it.
const EAGER: &str = "&retry_max=20ms";

/// Three of ours wait in three modes and ask again and again, a fourth one gives up: their value has nothing appended,
/// and their own extension still finds it.
pub(crate) fn its_value_stays_as_it_is_while_we_queue(library: Library) {
    let stage = Stage::with(EAGER);
    let mut client = Client::new(&stage, library);
    assert!(client.try_lock(Some(LONG)));
    let value = stage.value().unwrap();

    let quitter = stage.waiter(stage.lock());
    stage.queued(1);
    let mut waiters = Vec::new();
    for lock in [stage.lock(), stage.reader(), stage.locks.semaphore(NAME, 2)] {
        waiters.push(stage.waiter(lock));
        stage.queued(1 + waiters.len());
    }
    quitter.abort();
    stage.queued(3);
    stage.asked_again(10);
    assert_eq!(stage.value().unwrap(), value);
    let left = stage.pttl();
    client.extend(2 * LONG);
    assert!(stage.pttl() > left, "they may extend what is theirs");
    stage.asked_again(10);
    assert_eq!(stage.value().unwrap(), value);
    assert_foreign(&stage.holder(), &value);

    client.unlock();
    for waiter in waiters {
        stage.release(stage.entered(waiter));
    }
    assert!(client.try_lock(Some(LONG)), "nothing is left of our queue");
}

/// A lock that never ends by itself is shown as such, waited for, and never given an end by us.
pub(crate) fn its_lock_without_an_end_is_waited_for(library: Library) {
    let stage = Stage::with(EAGER);
    let mut client = Client::new(&stage, library);
    assert!(client.try_lock(None));
    let value = stage.value().unwrap();
    assert_foreign(&stage.holder(), &value);
    assert_eq!(stage.holder().expires_in, None);
    let error = stage.wait(stage.lock().within(SHORT).acquire()).unwrap_err();
    assert!(error.to_string().ends_with(", does not expire"), "{error}");

    let waiter = stage.waiter(stage.lock());
    stage.queued(1);
    stage.asked_again(10);
    assert_eq!((stage.value().unwrap(), stage.pttl()), (value, -1));
    client.unlock();
    stage.release(stage.entered(waiter));
}

/// Their lock ended by its ttl and ours began: their release deletes nothing.
pub(crate) fn its_late_release_does_not_free_ours(library: Library) {
    let stage = Stage::new();
    let mut client = Client::new(&stage, library);
    assert!(client.try_lock(Some(SHORT)));
    let guard = stage.entered(stage.waiter(stage.lock()));
    let value = stage.value();
    client.unlock_late();
    assert_eq!(stage.value(), value);
    guard.check().unwrap();
    assert_eq!(stage.holder().token, Some(guard.token()));
    assert!(!client.try_lock(Some(SHORT)));
    stage.release(guard);
}

/// Our lease ended by its ttl and theirs began: neither a release nor a renewal of ours touches it (hazard 23).
pub(crate) fn our_late_release_does_not_free_its_lock(library: Library) {
    let stage = Stage::new();
    let mut client = Client::new(&stage, library);
    let guard = stage.wait(stage.locks.mutex(NAME).ttl(SHORT).try_acquire()).unwrap().unwrap();
    // Nobody renews it from here on.
    let owner = stage.wait(guard.detach()).unwrap().owner();
    eventually("our lease ends", PATIENCE, || client.try_lock(Some(LONG)).then_some(()));
    let value = stage.value();

    assert_eq!(
        stage.wait(stage.locks.detached(name(), owner).unwrap().renew(2 * LONG)).unwrap(),
        Renewal::Gone
    );
    assert_eq!(
        stage.wait(stage.locks.detached(name(), owner).unwrap().release()).unwrap(),
        Released::WasGone
    );
    assert_eq!(stage.value(), value);
    let left = stage.pttl();
    assert!(left > 0 && u128::from(left.unsigned_abs()) <= LONG.as_millis(), "{left}");
    client.unlock();
}

/// Somebody deleted the key under our guard, and theirs began: the guard says so, and leaves it alone.
pub(crate) fn a_robbed_guard_leaves_its_lock_alone(library: Library) {
    let stage = Stage::new();
    let mut client = Client::new(&stage, library);
    for is_dropped in [false, true] {
        let guard = stage.try_acquire().unwrap();
        stage.delete();
        assert!(client.try_lock(Some(LONG)));
        let value = stage.value();
        if is_dropped {
            drop(guard);
            assert!(stage.wait(stage.locks.flush(PATIENCE)));
        } else {
            let error = stage.wait(guard.release()).unwrap_err();
            assert!(matches!(error, ReleaseError::AlreadyLost(_)), "{error}");
        }
        assert_eq!(stage.value(), value);
        client.unlock();
    }
}

/// An operator takes it from them only if that is asked for.
pub(crate) fn its_lock_is_broken_only_if_that_is_asked_for(library: Library) {
    let stage = Stage::new();
    let mut client = Client::new(&stage, library);
    assert!(client.try_lock(Some(LONG)));
    let value = stage.value();
    let refused = stage.wait(stage.locks.force_release(NAME)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert_eq!(stage.value(), value);
    let robbed = stage.wait(stage.locks.force_release_from(NAME, BreakScope::All)).unwrap();
    assert_foreign(&robbed[0], &value.unwrap());
    assert_eq!(stage.value(), None);
    stage.release(stage.try_acquire().unwrap());
}
