//! The service: of many processes one at a time sends an invoice. Its tests need neither a server nor time.

use std::time::Duration;

use tenure::{AcquireError, FencingToken, HoldError, Locker};

/// Sends invoices.
pub(crate) struct Invoices {
    locks: Locker,
}

/// Why an invoice was not sent, as the caller is told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{who} sends this invoice; ask again in a moment")]
    Busy { who: String },
    #[error("cannot reach the lock store; nothing was sent")]
    NotNow(#[source] AcquireError),
    #[error("another process may have gone on with this invoice; look before you send it again")]
    Uncertain(#[source] HoldError),
}

/// How long a caller waits for another one.
const PATIENCE: Duration = Duration::from_secs(5);

impl Invoices {
    pub(crate) fn new(locks: Locker) -> Self {
        Self { locks }
    }

    /// Sends one, under a lock of its own. Answers the token that went with it.
    pub(crate) async fn send(
        &self,
        number: u32,
        print: impl AsyncFnOnce(FencingToken),
    ) -> Result<FencingToken, Failure> {
        let lock = self.locks.mutex(format!("invoices/{number}"));
        let work = async |lease: tenure::Lease| {
            print(lease.token()).await;
            lease.token()
        };
        lock.within(PATIENCE).hold(work).await.map_err(Failure::from)
    }
}

impl From<HoldError> for Failure {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::Acquire(AcquireError::TimedOut { holder, .. }) => {
                Self::Busy { who: holder.map_or_else(|| "another process".into(), |holder| holder.who()) }
            }
            HoldError::Acquire(error) => Self::NotNow(error),
            lost => Self::Uncertain(lost),
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a user's tests take time and tasks from tokio")]
mod tests {
    use tenure::{
        Loss,
        testing::{Fault, TestStore, lost, timed_out},
        view::{HolderView, Mode},
    };
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_invoice_that_takes_an_hour_is_sent_under_one_lease() {
        let store = TestStore::new();
        let mut printed = None;
        let invoices = Invoices::new(store.locker());
        let sent = invoices.send(42, async |token| {
            sleep(Duration::from_secs(3600)).await; // takes milliseconds: the clock is paused
            printed = Some(token);
        });
        assert_eq!(Some(sent.await.unwrap()), printed);
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_of_two_processes_is_told_who_sends_it() {
        let store = TestStore::new();
        let (one, other) = (Invoices::new(store.locker()), Invoices::new(store.locker()));
        let slow = one.send(42, async |_| sleep(Duration::from_secs(60)).await);
        let (sent, refused) = tokio::join!(slow, other.send(42, async |_| panic!("it is sent already")));
        assert!(sent.is_ok() && matches!(refused, Err(Failure::Busy { .. })), "{refused:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_with_a_lease_that_expires() {
        let store = TestStore::new();
        let invoices = Invoices::new(store.locker());
        let sent = invoices.send(42, async |_| {
            store.fail(Fault::Hang); // no renewal is answered any more
            sleep(Duration::from_secs(3600)).await;
            panic!("the work is dropped before");
        });
        let Err(Failure::Uncertain(HoldError::Lost(loss))) = sent.await else { panic!("it was lost") };
        assert_eq!(loss.cause(), Loss::Expired);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_down_sends_nothing() {
        let store = TestStore::new();
        store.fail(Fault::unavailable());
        let invoices = Invoices::new(store.locker());
        let refused = invoices.send(42, async |_| panic!("nothing is sent")).await;
        assert!(matches!(refused, Err(Failure::NotNow(AcquireError::Store(_)))), "{refused:?}");
        store.recover();
        invoices.send(42, async |_| ()).await.unwrap();
    }

    /// A mapping of errors needs neither a store nor a runtime.
    #[test]
    fn each_error_of_a_lock_is_told_as_what_the_caller_can_do() {
        let holder = HolderView::new("worker-7", Mode::Exclusive);
        let busy = Failure::from(HoldError::Acquire(timed_out(PATIENCE, holder)));
        assert_eq!(busy.to_string(), "worker-7 sends this invoice; ask again in a moment");
        let gone = Failure::from(HoldError::Lost(lost(Loss::Taken, FencingToken::new(7))));
        assert!(matches!(gone, Failure::Uncertain(_)));
    }
}
