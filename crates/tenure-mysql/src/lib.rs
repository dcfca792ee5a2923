#![doc = include_str!("../README.md")]

mod answer;
mod config;
mod diagnose;
mod error;
mod schema;
mod session;
mod sql;
mod store;

pub use config::{Config, ConfigError, TlsMode};
pub use store::backend;
