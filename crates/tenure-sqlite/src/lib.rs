#![doc = include_str!("../README.md")]

mod backend;
mod clock;
mod config;
mod death;
mod diagnosis;
mod error;
mod file;
mod front;
mod guard;
mod link;
mod room;
mod schema;
mod sql;
mod store;
mod touch;
mod unsigned;
mod volume;
mod wake;

pub use backend::Sqlite;
pub use config::{Config, ConfigError};
pub use volume::Volume;
