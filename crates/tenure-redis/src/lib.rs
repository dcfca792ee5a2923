#![doc = include_str!("../README.md")]

mod backend;
mod check;
mod claim;
mod client;
mod cluster;
mod config;
mod connect;
mod connection;
mod diagnose;
mod error;
mod gathering;
mod guard;
mod hint;
mod keys;
mod known;
mod list;
mod memo;
mod plain;
mod quorum;
mod reply;
mod rewound;
mod scan;
mod script;
mod sentinel;
mod session;
mod shared;
mod together;
mod unanswered;
mod value;
mod wake;

pub use backend::Redis;
pub use config::{Config, ConfigError, GuardMode};
pub use guard::{
    Decision, Facts, GRACE, LINGER, LOOK, Predecessor, Record, Refusal, Terms, Why, decide, is_alone,
    renewals_wait,
};
