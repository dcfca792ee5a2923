//! `diagnose`: what weakens the promises of a Redis server, and what to do about it.
//!
//! A visit uses a connection that has passed no check, so that it also works where clients are refused. It looks at the
//! servers, at the record, at one lock of its own, and at the keys.

mod keys;
mod record;
mod rights;
mod server;
mod settings;

use std::{error::Error, time::Duration};

use redis::{Cmd, RedisResult, Value};
use tenure_core::{BackendError, Finding, Severity, shown};

use crate::{
    backend::Redis,
    config::GuardMode,
    error,
    guard::Terms,
    wire::{Node, Wire},
};
use server::Server;

struct Visit<'a> {
    redis: &'a Redis,
    wire: Wire,
    /// Messages are pushed over the same connection.
    resp3: bool,
    /// In a Cluster without a guard, whatever the URL says.
    terms: Terms,
    findings: Vec<Finding>,
}

impl Redis {
    pub(crate) async fn examine(&self) -> Result<Vec<Finding>, BackendError> {
        let (wire, resp3) = self.sessions.wire().await?;
        let mut terms = Terms::of(self.config());
        if self.is_cluster() {
            terms.mode = GuardMode::Off;
        }
        let mut visit = Visit { redis: self, wire, resp3, terms, findings: Vec::new() };
        let nodes = visit.wire.nodes().await.map_err(|error| visit.failed(error))?;
        if visit.servers(&nodes).await? {
            let session = visit.session().await;
            match session.as_deref() {
                Some(session) if session.gate().is_open() => visit.try_a_lock(session).await,
                Some(_) => visit.not_tried("until it grants again"),
                None => visit.not_tried("until the problem above is mended"),
            }
            visit.keys(&nodes, session.as_deref()).await;
        }
        Ok(visit.findings)
    }
}

impl Visit<'_> {
    fn say(&mut self, severity: Severity, what: impl AsRef<str>, remedy: impl AsRef<str>) {
        self.findings.push(finding(severity, what, remedy));
    }

    fn failed(&self, error: redis::RedisError) -> BackendError {
        error::asked(&self.redis.config().place_name(), error).1
    }

    /// The result of an attempt; a failure becomes a finding.
    fn tried<T>(&mut self, verb: &str, done: Result<T, BackendError>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                self.findings.push(self.refused(verb, &error));
                None
            }
        }
    }

    /// The answer to a command; a failure becomes a finding.
    async fn asked(&mut self, verb: &str, cmd: &Cmd) -> Option<Value> {
        let answer = self.wire.ask(cmd).await;
        self.read(verb, answer)
    }

    fn read<T>(&mut self, verb: &str, answer: RedisResult<T>) -> Option<T> {
        let answer = answer.map_err(|error| self.failed(error));
        self.tried(verb, answer)
    }

    fn not_tried(&mut self, until: &str) {
        let what = "the rights of this user were not tried: no lock can be taken here now";
        self.say(Severity::Note, what, format!("run `tenure doctor` again; nothing can be tried {until}"));
    }

    /// Looks at each server that keeps locks; false if a look at anything else is of no use.
    async fn servers(&mut self, nodes: &[Node]) -> Result<bool, BackendError> {
        let (mut found, mut is_right) = (Vec::new(), true);
        for node in nodes {
            let findings = match Server::read(&self.wire, node, self.redis).await {
                Ok(server) => {
                    is_right &= server.keeps_locks(&self.terms);
                    server.findings(&self.terms)
                }
                Err(error) if error.code() == Some("NOPERM") => {
                    is_right = false;
                    vec![self.refused("INFO and TIME", &self.failed(error))]
                }
                Err(error) => return Err(self.failed(error)),
            };
            found.extend(findings.into_iter().map(|finding| (node, finding)));
        }
        self.findings.extend(merged(found));
        Ok(is_right)
    }
}

/// Both texts may quote the server, or data of others.
fn finding(severity: Severity, what: impl AsRef<str>, remedy: impl AsRef<str>) -> Finding {
    let plain = |text: &str| shown(text).within(4096).to_string();
    Finding::new(severity, plain(what.as_ref()), plain(remedy.as_ref()))
}

/// A finding that several servers of a Cluster share is said once.
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

/// An error with the server's own words.
fn described(error: &BackendError) -> String {
    let words = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    shown(&format!("{error}{words}")).within(240).to_string()
}

/// `30s`, `1m 30s`; never finer than ms.
fn time(d: Duration) -> String {
    // OK because no duration here is anywhere near 2^64 ms.
    let ms = u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

/// A word of a shell command; text that a shell could take for more than a word is replaced.
fn word<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.:@%+=-".contains(c);
    let is_word = !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain);
    if is_word { text } else { otherwise }
}

#[cfg(test)]
#[path = "diagnose_tests.rs"]
mod tests;
