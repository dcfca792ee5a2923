#![doc = include_str!("../README.md")]

mod backend;
mod check;
mod claim;
mod client;
mod config;
mod connection;
mod diagnose;
mod error;
mod gathering;
mod guard;
mod keys;
mod list;
mod memo;
mod plain;
mod quorum;
mod rewound;
mod scan;
mod script;
mod sentinel;
mod session;
mod shared;
mod together;
mod value;
mod wake;
mod wire;

pub use backend::Redis;
pub use config::{Config, ConfigError, GuardMode};
pub use guard::{
    Decision, Facts, GRACE, LINGER, LOOK, Predecessor, Record, Refusal, Terms, Why, decide, is_alone,
    renewals_wait,
};
