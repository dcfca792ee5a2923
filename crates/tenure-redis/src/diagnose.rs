//! `diagnose`: what about a server weakens what we promise, and what to do about it.
//!
//! It comes over a connection that has judged nothing, so that it works where clients are refused, and looks from the
//! outside in: the server, its record, one lock of our own, the keys.

mod rights;
mod server;
mod shown;
mod space;
mod standing;
mod state;

use redis::RedisError;
use tenure_core::{BackendError, Finding, Severity};

use crate::{
    backend::Redis,
    config::GuardMode,
    connect::{Node, Wire},
    error,
    guard::Terms,
};
use server::Server;

/// A look around over a connection that has judged nothing.
struct Visit<'a> {
    redis: &'a Redis,
    wire: Wire,
    /// Messages are pushed over the same connection.
    resp3: bool,
    place: String,
    /// A Cluster has no guard.
    terms: Terms,
    findings: Vec<Finding>,
}

impl Redis {
    pub(crate) async fn examine(&self) -> Result<Vec<Finding>, BackendError> {
        let (wire, resp3) = self.sessions.wire().await?;
        let (place, mut terms) = (self.config().place_name(), Terms::of(self.config()));
        if self.is_cluster() {
            terms.mode = GuardMode::Off;
        }
        let mut visit = Visit { redis: self, wire, resp3, place, terms, findings: Vec::new() };
        let nodes = visit.wire.nodes().await.map_err(|error| visit.failed(error))?;
        if !visit.servers(&nodes).await? {
            return Ok(visit.findings);
        }
        let standing = visit.standing().await;
        if let Some(session) = standing.session.as_deref() {
            if standing.may_grant {
                visit.try_a_lock(session).await;
            } else {
                visit.say(not_tried("until it grants again"));
            }
        } else if !visit.redis.is_cluster() {
            visit.say(not_tried("until the above is mended"));
        }
        visit.keys(nodes, standing.session.as_deref()).await;
        Ok(visit.findings)
    }
}

impl Visit<'_> {
    fn failed(&self, error: RedisError) -> BackendError {
        error::asked(&self.place, error).1
    }

    fn say(&mut self, found: impl IntoIterator<Item = Finding>) {
        self.findings.extend(found);
    }

    /// Looks at every server that holds locks; false if there is no use in going on.
    async fn servers(&mut self, nodes: &[Node]) -> Result<bool, BackendError> {
        let (mut found, mut is_right) = (Vec::new(), true);
        for node in nodes {
            match Server::read(&self.wire, node, self.redis.sessions.host()).await {
                Ok(server) => {
                    let wrong = server.wrong_place(self.redis.is_cluster());
                    is_right &= wrong.is_none();
                    let all = wrong.map_or_else(|| self.of_server(&server), |wrong| vec![wrong]);
                    found.extend(all.into_iter().map(|finding| (node, finding)));
                }
                Err(error) if error.code() == Some("NOPERM") => {
                    is_right = false;
                    let error = self.failed(error);
                    found.push((node, self.refused("INFO and TIME", &error)));
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.say(merged(found));
        Ok(is_right)
    }

    fn of_server(&self, server: &Server) -> Vec<Finding> {
        let mut found = server.findings(&self.terms);
        if !self.redis.is_cluster() {
            found.extend(server.backlog(&self.terms, self.redis.config().login.user.as_deref()));
        }
        found
    }
}

fn finding(severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::new(severity, what, remedy)
}

fn not_tried(until: &str) -> Option<Finding> {
    Some(finding(
        Severity::Note,
        "whether this user has all rights was not tried: no lock can be taken here now",
        format!("run `tenure doctor` again; nothing can be tried {until}"),
    ))
}

/// What several servers of a Cluster have in common is said once.
fn merged(found: Vec<(&Node, Finding)>) -> Vec<Finding> {
    let mut groups: Vec<(Vec<String>, Finding)> = Vec::new();
    for (node, finding) in found {
        let name = match node {
            Node::Here => String::new(),
            Node::At(host, port) => format!("{host}:{port}"),
        };
        match groups.iter_mut().find(|(_, known)| *known == finding) {
            Some((names, _)) => names.push(name),
            None => groups.push((vec![name], finding)),
        }
    }
    let named = |(names, mut finding): (Vec<String>, Finding)| {
        let names = names.join(", ");
        if !names.is_empty() {
            finding.what = format!("{names}: {}", finding.what);
        }
        finding
    };
    groups.into_iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_servers_of_a_cluster_have_in_common_is_said_once() {
        let nodes = [1, 2, 3].map(|port| Node::At("h".into(), port));
        let say = |what: &str| finding(Severity::Note, what, "do");
        let found = vec![(&nodes[0], say("a")), (&nodes[1], say("b")), (&nodes[2], say("a"))];
        let said: Vec<String> = merged(found).into_iter().map(|finding| finding.what).collect();
        assert_eq!(said, ["h:1, h:3: a", "h:2: b"]);
        assert_eq!(merged(vec![(&Node::Here, say("a"))]), [say("a")]);
    }
}
