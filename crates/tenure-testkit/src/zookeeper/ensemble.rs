//! `Ensemble`: servers that elect a leader, with a bad network between them.

use std::{collections::HashMap, time::Duration};

use crate::{
    daemon::started,
    patience::eventually,
    ports,
    proxy::Proxy,
    zookeeper::server::{ZooKeeperServer, url},
};

/// Members that die with the test.
#[derive(Debug)]
pub struct Ensemble {
    members: Vec<ZooKeeperServer>,
    /// The proxy through which a member follows another one as its leader, if tests may cut that.
    links: HashMap<(usize, usize), Proxy>,
}

impl Ensemble {
    /// Starts this number of members, and waits until they have a leader.
    ///
    /// # Panics
    /// If they do not agree on one in time.
    pub fn start(count: usize) -> Self {
        Self::make(count, false)
    }

    /// The same, but each member follows its leader through a separate proxy: see [`link`](Self::link).
    ///
    /// # Panics
    /// If they do not agree on a leader in time.
    pub fn behind_proxies(count: usize) -> Self {
        Self::make(count, true)
    }

    fn make(count: usize, with_links: bool) -> Self {
        let ensemble = started("a member of the ensemble", TRIES, || Self::launch(count, with_links));
        eventually("all members serve", PATIENCE, || {
            let parts = ["follower", "leader"].map(|part| ensemble.playing(part).len());
            (parts == [count - 1, 1]).then_some(())
        });
        ensemble
    }

    /// Starts the members. The error is the end of the log of one that did not start, for example because its port
    /// was taken.
    fn launch(count: usize, with_links: bool) -> Result<Self, String> {
        let members: Vec<_> = (0..count).map(|id| ZooKeeperServer::member(id + 1)).collect();
        let doors: Vec<[u16; 2]> = members.iter().map(|_| [ports::free(false), ports::free(false)]).collect();
        let mut links = HashMap::new();
        for (from, member) in members.iter().enumerate() {
            let mut settings = String::new();
            for (to, [quorum, election]) in doors.iter().enumerate() {
                let mut quorum = *quorum;
                if with_links && from != to {
                    quorum = links.entry((from, to)).or_insert_with(|| Proxy::to(quorum, 0)).port();
                }
                settings += &format!("server.{}=127.0.0.1:{quorum}:{election}\n", to + 1);
            }
            member.add(&settings);
        }
        for member in &members {
            member.launch()?;
        }
        Ok(Self { members, links })
    }

    /// One of its servers.
    pub fn member(&self, index: usize) -> &ZooKeeperServer {
        &self.members[index]
    }

    /// The proxy through which a member follows another one while that is its leader.
    ///
    /// # Panics
    /// If the ensemble was started without proxies.
    pub fn link(&self, follower: usize, leader: usize) -> &Proxy {
        self.links.get(&(follower, leader)).expect("an ensemble that was started behind proxies")
    }

    /// Which member leads.
    ///
    /// # Panics
    /// If there is none in time.
    pub fn leader(&self) -> usize {
        eventually("there is a leader", PATIENCE, || self.playing("leader").first().copied())
    }

    /// Which members follow now.
    pub fn followers(&self) -> Vec<usize> {
        self.playing("follower")
    }

    fn playing(&self, part: &str) -> Vec<usize> {
        let plays = |index: &usize| self.members[*index].mode().as_deref() == Some(part);
        (0..self.members.len()).filter(plays).collect()
    }

    /// `127.0.0.1:PORT,127.0.0.1:PORT,…`.
    pub fn address(&self) -> String {
        self.members.iter().map(ZooKeeperServer::address).collect::<Vec<_>>().join(",")
    }

    /// The URL of locks on all of them, with its tick and the rest of the query, each as `&key=value`.
    pub fn url(&self, query: &str) -> String {
        url(&self.address(), query)
    }
}

/// How often to try: another process may take a port between the check and a member's start.
const TRIES: usize = 5;
/// How long an election may take.
const PATIENCE: Duration = Duration::from_secs(30);
