#![doc = include_str!("../README.md")]

mod backend;
mod claim;
mod config;
mod diagnose;
mod error;
mod horizon;
mod keys;
mod lease;
mod leave;
mod line;
mod members;
mod renew;
mod requests;
mod seats;
mod view;
mod wake;
mod watch;

pub use backend::Etcd;
pub use config::{Config, ConfigError};
