//! All tests of this crate from outside, in one program, which is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and real servers and processes live in real time"
)]

mod conformance;
mod faults;
mod hostile;
mod input;
mod layouts;
mod ownership;
mod partition;
mod regressions;
#[cfg(feature = "sasl")]
mod sasl;
mod stage;
#[cfg(feature = "tls")]
mod tls;
