//! What the tests of the Redis backend share: servers with handles to them.

pub(crate) mod entry;
pub(crate) mod frozen;
pub(crate) mod image;
pub(crate) mod naive;
pub(crate) mod pair;
pub(crate) mod reference;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tenure::backend::TokioHost;
use tenure_core::{BackendHandle, OwnerId, WakeEvent, WakeStream};
use tenure_redis::{Config, Redis};
use tenure_testkit::{
    clock::Clock,
    redis::{Recipe, RedisServer},
};

/// A handle as one process has it.
pub(crate) fn redis(url: &str) -> BackendHandle {
    Arc::new(Redis::new(Config::from_url(url).unwrap(), Arc::new(TokioHost)))
}

/// A handle to a server as one of so many nodes of a quorum.
pub(crate) fn node(url: &str, nodes: usize) -> Arc<Redis> {
    single(url, Some(nodes))
}

/// A handle to a server by itself, or as one of `nodes` nodes of a quorum.
pub(crate) fn single(url: &str, nodes: Option<usize>) -> Arc<Redis> {
    let config = Config::from_url(url).unwrap();
    let config = match nodes {
        Some(nodes) => config.in_quorum(nodes).unwrap(),
        None => config,
    };
    Arc::new(Redis::new(config, Arc::new(TokioHost)))
}

/// A server whose wall clock is ours to set.
pub(crate) struct Clocked {
    pub(crate) clock: Clock,
    pub(crate) server: RedisServer,
}

impl Clocked {
    pub(crate) fn new() -> Self {
        Self::with(Recipe::new())
    }

    pub(crate) fn with(recipe: Recipe) -> Self {
        let clock = Clock::new();
        let server = recipe.clock(&clock).start();
        Self { clock, server }
    }
}

/// How often the server ran each command, also in scripts.
pub(crate) fn calls(server: &RedisServer) -> BTreeMap<String, u64> {
    calls_of(&server.command(&["INFO", "commandstats"]).text())
}

/// The same, from what the server says.
pub(crate) fn calls_of(stats: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((command.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    stats.lines().filter_map(line).collect()
}

/// How many hints the server sent.
pub(crate) fn hints(server: &RedisServer) -> u64 {
    calls(server).get("publish").copied().unwrap_or(0)
}

/// The next hint to this owner; none within a moment is an error.
pub(crate) async fn hint(stream: &mut Box<dyn WakeStream>, owner: OwnerId) {
    let mine = async { while stream.next().await != WakeEvent::Owner(owner) {} };
    tokio::time::timeout(Duration::from_secs(10), mine).await.expect("no hint came");
}
