//! `diagnose`: what about a server weakens what we promise.

use tenure_core::{BackendError, Finding};

use crate::backend::Redis;

impl Redis {
    pub(crate) async fn examine(&self) -> Result<Vec<Finding>, BackendError> {
        self.sessions.session().await?;
        Ok(Vec::new())
    }
}
