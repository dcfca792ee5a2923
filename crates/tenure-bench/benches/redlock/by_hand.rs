//! A bare quorum: the fenced pair of scripts on each node at once, and the first majority of answers. No gate, no queue, no tidying
//! up after a node that is late.

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::aio::MultiplexedConnection;

use crate::{
    TTL,
    cycles::{evalsha, patient},
    server::Server,
};

/// One lock of it, over connections that all locks share.
#[derive(Clone)]
pub(crate) struct ByHand {
    nodes: Vec<MultiplexedConnection>,
    acquire: String,
    release: String,
    lock: String,
    fence: String,
    owner: String,
}

/// As many locks.
pub(crate) async fn connect(servers: &[Server], locks: usize) -> Vec<ByHand> {
    let (mut nodes, mut hashes) = (Vec::new(), (String::new(), String::new()));
    for server in servers {
        let client = redis::Client::open(server.url()).expect("a URL");
        let connection = client.get_multiplexed_async_connection_with_config(&patient()).await;
        nodes.push(connection.expect("a connection"));
        let acquire = server.load(include_str!("../redis/scripts/cycle.acquire.lua"));
        hashes = (acquire, server.load(include_str!("../redis/scripts/cycle.release.lua")));
    }
    let (acquire, release) = hashes;
    let lock = |number| ByHand {
        nodes: nodes.clone(),
        acquire: acquire.clone(),
        release: release.clone(),
        lock: format!("hand/{number}"),
        fence: format!("hand/{number}/fence"),
        owner: format!("{number:048x}"),
    };
    (0..locks).map(lock).collect()
}

impl ByHand {
    /// Acquires and releases.
    pub(crate) async fn cycle(&mut self) {
        let mut call = evalsha(&self.acquire, &[&self.lock, &self.fence]);
        call.arg(&self.owner).arg(TTL.as_millis() as u64);
        self.on_most(&call).await;
        let mut call = evalsha(&self.release, &[&self.lock]);
        call.arg(&self.owner);
        self.on_most(&call).await;
    }

    async fn on_most(&mut self, call: &redis::Cmd) {
        let most = self.nodes.len() / 2 + 1;
        let mut asked: FuturesUnordered<_> =
            self.nodes.iter_mut().map(|node| call.query_async::<u64>(node)).collect();
        let mut done = 0;
        while done < most {
            let answer = asked.next().await.expect("a majority answers").expect("the server answers");
            done += usize::from(answer > 0);
        }
    }
}
