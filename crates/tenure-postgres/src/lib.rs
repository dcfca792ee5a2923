#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod connect;
mod diagnose;
#[path = "../../tenure-cas/src/unacknowledged.rs"]
mod doubt;
mod ears;
mod error;
mod line;
mod lines;
#[path = "../../tenure-cas/src/own_places.rs"]
mod marks;
#[path = "../../tenure-cas/src/memory.rs"]
mod memory;
mod read;
#[path = "../../tenure-cas/src/renew.rs"]
mod renew;
mod schema;
mod shared;
#[path = "../../tenure-cas/src/snapshot.rs"]
mod sight;
mod sql;
#[path = "../../tenure-cas/src/stand.rs"]
mod stand;
#[path = "../../tenure-cas/src/step.rs"]
mod step;
mod store;
#[path = "../../tenure-cas/src/overflow.rs"]
mod tail;
mod tls;
mod trial;
#[path = "../../tenure-cas/src/keyed_mutex.rs"]
mod turn;
#[path = "../../tenure-cas/src/verb.rs"]
mod verb;
#[path = "../../tenure-cas/src/view.rs"]
mod view;
mod wake;
#[path = "../../tenure-cas/src/write.rs"]
mod write;

pub use backend::Postgres;
pub use config::{Config, ConfigError};
