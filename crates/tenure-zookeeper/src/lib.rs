#![doc = include_str!("../README.md")]

mod backend;
mod claim;
mod config;
mod diagnose;
mod directory;
mod doubts;
mod ensemble;
mod error;
mod holders;
mod leave;
mod life;
mod making;
mod memo;
mod node;
mod own_nodes;
mod pulse;
mod queue;
mod record;
mod renew;
mod session;
mod sessions;
mod store;
mod view;
mod wake;

pub use backend::ZooKeeper;
pub use config::{Access, Config, ConfigError, Layout};
