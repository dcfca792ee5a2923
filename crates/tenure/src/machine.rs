//! The machines: decisions without I/O, clock or runtime.

pub(crate) mod acquisition;
pub(crate) mod backoff;
pub(crate) mod hold;

#[cfg(test)]
mod acquisition_tests;
#[cfg(test)]
mod hold_tests;
#[cfg(test)]
mod hold_timeline_tests;

/// The events so far; printed when an assertion fails.
#[cfg(test)]
pub(crate) struct EventLog<E: std::fmt::Debug>(pub(crate) Vec<E>);

#[cfg(test)]
impl<E: std::fmt::Debug> Drop for EventLog<E> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after {:?}", self.0);
        }
    }
}
