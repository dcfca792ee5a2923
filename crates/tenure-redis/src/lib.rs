#![doc = include_str!("../README.md")]

mod backend;
mod check;
mod client;
mod config;
mod connection;
mod diagnose;
mod error;
mod guard;
mod keys;
mod scan;
mod script;
mod sentinel;
mod session;
mod shared;
mod value;
mod wire;

pub use backend::Redis;
pub use config::{Config, ConfigError, GuardMode};
pub use guard::{
    Decision, Facts, GRACE, LINGER, LOOK, Predecessor, Record, Refusal, Terms, Why, decide, is_alone,
    renewals_wait,
};
