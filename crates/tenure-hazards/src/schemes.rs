//! The schemes: as everybody writes them, and with Tenure. What a page shows of one is the text that runs.

mod blind_del;
mod ephemeral;
mod get_del;
mod get_set;
mod read_write_back;
mod redis;
mod redlock;
mod set_forever;
mod set_long;
mod set_nx;
mod setnx_expire;
mod stamp;
mod tenure;
mod watch;
mod watchdog;

use crate::protocol::{Client, Step};

/// A way to take a lock and to give it back.
pub(crate) trait Scheme {
    /// Waits until it has the lock.
    fn lock(&mut self, me: &Client) -> Step;

    /// Gives it back.
    fn unlock(&mut self, me: &Client) -> Step;

    /// Whether it believes that it has the lock. Most schemes never ask.
    fn believes(&mut self) -> bool {
        true
    }

    /// A number for the resource, if the scheme has one.
    fn token(&self) -> Option<u64> {
        None
    }

    /// What the store calls the holder.
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
    text: &'static str,
    /// Makes one, connected.
    pub(crate) make: fn(&Client) -> Step<Box<dyn Scheme>>,
}

impl Named {
    /// The code of these functions of the scheme; of a script, all of it.
    pub(crate) fn code(&self, functions: &[&str]) -> String {
        if !self.text.contains("impl Scheme for") {
            return self.text.trim_end().to_owned();
        }
        let function = |name: &&str| {
            let text = &self.text[self.text.find(&format!("    fn {name}("))?..];
            let lines = text[..text.find("\n    }\n")?].lines().chain(["    }"]);
            Some(lines.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect::<Vec<_>>().join("\n"))
        };
        functions.iter().filter_map(function).collect::<Vec<_>>().join("\n\n")
    }
}

/// The scheme of this name.
pub(crate) fn named(name: &str) -> Option<Named> {
    SCHEMES.iter().copied().find(|scheme| scheme.name == name)
}

macro_rules! scheme {
    ($name:literal, $make:expr) => {
        Named {
            name: $name,
            text: include_str!(concat!("schemes/", $name, ".rs")),
            make: |me| Ok(Box::new($make(me))),
        }
    };
}

/// One line per scheme.
const SCHEMES: &[Named] = &[
    scheme!("get_set", get_set::GetSet::new),
    scheme!("set_forever", set_forever::SetForever::new),
    scheme!("setnx_expire", setnx_expire::SetnxExpire::new),
    scheme!("stamp", stamp::Stamp::new),
    scheme!("blind_del", blind_del::BlindDel::new),
    scheme!("get_del", get_del::GetDel::new),
    scheme!("watch", watch::Watch::new),
    scheme!("set_nx", set_nx::SetNx::new),
    scheme!("watchdog", watchdog::Watchdog::new),
    scheme!("set_long", set_long::SetLong::new),
    scheme!("redlock", redlock::Redlock::new),
    Named {
        name: "read_write_back",
        text: include_str!("schemes/read_write_back.rs"),
        make: |me| Ok(Box::new(read_write_back::ReadWriteBack::new(me)?)),
    },
    Named {
        name: "ephemeral",
        text: include_str!("schemes/ephemeral.rs"),
        make: |me| Ok(Box::new(ephemeral::Ephemeral::new(me)?)),
    },
    Named { name: "flock", text: include_str!("schemes/flock.sh"), make: |_| Err(A_SCRIPT.into()) },
    Named { name: "tenure_run", text: include_str!("schemes/tenure_run.sh"), make: |_| Err(A_SCRIPT.into()) },
    Named {
        name: TENURE,
        text: include_str!("schemes/tenure.rs"),
        make: |me| Ok(Box::new(tenure::Tenure::new(me)?)),
    },
];

/// The name of the scheme that all others are held against.
pub(crate) const TENURE: &str = "tenure";
/// The file of the rows that an addition changes.
pub(crate) const ROWS: &str = "stock.db";
const A_SCRIPT: &str = "this scheme is a line of a script";
