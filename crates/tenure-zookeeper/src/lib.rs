#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod credentials;
mod diagnose;
mod error;
mod memo;
mod node;
mod own_nodes;
mod pulse;
mod queue;
mod session;
mod sessions;
mod store;
mod view;
mod wire;
mod words;

pub use backend::ZooKeeper;
pub use config::{Access, Config, ConfigError, Layout, Sasl};
