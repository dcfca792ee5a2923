#![doc = include_str!("../README.md")]

mod backend;
mod ballot;
mod claim;
mod config;
mod error;
mod member;
mod memo;
mod memory;
mod nodes;
mod quorum;
mod release;
mod renew;
mod slots;
mod tally;
mod view;
mod wake;

pub use backend::Redlock;
pub use config::{Config, ConfigError};
