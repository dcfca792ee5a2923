//! What one server says of itself, read once: `INFO`, its clock, three settings.

use std::{collections::HashMap, time::Duration};

use redis::{Cmd, RedisResult};

use crate::{
    backend::Redis,
    wire::{Node, Wire},
};

/// What was read from one server. What could not be read is not there, and no finding is made of it.
#[derive(Default)]
pub(super) struct Server {
    pub(super) fields: HashMap<String, String>,
    /// Why a setting could not be read.
    pub(super) refusal: Option<String>,
    pub(super) clock: Clock,
    /// The URL says that it is a node of a Cluster.
    pub(super) is_node: bool,
    /// The user that asks.
    pub(super) user: Option<String>,
}

/// The server's clock against that of this machine.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock {
    pub(super) is_ahead: bool,
    /// The least difference: the time that the question took is taken off.
    pub(super) apart: Duration,
}

impl Server {
    pub(super) async fn read(wire: &Wire, node: &Node, redis: &Redis) -> RedisResult<Self> {
        let info: String = redis::from_redis_value(wire.ask_node(node, &redis::cmd("INFO")).await?)?;
        let mut server = Self::of(&info);
        server.is_node = redis.is_cluster();
        server.user.clone_from(&redis.config().login.user);
        if server.is_sentinel() {
            return Ok(server);
        }
        let host = redis.sessions.host();
        let asked = host.now();
        let time = wire.ask_node(node, &redis::cmd("TIME")).await?;
        let (seconds, micros) = redis::from_redis_value(time)?;
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
        server.clock = Clock::compare(theirs, asked.wall, asked.elapsed(host.now()));
        for name in ["save", "appendfsync", "repl-backlog-ttl"] {
            match wire.ask_node(node, Cmd::new().arg("CONFIG").arg("GET").arg(name)).await {
                Ok(answer) => {
                    server.fields.extend(redis::from_redis_value::<HashMap<String, String>>(answer)?);
                }
                Err(error) => server.refusal = Some(error.to_string()),
            }
        }
        Ok(server)
    }

    /// From the text that `INFO` answers.
    pub(super) fn of(info: &str) -> Self {
        let field = |line: &str| line.split_once(':').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self { fields: info.lines().filter_map(field).collect(), ..Self::default() }
    }

    pub(super) fn is_sentinel(&self) -> bool {
        self.text("redis_mode") == "sentinel"
    }

    /// A field of `INFO`, or a setting.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }
}

impl Clock {
    /// The server read its clock at some time on the way of the question, which took this long.
    pub(super) fn compare(theirs: Duration, ours: Duration, way: Duration) -> Self {
        let is_ahead = theirs > ours + way;
        let apart = if is_ahead { theirs.saturating_sub(ours + way) } else { ours.saturating_sub(theirs) };
        Self { is_ahead, apart }
    }
}
