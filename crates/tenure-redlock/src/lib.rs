#![doc = include_str!("../README.md")]

mod ballot;
mod claim;
mod config;
mod member;
mod quorum;
mod redlock;
mod slots;
mod tally;
mod view;
mod wake;

pub use config::{Config, ConfigError};
pub use redlock::Redlock;
