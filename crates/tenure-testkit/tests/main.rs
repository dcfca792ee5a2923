//! All tests of this crate from outside, in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod clock;
mod cluster;
mod completeness;
mod etcd;
mod postgres;
mod proxy;
mod redis;
mod sentinels;
mod zookeeper;
