//! `Trail`: the events that led to a failed assertion.

use std::fmt::Debug;

/// The events so far; told when an assertion fails.
pub(super) struct Trail<E: Debug>(pub(super) Vec<E>);

impl<E: Debug> Drop for Trail<E> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after {:?}", self.0);
        }
    }
}
