#![doc = include_str!("../README.md")]

mod anchor;
mod at_once;
mod backend;
mod clock;
mod config;
mod diagnosis;
mod error;
mod file;
mod folder;
mod front;
mod grants;
mod guard;
mod link;
mod lost_log;
mod migration;
mod names;
mod pauses;
mod places;
mod ranges;
mod schema;
mod sql;
mod step;
mod store;
mod touch;
mod wake;
mod written;

pub use backend::Sqlite;
pub use config::{Config, ConfigError};
