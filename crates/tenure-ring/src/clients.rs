//! The clients of other libraries that the ring meets.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// A client, and the program here that contends with it.
///
/// The program gets its own first words, and then PORT NAME MS PAUSE COUNTER. It connects, prints `ready` and waits for a
/// line. For MS milliseconds it acquires the lock (it asks again after 2 ms), holds it for 1 to 5 ms, releases it, and
/// sleeps for PAUSE milliseconds. At the end it prints its entries and the violations that it saw.
///
/// The referee is a counter on the same server. A holder adds 1 to it over another connection and must read 1. Before the
/// release it subtracts 1 and must read 0.
#[derive(Debug)]
pub(crate) struct Client {
    /// As the page names it.
    pub(crate) name: &'static str,
    /// What it writes for the lock `NAME`.
    pub(crate) layout: &'static str,
    /// Its key for the lock `NAME`.
    key: &'static str,
    /// The program and its first words. It is relative to the programs here, or with a `:` in front to the folder of
    /// installed clients.
    words: &'static [&'static str],
    /// The variable by which it finds its library, and its value below the folder of installed clients.
    search: Option<(&'static str, &'static str)>,
}

pub(crate) const CLIENTS: &[Client] = &[
    Client {
        name: "symfony/lock 5.4 (PHP)",
        layout: "a sorted set with an expiry",
        key: "NAME",
        words: &["php", "contender.php"],
        search: None,
    },
    Client {
        name: "redis 4.8 (Ruby), recipe",
        layout: "a text under the name",
        key: "NAME",
        words: &["ruby", "contender.rb"],
        search: None,
    },
    Client {
        name: "redigo (Go), recipe",
        layout: "a text under the name",
        key: "NAME",
        words: &[":ring-go/contender"],
        search: None,
    },
    Client {
        name: "redis-py 8.1 (Python)",
        layout: "a text under the name",
        key: "NAME",
        words: &["python3", "contender.py", "redis-py"],
        search: Some(("PYTHONPATH", "ring-python")),
    },
    Client {
        name: "python-redis-lock 4.0 (Python)",
        layout: "a text under `lock:NAME`, a list",
        key: "lock:NAME",
        words: &["python3", "contender.py", "python-redis-lock"],
        search: Some(("PYTHONPATH", "ring-python")),
    },
    Client {
        name: "redlock 5.0.0-beta.2 (npm)",
        layout: "a text under the name",
        key: "NAME",
        words: &["node", "contender.cjs", "redlock"],
        search: Some(("NODE_PATH", "ring-node/node_modules")),
    },
    Client {
        name: "redis-semaphore 5.8 (npm)",
        layout: "a text under `mutex:NAME`",
        key: "mutex:NAME",
        words: &["node", "contender.cjs", "redis-semaphore"],
        search: Some(("NODE_PATH", "ring-node/node_modules")),
    },
];

impl Client {
    /// The setting with which Tenure shares its locks; empty if none is needed.
    pub(crate) fn setting(&self) -> String {
        match self.key {
            "NAME" => String::new(),
            key => format!("key={}", key.replace("NAME", "%s")),
        }
    }

    /// The words before those that every program gets.
    pub(crate) fn command(&self, installed: &Path) -> Command {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let (program, words) = self.words.split_first().expect("BUG: a client has a program");
        let mut command = match program.strip_prefix(':') {
            Some(built) => Command::new(installed.join(built)),
            None => Command::new(program),
        };
        command.args(words).current_dir(programs).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some((variable, folder)) = self.search {
            command.env(variable, installed.join(folder));
        }
        command
    }
}
