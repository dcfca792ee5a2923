//! What a caller chooses of a lock.

use std::{fmt::Display, time::Duration};

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBool, PyDict},
};
use tenure::{Lock, OwnerId, Priority};

/// A time as Python has it: a number of seconds, or a `timedelta`.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if value.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("a time is a number of seconds or a timedelta, and no bool"));
        }
        if let Ok(seconds) = value.extract::<f64>() {
            let duration = Duration::try_from_secs_f64(seconds);
            return duration
                .map(Self)
                .map_err(|_| PyValueError::new_err(format!("{seconds} is no time in seconds")));
        }
        value.extract::<Duration>().map(Self).map_err(|_| {
            PyValueError::new_err("a time is a number of seconds that is not negative, or such a timedelta")
        })
    }
}

/// The options of a lock that were chosen.
#[derive(Default)]
pub(crate) struct Settings {
    ttl: Option<Seconds>,
    wait: Option<Seconds>,
    max_hold: Option<Seconds>,
    min_hold: Option<Seconds>,
    linger: Option<Seconds>,
    patience: Option<Seconds>,
    keep_idle: Option<Seconds>,
    free_at_death: Option<bool>,
    fifo: bool,
    latest: bool,
    replace: bool,
    priority: Option<Priority>,
    take: Option<u32>,
    owner: Option<OwnerId>,
}

impl<'py> FromPyObject<'_, 'py> for Settings {
    type Error = PyErr;

    /// From the keywords of a call. `None` is as if it was left out.
    fn extract(keywords: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let mut settings = Self::default();
        for (key, value) in keywords.cast::<PyDict>()?.iter().filter(|(_, value)| !value.is_none()) {
            let key: String = key.extract()?;
            let invalid = |error: &dyn Display| PyValueError::new_err(format!("{key}: {error}"));
            match key.as_str() {
                "ttl" => settings.ttl = Some(value.extract()?),
                "wait" => settings.wait = Some(value.extract()?),
                "max_hold" => settings.max_hold = Some(value.extract()?),
                "min_hold" => settings.min_hold = Some(value.extract()?),
                "linger" => settings.linger = Some(value.extract()?),
                "patience" => settings.patience = Some(value.extract()?),
                "keep_idle" => settings.keep_idle = Some(value.extract()?),
                "free_at_death" => settings.free_at_death = Some(value.extract()?),
                "fifo" => settings.fifo = value.extract()?,
                "latest" => settings.latest = value.extract()?,
                "replace" => settings.replace = value.extract()?,
                "take" => settings.take = Some(value.extract()?),
                "priority" => {
                    let text: String = value.extract()?;
                    settings.priority = Some(text.parse::<Priority>().map_err(|error| invalid(&error))?);
                }
                "owner" => {
                    let text: String = value.extract()?;
                    settings.owner = Some(text.parse::<OwnerId>().map_err(|error| invalid(&error))?);
                }
                _ => return Err(PyTypeError::new_err(format!("a lock has no option {key:?}"))),
            }
        }
        Ok(settings)
    }
}

impl Settings {
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.map(|wait| wait.0)
    }

    /// The lock with these options; its own defaults where none is chosen.
    pub(crate) fn apply(&self, mut lock: Lock) -> Lock {
        let set = |lock: Lock, time: Option<Seconds>, set: fn(Lock, Duration) -> Lock| match time {
            Some(Seconds(time)) => set(lock, time),
            None => lock,
        };
        lock = set(lock, self.ttl, Lock::ttl);
        lock = set(lock, self.wait, Lock::within);
        lock = set(lock, self.max_hold, Lock::max_hold);
        lock = set(lock, self.min_hold, Lock::min_hold);
        lock = set(lock, self.linger, Lock::linger);
        lock = set(lock, self.patience, Lock::patience);
        lock = set(lock, self.keep_idle, Lock::keep_idle);
        if self.fifo {
            lock = lock.fifo();
        }
        if self.latest {
            lock = lock.latest();
        }
        if self.replace {
            lock = lock.replace();
        }
        if let Some(free_at_death) = self.free_at_death {
            lock = lock.free_at_death(free_at_death);
        }
        if let Some(permits) = self.take {
            lock = lock.take(permits);
        }
        if let Some(priority) = self.priority {
            lock = lock.priority(priority);
        }
        match self.owner {
            Some(owner) => lock.owner(owner),
            None => lock,
        }
    }
}
