#![doc = include_str!("../README.md")]

mod backend;
mod batch;
mod client;
mod cluster;
mod config;
mod connection;
mod diagnose;
mod error;
mod gate;
mod guard;
mod health;
mod hints;
mod keys;
mod record;
mod scan;
mod script;
mod sentinel;
mod session;
mod shared;
mod slot_map;
mod value;

pub use backend::Redis;
pub use config::{Config, ConfigError, GuardMode, Topology};
pub use guard::{
    ClientRefusal, Decision, ForeignTerms, GRACE, LINGER, LOOK, Predecessor, RecordedTerms, ServerFacts,
    ServerRecord, Terms, Why, decide, is_alone, is_recent, renewals_wait,
};
