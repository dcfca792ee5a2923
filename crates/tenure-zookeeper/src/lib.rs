#![doc = include_str!("../README.md")]

mod backend;
mod claim;
mod config;
mod diagnose;
mod directory;
mod error;
mod faces;
mod leave;
mod life;
mod line;
mod node;
mod pulse;
mod record;
mod renew;
mod roster;
mod session;
mod sessions;
mod store;
mod view;
mod wake;

pub use backend::ZooKeeper;
pub use config::{Access, Config, ConfigError, Layout};
