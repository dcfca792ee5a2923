//! `Redis`: one connection of a client that knows nothing of Tenure.

use std::{
    thread,
    time::{Duration, Instant},
};

use redis::{Connection, ErrorKind, Value};

use crate::protocol::{Client, Step};

/// A connection, made when it is needed, and made again when it breaks.
pub(crate) struct Redis {
    me: Client,
    url: String,
    connection: Option<Connection>,
}

impl Redis {
    pub(crate) fn new(me: &Client) -> Self {
        Self::to(me, &me.url)
    }

    /// To one of several servers.
    pub(crate) fn to(me: &Client, url: &str) -> Self {
        Self { me: me.clone(), url: url.to_owned(), connection: None }
    }

    /// Asks until the server answers. Of its words, `job` is the lock, `me` the client, `ttl` the ms that a lock lasts, and
    /// `seconds` the same in seconds.
    pub(crate) fn ask(&mut self, words: &str) -> Step<Option<String>> {
        self.insist(|redis| redis.try_ask(words))
    }

    fn insist<T>(&mut self, mut ask: impl FnMut(&mut Self) -> Step<T>) -> Step<T> {
        let until = Instant::now() + PATIENCE;
        loop {
            match ask(self) {
                Err(error) if error.is::<Broken>() && Instant::now() < until => self.pause(),
                answer => return answer,
            }
        }
    }

    /// Asks once.
    pub(crate) fn try_ask(&mut self, words: &str) -> Step<Option<String>> {
        let mut command = redis::Cmd::new();
        for word in words.split(' ') {
            command.arg(self.meant(word));
        }
        self.send(&command)
    }

    fn send(&mut self, command: &redis::Cmd) -> Step<Option<String>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect(&self.url)?),
        };
        match command.query::<Value>(connection) {
            Ok(value) => Ok(text(value)),
            Err(error) if error.kind() == ErrorKind::Io || error.is_unrecoverable_error() => {
                self.connection = None;
                Err(Box::new(Broken(error.to_string())))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the answer is OK, or 1.
    pub(crate) fn is_yes(&mut self, words: &str) -> Step<bool> {
        Ok(matches!(self.ask(words)?.as_deref(), Some("OK" | "1")))
    }

    /// Compares and deletes in one step: `if GET job == me then DEL job`.
    pub(crate) fn delete_if_mine(&mut self) -> Step {
        self.insist(Self::try_delete_if_mine)
    }

    /// The same, asked once.
    pub(crate) fn try_delete_if_mine(&mut self) -> Step {
        self.if_mine("return redis.call('DEL', KEYS[1])")
    }

    /// Compares and renews in one step: `if GET job == me then PEXPIRE job ttl`.
    pub(crate) fn renew_if_mine(&mut self) -> Step {
        self.if_mine("return redis.call('PEXPIRE', KEYS[1], ARGV[2])")
    }

    fn if_mine(&mut self, then: &str) -> Step {
        let script = format!("if redis.call('GET', KEYS[1]) == ARGV[1] then {then} end");
        let ttl = self.me.ttl.as_millis().to_string();
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(1).arg(&self.me.lock).arg(&self.me.name).arg(ttl);
        self.send(&command).map(|_| ())
    }

    /// Waits for a moment, as most recipes do.
    pub(crate) fn pause(&self) {
        thread::sleep(PAUSE);
    }

    /// What this client writes into the lock.
    pub(crate) fn me(&self) -> Option<String> {
        Some(self.me.name.clone())
    }

    fn meant(&self, word: &str) -> String {
        match word {
            "job" => self.me.lock.clone(),
            "me" => self.me.name.clone(),
            "ttl" => self.me.ttl.as_millis().to_string(),
            "seconds" => self.me.ttl.as_secs().max(1).to_string(),
            word => word.to_owned(),
        }
    }
}

/// The connection broke, or there is none.
#[derive(Debug)]
struct Broken(String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the connection broke: {}", self.0)
    }
}

impl std::error::Error for Broken {}

fn connect(url: &str) -> Step<Connection> {
    let client = redis::Client::open(url)?;
    let connection = client.get_connection_with_timeout(PATIENCE);
    let connection = connection.map_err(|error| Box::new(Broken(error.to_string())))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// A number or a text as a text; nothing as nothing.
fn text(value: Value) -> Option<String> {
    match value {
        Value::Nil => None,
        Value::Int(number) => Some(number.to_string()),
        Value::Okay => Some("OK".into()),
        Value::SimpleString(text) => Some(text),
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        other => Some(format!("{other:?}")),
    }
}

const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(30);
