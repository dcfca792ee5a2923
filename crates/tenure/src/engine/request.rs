//! One request to the store, with a time-out.

use std::time::Duration;

use tenure_core::{BackendError, ErrorKind, Host, Moment, Outcome};

/// Asks once, and again only while the store says that it is busy with others for a moment.
///
/// # Errors
/// The store's own, or `TimedOut` with an unknown outcome when no answer came in time.
pub(crate) async fn request<A, F>(
    host: &dyn Host,
    sent_at: Moment,
    timeout: Duration,
    mut ask: impl FnMut() -> F,
) -> Result<A, BackendError>
where
    F: Future<Output = Result<A, BackendError>>,
{
    let mut over = host.sleep_until(sent_at + timeout);
    loop {
        let answer = tokio::select! {
            biased;
            answer = ask() => answer,
            () = &mut over => return Err(unanswered(timeout)),
        };
        let error = match answer {
            Err(error) if error.kind() == ErrorKind::Throttled => error,
            answer => return answer,
        };
        let again = host.now() + error.retry_hint().unwrap_or(Duration::from_millis(1));
        if sent_at.elapsed(again) >= timeout {
            return Err(error);
        }
        host.sleep_until(again).await;
    }
}

fn unanswered(timeout: Duration) -> BackendError {
    let message = format!("the store did not answer within {timeout:.1?}");
    BackendError::new(ErrorKind::TimedOut, Outcome::Unknown, message)
}
