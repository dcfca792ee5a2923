//! What a caller chooses of a lock.

use std::{fmt::Display, time::Duration};

use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBool, PyDict},
};
use tenure::{Lock, OwnerId, Priority};

use crate::errors::config;

/// A time as Python has it: a number of seconds, or a `timedelta`.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if value.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("a time is a number of seconds or a timedelta, and no bool"));
        }
        if let Ok(seconds) = value.extract::<f64>()
            && let Ok(duration) = Duration::try_from_secs_f64(seconds)
        {
            return Ok(Self(duration));
        }
        value.extract::<Duration>().map(Self).map_err(|_| {
            let given = value.repr().map_or_else(|_| "this".into(), |text| text.to_string());
            config(
                value.py(),
                &format!("{given} is no time: a number of seconds that is not negative, or such a timedelta"),
            )
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
            let invalid = |error: &dyn Display| config(value.py(), &format!("{key}: {error}"));
            let time = || {
                let time = value.extract::<Seconds>();
                time.map(Some).map_err(|error| match error.is_instance_of::<PyTypeError>(value.py()) {
                    true => error,
                    false => invalid(&error.value(value.py())),
                })
            };
            match key.as_str() {
                "ttl" => settings.ttl = time()?,
                "wait" => settings.wait = time()?,
                "max_hold" => settings.max_hold = time()?,
                "min_hold" => settings.min_hold = time()?,
                "linger" => settings.linger = time()?,
                "patience" => settings.patience = time()?,
                "keep_idle" => settings.keep_idle = time()?,
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
                other => {
                    let ours = match other {
                        "timeout" | "expire" | "expiry" => {
                            ": `ttl` says how long a renewal lasts, and `wait` how long to wait"
                        }
                        "blocking_timeout" | "acquire_timeout" => ": `wait` says how long to wait",
                        "blocking" => ": try_acquire() does not wait",
                        _ => "",
                    };
                    return Err(PyTypeError::new_err(format!("a lock has no option {key:?}{ours}")));
                }
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
