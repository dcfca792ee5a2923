//! ZooKeeper's recipe: an ephemeral node with a number; the smallest number holds.

use std::{thread, time::Duration};

use tokio::runtime::{Builder, Runtime};
use zookeeper_client::{Acls, CreateMode};

use crate::{
    protocol::{Client, Step},
    schemes::Scheme,
};

/// Holds as long as its session lives, and does not ask whether it does.
pub(crate) struct Ephemeral {
    runtime: Runtime,
    client: zookeeper_client::Client,
    node: String,
}

impl Ephemeral {
    pub(crate) fn new(me: &Client) -> Step<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let connector = zookeeper_client::Client::connector().with_session_timeout(me.ttl).connect(&me.url);
        let client = runtime.block_on(connector)?;
        let everybody = CreateMode::Persistent.with_acls(Acls::anyone_all());
        runtime.block_on(client.mkdir("/job", &everybody))?;
        Ok(Self { runtime, client, node: String::new() })
    }
}

impl Scheme for Ephemeral {
    fn lock(&mut self, _: &Client) -> Step {
        let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let made = self.client.create("/job/lock-", b"", &ephemeral);
        let (_, number) = self.runtime.block_on(made)?;
        self.node = format!("lock-{number}");
        loop {
            let nodes = self.runtime.block_on(self.client.list_children("/job"))?;
            if nodes.iter().min() == Some(&self.node) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn unlock(&mut self, _: &Client) -> Step {
        let node = format!("/job/{}", self.node);
        Ok(self.runtime.block_on(self.client.delete(&node, None))?)
    }

    fn alias(&self, _: &Client) -> String {
        self.node.replace('-', "")
    }
}
