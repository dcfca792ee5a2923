//! What the tests of the PostgreSQL backend share: servers with handles to them.

#![allow(dead_code, reason = "every test file uses its own part of the stage")]
#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

use std::sync::Arc;

use tenure::TokioHost;
use tenure_core::BackendHandle;
use tenure_postgres::{Config, Postgres};

/// A handle as one process has it.
pub(crate) fn postgres(url: &str) -> BackendHandle {
    Arc::new(Postgres::new(Config::from_url(url).unwrap(), Arc::new(TokioHost)))
}
