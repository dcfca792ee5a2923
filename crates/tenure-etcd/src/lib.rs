#![doc = include_str!("../README.md")]

mod backend;
mod claim;
mod config;
mod diagnose;
mod error;
mod keys;
mod lease;
mod leave;
mod members;
mod memo;
mod note;
mod owners;
mod queue;
mod renew;
mod requests;
mod view;
mod wake;
mod watch;
mod watermark;

pub use backend::Etcd;
pub use config::{Config, ConfigError};
