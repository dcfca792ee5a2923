//! The schemes: the usual recipe, and with Tenure. A page shows the text that runs.

mod database;
mod ephemeral;
mod lock_row;
mod over_redis;
mod read_write_back;
mod redis;
mod tenure;
mod tenure_owned;

pub(crate) use database::Database;

use crate::protocol::{Client, Step};

/// A way to take a lock and to release it.
pub(crate) trait Scheme {
    /// Waits until it has the lock.
    fn lock(&mut self, me: &Client) -> Step;

    /// Releases it.
    fn unlock(&mut self, me: &Client) -> Step;

    /// Whether it treats the lock as held. Most schemes never check.
    fn believes(&mut self) -> bool {
        true
    }

    /// A number for the resource, if the scheme has one.
    fn token(&self) -> Option<u64> {
        None
    }

    /// The name of the holder in the store.
    fn alias(&self, me: &Client) -> String {
        me.name.clone()
    }

    /// Adds one to a number that is in the store. Whether that was done.
    fn add(&mut self, _me: &Client) -> Step<bool> {
        Err("this scheme has no number".into())
    }
}

/// A scheme, its name and its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    name: &'static str,
    /// The name of its type.
    type_name: &'static str,
    /// The file that has its type; of a script, all of it.
    text: &'static str,
    /// Makes one, connected.
    pub(crate) make: fn(&Client) -> Step<Box<dyn Scheme>>,
}

impl Named {
    /// The code of these functions of the scheme; of a script, all of it.
    pub(crate) fn code(&self, functions: &[&str]) -> String {
        let Some(begin) = self.text.find(&format!("impl Scheme for {} {{", self.type_name)) else {
            return self.text.to_owned();
        };
        let text = &self.text[begin..];
        let text = &text[..text.find("\n}\n").map_or(text.len(), |end| end + 1)];
        let function = |name: &&str| {
            let text = &text[text.find(&format!("    fn {name}("))?..];
            let lines = text[..text.find("\n    }\n")?].lines().chain(["    }"]);
            Some(lines.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect::<Vec<_>>().join("\n"))
        };
        functions.iter().filter_map(function).collect::<Vec<_>>().join("\n\n")
    }
}

/// The name of the scheme of Tenure that is played on the schedule of this one.
pub(crate) fn ours(naive: &str) -> &'static str {
    match naive {
        "flock" => "tenure_run",
        "lock_row" => "tenure_owned",
        _ => "tenure",
    }
}

/// The scheme of this name.
pub(crate) fn named(name: &str) -> Option<Named> {
    SCHEMES.iter().copied().find(|scheme| scheme.name == name)
}

macro_rules! scheme {
    ($name:literal, $file:ident, $type:ident) => {
        Named {
            name: $name,
            type_name: stringify!($type),
            text: include_str!(concat!("schemes/", stringify!($file), ".rs")),
            make: |me| Ok(Box::new($file::$type::new(me)?)),
        }
    };
    ($name:literal, $line:literal) => {
        Named {
            name: $name,
            type_name: "",
            text: $line,
            make: |_| Err("this scheme is a line of a script".into()),
        }
    };
}

/// One line per scheme.
const SCHEMES: &[Named] = &[
    scheme!("get_set", over_redis, GetSet),
    scheme!("set_forever", over_redis, SetForever),
    scheme!("setnx_expire", over_redis, SetnxExpire),
    scheme!("blind_del", over_redis, BlindDel),
    scheme!("get_del", over_redis, GetDel),
    scheme!("set_nx", over_redis, SetNx),
    scheme!("set_long", over_redis, SetLong),
    scheme!("watch", over_redis, Watch),
    scheme!("stamp", over_redis, Stamp),
    scheme!("watchdog", over_redis, Watchdog),
    scheme!("redlock", over_redis, Redlock),
    scheme!("read_write_back", read_write_back, ReadWriteBack),
    scheme!("ephemeral", ephemeral, Ephemeral),
    scheme!("lock_row", lock_row, LockRow),
    scheme!("flock", "flock --close job.lock ./work"),
    scheme!("tenure_run", "tenure run job -- ./work"),
    scheme!("tenure_owned", tenure_owned, TenureOwned),
    scheme!("tenure", tenure, Tenure),
];

/// The file of the rows that an addition changes.
pub(crate) const ROWS: &str = "stock.db";
