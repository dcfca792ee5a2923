//! `Calm`: what follows a panic in the keeper's work.

use std::{
    future::poll_fn,
    io::{self, Write},
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Mutex,
    time::Duration,
};

use futures_util::FutureExt;
use tenure_core::{Host, Moment, locked};
use tracing::{Dispatch, dispatcher};

/// What follows a panic in the keeper's work: in a driver, or in the subscriber of the program, perhaps each time that
/// it is told something. All leases of the process depend on this work.
#[derive(Default)]
pub(crate) struct Calm {
    /// Until then the subscriber is told nothing.
    silent_until: Mutex<Option<Moment>>,
}

impl Calm {
    pub(crate) fn on_panic(&self, now: Moment) {
        *locked(&self.silent_until) = Some(now + SILENT);
        // `eprintln!` panics where the error output is closed.
        let _ = writeln!(
            io::stderr(),
            "tenure: a panic in the work that keeps leases; it goes on, and logs nothing for {SILENT:?}"
        );
    }

    /// Does this work, which begins anew if a panic ends it.
    pub(crate) async fn unless_it_panics<W: Future<Output = ()>>(
        &self,
        host: &dyn Host,
        mut work: impl FnMut() -> W,
    ) {
        loop {
            let mut work = pin!(AssertUnwindSafe(work()).catch_unwind());
            let ended = poll_fn(|context| {
                let silent_until = *locked(&self.silent_until);
                let is_silent = silent_until.is_some_and(|until| !until.is_over(host.now()));
                let _silence = is_silent.then(|| dispatcher::set_default(&Dispatch::none()));
                work.as_mut().poll(context)
            });
            if ended.await.is_ok() {
                return;
            }
            self.on_panic(host.now());
            host.sleep_until(host.now() + AFTER_PANIC).await;
        }
    }
}

/// How long the keeper rests after a panic: 10 ms, so that one that repeats keeps no processor busy.
const AFTER_PANIC: Duration = Duration::from_millis(10);

/// How long the keeper tells the subscriber nothing after a panic, which may have been the subscriber's: 1 min.
const SILENT: Duration = Duration::from_secs(60);
