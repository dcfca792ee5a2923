//! Findings about the ensemble and our assumptions.

use tenure_core::{BackendError, Finding};

use crate::session::Session;

pub(crate) async fn diagnose(_session: &Session) -> Result<Vec<Finding>, BackendError> {
    Ok(Vec::new())
}
