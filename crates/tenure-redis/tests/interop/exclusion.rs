//! Who holds keeps the other out: theirs against ours, ours against theirs.

use std::time::{Duration, Instant};

use tenure::{AcquireError, view::HolderView};
use tenure_testkit::patience::{eventually, slowness};

use crate::{
    client::{Client, Library},
    stage::{LONG, PATIENCE, RETRY_MAX, Stage, assert_foreign},
};

/// What may pass between the end of a timer and the entry.
const START: Duration = Duration::from_millis(500);

/// Theirs is held for all that we have, and shown as somebody's of whom we know nothing. Nobody tells our waiter of their
/// release, but it asks again in time.
pub(crate) fn its_lock_is_held_for_us(library: Library) {
    let stage = Stage::new();
    let mut client = Client::new(&stage, library);
    assert!(client.try_lock(Some(LONG)));
    let value = stage.value().unwrap();

    assert!(stage.try_acquire().is_none());
    assert!(stage.wait(stage.reader().try_acquire()).unwrap().is_none());
    assert!(stage.wait(stage.locks.semaphore(crate::stage::NAME, 3).try_acquire()).unwrap().is_none());
    for holder in [stage.holder(), named_in_the_error(&stage)] {
        assert_foreign(&holder, &value);
        let left = holder.expires_in.expect("it has an end");
        assert!(left <= LONG && left > LONG / 2, "{left:?}");
    }
    assert!(stage.listed().is_empty(), "any key might be a lock of theirs");

    let waiter = stage.waiter(stage.lock());
    stage.queued(1);
    assert_foreign(&stage.listed()[0].holders[0], &value);
    client.unlock();
    let released = Instant::now();
    let guard = stage.entered(waiter);
    assert!(released.elapsed() <= RETRY_MAX + START * slowness(), "{:?}", released.elapsed());
    guard.check().unwrap();
    assert_eq!(stage.holder().token, Some(guard.token()));
    stage.release(guard);
    assert!(client.try_lock(Some(LONG)), "what we gave back is free for them");
}

fn named_in_the_error(stage: &Stage) -> HolderView {
    eventually("the error names the holder", PATIENCE, || {
        match stage.wait(stage.lock().within(Duration::from_millis(50)).acquire()) {
            Err(AcquireError::TimedOut { holder: Some(holder), .. }) => Some(*holder),
            // A busy machine may not answer so soon.
            Err(AcquireError::Store(_)) => None,
            other => panic!("{other:?}"),
        }
    })
}

pub(crate) fn our_lock_is_held_for_it(library: Library) {
    let stage = Stage::new();
    let mut client = Client::new(&stage, library);
    let guard = stage.try_acquire().unwrap();
    let value = stage.value();
    assert!(!client.try_lock(Some(LONG)));
    assert_eq!(stage.value(), value, "their attempt leaves ours as it was");
    guard.check().unwrap();
    stage.release(guard);
    assert!(client.try_lock(Some(LONG)));
}

/// Our shared holders stand beside the key; the key itself keeps others out until the last one has left.
pub(crate) fn our_readers_keep_it_out_to_the_last(library: Library) {
    let stage = Stage::new();
    let mut client = Client::new(&stage, library);
    let [first, last] = [(); 2].map(|()| stage.wait(stage.reader().try_acquire()).unwrap().unwrap());
    assert_eq!(stage.view().holders.len(), 2);
    assert!(!client.try_lock(Some(LONG)));
    stage.release(first);
    assert!(!client.try_lock(Some(LONG)), "one is still reading");
    last.check().unwrap();
    stage.release(last);
    assert!(client.try_lock(Some(LONG)));
    assert!(stage.wait(stage.reader().try_acquire()).unwrap().is_none());
}

/// Our release hands on within our queue: theirs comes after those who wait in order.
pub(crate) fn it_does_not_get_between_our_holder_and_our_waiter(library: Library) {
    let stage = Stage::new();
    let mut client = Client::new(&stage, library);
    let guard = stage.try_acquire().unwrap();
    let waiter = stage.waiter(stage.lock());
    stage.queued(1);
    stage.release(guard);
    assert!(!client.try_lock(Some(LONG)));
    stage.release(stage.entered(waiter));
    assert!(client.try_lock(Some(LONG)));
}
