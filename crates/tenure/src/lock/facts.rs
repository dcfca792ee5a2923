//! What is made of locks asks this of them.

use std::sync::Arc;

use tenure_core::{BackendError, ErrorKind, Host, LockView, Outcome, Promises};

use crate::{
    engine::{Engine, news::News},
    error::ConfigError,
    lock::Lock,
};

impl Lock {
    /// The name that was given, for people.
    pub(crate) fn named(&self) -> String {
        self.name.as_ref().map_or_else(ToString::to_string, ToString::to_string)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn host(&self) -> Arc<dyn Host> {
        self.engine.host.clone()
    }

    pub(crate) fn promises(&self) -> Promises {
        self.engine.backend.promises()
    }

    /// What the store shows of it.
    pub(crate) async fn inspect(&self) -> Result<LockView, BackendError> {
        let refused =
            |why: &ConfigError| BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, why.to_string());
        self.engine.inspect(self.name.as_ref().map_err(refused)?).await
    }

    /// What is told of it from now on; nothing if the store cannot be reached, or tells nothing.
    pub(crate) async fn news(&self) -> Option<News> {
        let news = self.engine.news(self.name.as_ref().ok()?).await;
        news.inspect_err(|error| tracing::debug!(%error, "nothing is heard of this lock")).ok().flatten()
    }

    /// Who asks, in one line for people.
    pub(crate) fn who(&self) -> String {
        self.options.label.to_string()
    }
}
