#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod diagnose;
mod error;
mod members;
mod memo;
mod owners;
mod queue;
mod view;
mod watch;

pub use backend::Etcd;
pub use config::{Config, ConfigError};
