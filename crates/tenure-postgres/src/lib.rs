#![doc = include_str!("../README.md")]

mod backend;
mod cell;
mod clock;
mod config;
mod connect;
mod diagnose;
mod error;
mod hint;
mod read;
mod schema;
mod session;
mod sessions;
mod shared;
mod sql;
mod store;
mod tls;
mod trial;
mod wake;
mod write;

pub use backend::backend;
pub use config::{Config, ConfigError};
