//! `Contended`: the locks that had waiters when this process last read them.

use std::{collections::HashSet, sync::Mutex};

use tenure_core::{LockName, locked};

/// Names of locks that had waiters. A guess, which chooses the cheaper of two ways: nothing else depends on it.
pub struct Contended {
    most: usize,
    names: Mutex<HashSet<LockName>>,
}

impl Contended {
    /// For at most this many names; one more, and all are forgotten.
    pub fn new(most: usize) -> Self {
        Self { most, names: Mutex::default() }
    }

    /// Whether the lock had a waiter.
    pub fn is_contended(&self, name: &LockName) -> bool {
        locked(&self.names).contains(name)
    }

    /// The latest observation.
    pub fn set(&self, name: &LockName, is_contended: bool) {
        let mut names = locked(&self.names);
        if !is_contended {
            names.remove(name);
        } else if !names.contains(name) {
            if names.len() >= self.most {
                names.clear();
            }
            names.insert(name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_and_go_and_are_no_more_than_so_many() {
        let contended = Contended::new(2);
        let name = |text: &str| LockName::new(text).expect("a good name");
        for text in ["a", "b", "b"] {
            contended.set(&name(text), true);
        }
        assert!(contended.is_contended(&name("a")) && contended.is_contended(&name("b")));
        contended.set(&name("b"), false);
        assert!(!contended.is_contended(&name("b")));
        contended.set(&name("b"), true);
        contended.set(&name("c"), true);
        assert!(!contended.is_contended(&name("a")) && contended.is_contended(&name("c")));
    }
}
