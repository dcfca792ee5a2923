//! What all builders end with: a connected store.

use std::time::Duration;

/// `connect` and `connect_blocking` of a builder that says its `url`.
macro_rules! connects {
    ($store:ident) => {
        impl $store {
            /// Connects to the store, as [`connect`](crate::connect) does: nothing is sent yet where the backend can do
            /// without.
            ///
            /// # Errors
            /// [`ConfigError`](crate::ConfigError) names the setting that is wrong, and never a password.
            ///
            /// # Cancel safety
            /// Dropping the future leaves no trace.
            pub async fn connect(&self) -> Result<crate::Locker, crate::ConfigError> {
                crate::connect(&self.url()?).await
            }

            /// Connects to the store for a program without a runtime.
            ///
            /// # Errors
            /// As [`connect`](Self::connect), and if no thread can be started.
            pub fn connect_blocking(&self) -> Result<crate::blocking::Locker, crate::ConfigError> {
                crate::blocking::connect(&self.url()?)
            }
        }
    };
}

pub(super) use connects;

/// A duration as a URL has it.
pub(super) fn duration(value: Duration) -> String {
    let is_whole = value.subsec_nanos().is_multiple_of(1_000_000);
    if is_whole { format!("{}ms", value.as_millis()) } else { format!("{}ns", value.as_nanos()) }
}
