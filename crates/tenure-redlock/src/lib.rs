#![doc = include_str!("../README.md")]

mod backend;
mod ballot;
mod config;
mod error;
mod memory;
mod quorum;
mod view;
mod wake;

pub use backend::Redlock;
pub use config::{Config, QuorumError};
