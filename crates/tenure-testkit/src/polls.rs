//! Futures that a test polls by hand: a number of times, or once.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};

/// Polls once; true if the future is still pending.
pub async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await
}

/// Polls a future `polls` times and then drops it. Returns its output if it was ready before.
pub async fn dropped_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                if left == 0 {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    })
    .await
}
