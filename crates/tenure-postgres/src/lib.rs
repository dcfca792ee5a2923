#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod connect;
mod diagnose;
mod doubt;
mod ears;
mod error;
mod line;
mod lines;
mod marks;
mod memory;
mod read;
mod renew;
mod schema;
mod shared;
mod sight;
mod sql;
mod stand;
mod step;
mod store;
mod tail;
mod tls;
mod trial;
mod turn;
mod verb;
mod view;
mod wake;
mod write;

pub use backend::Postgres;
pub use config::{Config, ConfigError};
