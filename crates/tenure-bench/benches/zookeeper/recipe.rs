//! The recipe of ZooKeeper's manual, by hand: a node, a look, a watch on the one before it.

use zookeeper_client::{Acls, Client, CreateMode};

/// One who wants a lock, over a session that it may share.
#[derive(Clone)]
pub(crate) struct Recipe {
    client: Client,
    path: String,
}

impl Recipe {
    pub(crate) async fn new(client: Client, path: &str) -> Self {
        let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.mkdir(path, &open).await.expect("a directory");
        Self { client, path: path.to_owned() }
    }

    /// The path of the node that holds.
    pub(crate) async fn acquire(&self) -> String {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{}/lock-", self.path);
        let (_, sequence) = self.client.create(&prefix, b"", &options).await.expect("a node");
        let own = format!("lock-{sequence}");
        loop {
            let mut children = self.client.list_children(&self.path).await.expect("a list");
            children.sort_unstable();
            let at = children.iter().position(|child| *child == own).expect("our node");
            let Some(before) = at.checked_sub(1) else { break };
            let before = format!("{}/{}", self.path, children[before]);
            let (stat, watcher) = self.client.check_and_watch_stat(&before).await.expect("a look");
            if stat.is_some() {
                watcher.changed().await;
            }
        }
        format!("{}/{own}", self.path)
    }

    pub(crate) async fn release(&self, node: &str) {
        self.client.delete(node, None).await.expect("held");
    }
}
