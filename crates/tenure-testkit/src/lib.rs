//! What the tests of Tenure share: the conformance suite, a host with simulated time, a backend with gates, and real
//! servers behind bad networks and wrong clocks.
//!
//! Not published. A backend's `tests/conformance.rs` makes an [`Arena`](conformance::Arena) and calls
//! [`conformance!`], which runs every case. Each case tests only what the backend [promises](tenure_core::Promises).

#![allow(clippy::disallowed_methods, reason = "this crate is where tests get their time and tasks from")]

pub mod cells;
pub mod chance;
pub mod clock;
pub mod conformance;
pub mod daemon;
pub mod disk;
pub mod entry;
pub mod etcd;
mod folder;
pub mod gate;
pub mod host;
pub mod mysql;
pub mod patience;
pub mod polls;
pub mod ports;
pub mod postgres;
pub mod proxy;
pub mod readme;
pub mod redis;
pub mod rotation;
pub mod shared;
pub mod shim;
pub mod stepped;
pub mod tables;
pub mod zookeeper;
