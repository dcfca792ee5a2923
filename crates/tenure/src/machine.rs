//! The machines: decisions without I/O, clock or runtime.

pub(crate) mod acquisition;
pub(crate) mod backoff;
pub(crate) mod hold;
pub(crate) mod turns;

#[cfg(test)]
mod acquisition_tests;
#[cfg(test)]
mod acquisition_waiting_tests;
#[cfg(test)]
mod hold_tests;
#[cfg(test)]
mod hold_timeline_tests;
#[cfg(test)]
mod trail;
