#![doc = include_str!("../README.md")]

mod backend;
mod clock;
mod config;
mod diagnosis;
mod error;
mod file;
mod folder;
mod guard;
mod schema;
mod sql;
mod store;
mod wake;

pub use backend::Sqlite;
pub use config::{Config, ConfigError};
