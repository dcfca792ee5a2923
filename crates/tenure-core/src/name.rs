//! `LockName`: the name of a lock, checked once.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters.
///
/// Cheap to clone. The maximum length keeps a name usable as a key, a column value and a part of a path on every
/// backend.
///
/// ```
/// use tenure_core::LockName;
/// assert_eq!("orders/42".parse::<LockName>().unwrap().as_str(), "orders/42");
/// assert!("".parse::<LockName>().is_err());
/// assert!("two\nlines".parse::<LockName>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Checks a name.
    ///
    /// # Errors
    /// [`NameError`] with the rule that the name breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(NameError::TooLong { bytes: name.len() });
        }
        match name.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, c)) => Err(NameError::Control { at, code: c as u32 }),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LockName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl From<LockName> for String {
    fn from(name: LockName) -> Self {
        name.as_str().to_owned()
    }
}

impl TryFrom<String> for LockName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Why a text is not a [`LockName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("a lock name must not be empty")]
    Empty,
    /// Longer than [`LockName::MAX_BYTES`].
    #[error("a lock name has at most {max} bytes; this one has {bytes}", max = LockName::MAX_BYTES)]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// A control character, such as a line break or an escape sequence.
    #[error("a lock name must not contain control characters; byte {at} starts U+{code:04X}")]
    Control {
        /// Byte offset of the character.
        at: usize,
        /// Its code point.
        code: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_fits_and_one_byte_more_does_not() {
        assert!(LockName::new("n".repeat(512)).is_ok());
        assert_eq!(LockName::new("n".repeat(513)), Err(NameError::TooLong { bytes: 513 }));
        assert_eq!(LockName::new("é".repeat(257)), Err(NameError::TooLong { bytes: 514 }));
    }

    #[test]
    fn control_characters_are_refused_wherever_they_stand() {
        for bad in ["a\0", "\x1b[31m", "tab\there", "del\u{7f}", "c1\u{85}"] {
            assert!(matches!(LockName::new(bad), Err(NameError::Control { .. })), "{bad:?}");
        }
        assert!(LockName::new("ünïcode and spaces").is_ok());
    }
}
