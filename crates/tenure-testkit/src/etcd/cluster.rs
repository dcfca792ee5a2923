//! `EtcdCluster`: several members that agree.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    daemon::started,
    etcd::{
        recipe::Recipe,
        server::{EtcdServer, url},
    },
    patience::{eventually, slowness},
};

/// Members that agree on one state and die with the test.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
}

impl Recipe {
    /// Starts a cluster of one server, and waits until it serves.
    ///
    /// # Panics
    /// If the program is missing, or it does not serve in time.
    pub fn start(self) -> EtcdServer {
        let cluster = self.start_cluster(1);
        cluster.into_only_member()
    }

    /// Starts a cluster with this number of members, and waits until all serve.
    ///
    /// # Panics
    /// If the program is missing, or they do not serve in time.
    pub fn start_cluster(self, size: usize) -> EtcdCluster {
        EtcdCluster::from_recipe(self, size)
    }
}

impl EtcdServer {
    /// Starts a server with defaults.
    pub fn start() -> Self {
        Recipe::new().start()
    }
}

impl EtcdCluster {
    /// Starts this number of members, with defaults.
    ///
    /// # Panics
    /// If the program is missing, or they do not serve in time.
    pub fn start(size: usize) -> Self {
        Recipe::new().start_cluster(size)
    }

    fn from_recipe(recipe: Recipe, size: usize) -> Self {
        let cluster = started("etcd", TRIES, || Self::try_start(&recipe, size));
        cluster.turn_authentication_on();
        cluster
    }

    fn try_start(recipe: &Recipe, size: usize) -> Result<Self, String> {
        let mut members: Vec<_> =
            (0..size).map(|number| EtcdServer::prepare(recipe.clone(), number)).collect();
        let all = members.iter().map(EtcdServer::as_member).collect::<Vec<_>>().join(",");
        for member in &mut members {
            member.members.clone_from(&all);
            // A member alone cannot serve yet.
            member.launch(|member| size > 1 && member.is_listening() || member.is_healthy())?;
        }
        let cluster = Self { members };
        let began = Instant::now();
        loop {
            if cluster.members.iter().all(EtcdServer::is_healthy) {
                return Ok(cluster);
            }
            let is_late = began.elapsed() > PATIENCE / 3 * slowness();
            // A port that was free may be taken by now.
            if let Some(member) = cluster.members.iter().find(|member| is_late || !member.is_running()) {
                return Err(member.last_words());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn turn_authentication_on(&self) {
        let Some(password) = &self.members[0].recipe.root else { return };
        let member = &self.members[0];
        let mut plain = member.recipe.clone();
        plain.root = None;
        for step in [&["user", "add", &format!("root:{password}")][..], &["auth", "enable"]] {
            let output = member.etcdctl_as(&plain, step).output().expect("etcdctl starts");
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "etcdctl {step:?}: {words}");
        }
    }

    fn into_only_member(mut self) -> EtcdServer {
        self.members.remove(0)
    }

    /// The members, in a fixed order.
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// One of them.
    ///
    /// # Panics
    /// If the cluster has no member with this index.
    pub fn member(&self, index: usize) -> &EtcdServer {
        &self.members[index]
    }

    /// `etcd://127.0.0.1:P,127.0.0.1:Q,…` with this query.
    pub fn url(&self, query: &str) -> String {
        url(&self.members[0].recipe, &self.address(), query)
    }

    /// `127.0.0.1:P,127.0.0.1:Q,…`.
    pub fn address(&self) -> String {
        self.members.iter().map(EtcdServer::address).collect::<Vec<_>>().join(",")
    }

    /// Which of these members is the leader. Waits until there is one. Leave out members that were killed or stopped.
    ///
    /// # Panics
    /// If there is none in time.
    pub fn leader(&self, among: &[usize]) -> usize {
        eventually("a cluster has a leader", PATIENCE, || {
            among.iter().copied().find(|&index| self.members[index].is_leader())
        })
    }
}

/// How often to try: another process may take a port between the check and the server's start.
const TRIES: usize = 10;
const PATIENCE: Duration = Duration::from_secs(30);
