//! All tests of this crate from outside, in one program, which is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and real servers and processes live in real time"
)]

mod access;
mod at_once;
mod cluster;
mod conformance;
mod diagnose;
mod differential;
mod foreign;
mod hazards_given;
mod hazards_promised;
mod hazards_recipe;
mod hazards_refusal;
mod hazards_server;
mod idle;
mod leftovers;
mod outcomes;
mod quorum;
mod regressions;
mod rewound;
mod sentinel;
mod stage;
