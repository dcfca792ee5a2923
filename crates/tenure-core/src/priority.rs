//! `Priority`: the class of a waiter in the queue of a lock.

use std::{error::Error, fmt, str::FromStr};

/// The class of a waiter. A client of a higher class is granted the lock before those of lower ones; within a class, the order is
/// that of arrival.
///
/// Of [nine grants](Self::PASSED_MAX) to waiters in a row, one goes to the client that has waited longest, of whatever class. So no
/// client waits indefinitely.
// L7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Priority {
    /// Behind all others.
    Low,
    /// The default, and the class of clients that know none.
    #[default]
    Normal,
    /// Before `normal`.
    High,
    /// Before all others.
    Urgent,
}

impl Priority {
    /// All classes, the first one to be granted first.
    pub const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];

    /// After this many grants in a row the next one goes to the client that has waited longest: 8.
    pub const PASSED_MAX: u32 = 8;

    /// True for the class of a claim that names none.
    pub fn is_normal(&self) -> bool {
        *self == Self::Normal
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Urgent => "urgent",
        })
    }
}

/// A text that names no priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityError;

impl fmt::Display for PriorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a priority is low, normal, high or urgent")
    }
}

impl Error for PriorityError {}

impl FromStr for Priority {
    type Err = PriorityError;

    fn from_str(text: &str) -> Result<Self, PriorityError> {
        Self::ALL.into_iter().find(|class| class.to_string() == text).ok_or(PriorityError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ordered_and_read_as_they_are_printed() {
        assert!(Priority::ALL.is_sorted_by(|a, b| a > b));
        for class in Priority::ALL {
            assert_eq!(class.to_string().parse(), Ok(class));
        }
        assert_eq!("Urgent".parse::<Priority>(), Err(PriorityError));
    }
}
