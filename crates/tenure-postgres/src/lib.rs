#![doc = include_str!("../README.md")]

mod config;
mod connect;
mod diagnose;
mod error;
mod schema;
mod session;
mod sql;
mod store;

pub use config::{ChannelBinding, Config, ConfigError, Listen, TlsMode};
pub use store::backend;
