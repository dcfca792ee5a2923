//! The names of several locks: each once, and in the order in which every process takes them.

use std::time::Duration;

use crate::{
    error::{AcquireError, ConfigError},
    lock::Lock,
};

/// How many locks one claim may name: each costs at least one request, and is renewed.
pub(crate) const MOST: usize = 64;

/// Sorted by name. Processes that take several locks take them in this order, so that none waits for one that waits for
/// it: of all locks that somebody holds and somebody waits for, the holder of the last one waits for nobody.
pub(crate) fn in_order(locks: Vec<Lock>) -> Result<Vec<Lock>, ConfigError> {
    let mut locks = checked(locks)?;
    locks.sort_by(|one, other| one.name().ok().cmp(&other.name().ok()));
    Ok(locks)
}

/// Refuses what cannot be asked for: a bad name, the same name twice, none, too many, or one owner
/// for several leases.
pub(crate) fn checked(locks: Vec<Lock>) -> Result<Vec<Lock>, ConfigError> {
    let mut names = locks.iter().map(Lock::name).collect::<Result<Vec<_>, _>>()?;
    if names.is_empty() {
        return Err(ConfigError::NoNames);
    }
    if names.len() > MOST {
        return Err(ConfigError::TooManyNames { most: MOST });
    }
    if let Some(owner) = locks.iter().find_map(Lock::chosen_owner).filter(|_| names.len() > 1) {
        return Err(ConfigError::OwnerInUse { owner });
    }
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ConfigError::NameTwice { name: pair[0].clone() }),
        None => Ok(locks),
    }
}

/// The time that was waited is that for all of them.
pub(crate) fn of_all(error: AcquireError, all: Duration) -> AcquireError {
    match error {
        AcquireError::TimedOut { ahead, holder, .. } => AcquireError::TimedOut { waited: all, ahead, holder },
        other => other,
    }
}
