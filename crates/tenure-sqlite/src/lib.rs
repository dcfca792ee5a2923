#![doc = include_str!("../README.md")]

mod anchor;
mod backend;
mod clock;
mod config;
mod diagnosis;
mod error;
mod file;
mod folder;
mod front;
mod guard;
mod link;
mod lost_log;
mod migration;
mod names;
mod pauses;
mod ranges;
mod schema;
mod sql;
mod store;
mod touch;
mod wake;

pub use backend::Sqlite;
pub use config::{Config, ConfigError};
