//! A waiter that is written directly against the driver, for one lock: with the queue that is equal to Tenure's, and
//! with a list.

use std::time::Duration;

use redis::{Client, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tenure::backend::{Host, TokioHost};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::{
    cycles::{TTL, evalsha, patient},
    server::Server,
};

const CLAIM_TTL: Duration = Duration::from_millis(500);
const PLACE_TTL: Duration = Duration::from_secs(6);
/// A waiter asks again after this long whatever it hears.
const RETRY_MAX: Duration = Duration::from_secs(2);

const GATE: &str = "open";
const ONE: &str = "hand:one";
const LOCK: &str = "hand:turns";
const QUEUE: &str = "hand:turns:queue";
const PLACES: &str = "hand:turns:places";
const LIST_LOCK: &str = "hand:list";
const LIST: &str = "hand:list:queue";
const LIST_FENCE: &str = "hand:list:fence";

/// One process with a RESP3 connection and a channel of its own.
struct Line {
    connection: MultiplexedConnection,
    pushes: UnboundedReceiver<PushInfo>,
    process: String,
    claim: String,
    release: String,
}

impl Line {
    async fn connect(server: &Server, number: usize, claim: &str, release: &str) -> Self {
        let (sender, pushes) = unbounded_channel();
        let settings = patient().set_push_sender(sender);
        let client = Client::open(format!("{}?protocol=resp3", server.url())).expect("a URL");
        let mut connection =
            client.get_multiplexed_async_connection_with_config(&settings).await.expect("a connection");
        let process = format!("{number:016x}");
        connection.subscribe(format!("bench:{process}")).await.expect("a subscription");
        Self { connection, pushes, process, claim: server.load(claim), release: server.load(release) }
    }

    async fn ask(&mut self, call: &redis::Cmd) -> i64 {
        call.query_async(&mut self.connection).await.expect("the server answers")
    }

    /// The text of the next message.
    async fn message(&mut self) -> Vec<u8> {
        loop {
            let mut push = self.pushes.recv().await.expect("the connection lasts");
            if let (PushKind::Message, Some(Value::BulkString(text))) = (push.kind, push.data.pop()) {
                return text;
            }
        }
    }
}

/// A waiter in a queue that guarantees what Tenure's does.
pub(crate) struct Turns {
    line: Line,
    owner: String,
    claims: u64,
}

impl Turns {
    pub(crate) async fn connect(server: &Server, number: usize) -> Self {
        // Above what the scripts take for a counter that was lost.
        server.open_gate(ONE, GATE, 1_000_000_000_000_000);
        let claim = concat!(include_str!("scripts/queue.lua"), include_str!("scripts/queue.claim.lua"));
        let release = concat!(include_str!("scripts/queue.lua"), include_str!("scripts/queue.release.lua"));
        let line = Line::connect(server, number, claim, release).await;
        Self { line, owner: String::new(), claims: 0 }
    }

    async fn call(&mut self, hash: String, with: &[Duration]) -> i64 {
        let mut call = evalsha(&hash, &[LOCK, QUEUE, ONE, PLACES]);
        call.arg(GATE).arg(&self.owner).arg(CLAIM_TTL.as_millis() as u64);
        for duration in with {
            call.arg(duration.as_millis() as u64);
        }
        self.line.ask(&call).await
    }

    pub(crate) async fn acquire(&mut self) {
        self.claims += 1;
        self.owner = format!("{}{:032x}", self.line.process, self.claims);
        loop {
            let answer = self.call(self.line.claim.clone(), &[TTL, PLACE_TTL]).await;
            assert!(answer >= 0, "the gate is open");
            if answer > 0 {
                return;
            }
            self.wait().await;
        }
    }

    /// Until this claim is handed the lock, or it must look after itself.
    async fn wait(&mut self) {
        let mut until = TokioHost.now() + RETRY_MAX;
        loop {
            let left = until.remaining(TokioHost.now());
            let Ok(text) = tokio::time::timeout(left, self.line.message()).await else { return };
            match text.split_first() {
                Some((b'a', claim)) if *claim == self.owner.as_bytes()[16..] => return,
                Some((b'b', claim)) if *claim == self.owner.as_bytes()[16..] => {
                    until = TokioHost.now() + CLAIM_TTL;
                }
                _ => {}
            }
        }
    }

    pub(crate) async fn release(&mut self) {
        assert_eq!(self.call(self.line.release.clone(), &[]).await, 1, "held");
    }
}

/// A waiter in a list: nothing is done for who dies.
pub(crate) struct List {
    line: Line,
    owner: String,
}

impl List {
    pub(crate) async fn connect(server: &Server, number: usize) -> Self {
        let (claim, release) =
            (include_str!("scripts/list.claim.lua"), include_str!("scripts/list.release.lua"));
        // Others than those of the queue: the channel is named after the process.
        let line = Line::connect(server, 1_000_000 + number, claim, release).await;
        let owner = format!("{}{:032x}", line.process, 0);
        Self { line, owner }
    }

    async fn call(&mut self, hash: String) -> i64 {
        let mut call = evalsha(&hash, &[LIST_LOCK, LIST, LIST_FENCE]);
        call.arg(&self.owner).arg(TTL.as_millis() as u64);
        self.line.ask(&call).await
    }

    pub(crate) async fn acquire(&mut self) {
        if self.call(self.line.claim.clone()).await == 0 {
            self.line.message().await;
        }
    }

    pub(crate) async fn release(&mut self) {
        assert_eq!(self.call(self.line.release.clone()).await, 1, "held");
    }
}
