//! `Scan`: a walk over the keys of all servers, in steps that hold up none of them.

use redis::RedisResult;

use crate::connection::{LockNode, Wire};

/// Keys that one step reads.
pub(crate) const STEP: usize = 500;

/// A walk over the keys that match a pattern.
pub(crate) struct Scan {
    wire: Wire,
    nodes: Vec<LockNode>,
    pattern: String,
    /// Steps on one server, and keys in all, after which it ends.
    most: (usize, usize),
    cursor: u64,
    /// On this server.
    steps: usize,
    /// Keys that matched.
    seen: usize,
    is_cut: bool,
}

impl Scan {
    pub(crate) fn new(wire: &Wire, nodes: &[LockNode], pattern: String) -> Self {
        Self {
            wire: wire.clone(),
            nodes: nodes.to_vec(),
            pattern,
            most: (usize::MAX, usize::MAX),
            cursor: 0,
            steps: 0,
            seen: 0,
            is_cut: false,
        }
    }

    /// Ends early: after `steps` steps on one server, or `keys` keys in all.
    pub(crate) fn at_most(self, steps: usize, keys: usize) -> Self {
        Self { most: (steps, keys), ..self }
    }

    /// The keys of the next step; nothing at the end.
    pub(crate) async fn next(&mut self) -> RedisResult<Option<Vec<Vec<u8>>>> {
        let Some(node) = self.nodes.last() else { return Ok(None) };
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(self.cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(STEP);
        let (cursor, keys): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(self.wire.ask_node(node, &cmd).await?)?;
        (self.cursor, self.steps, self.seen) = (cursor, self.steps + 1, self.seen + keys.len());
        let is_done = cursor == 0;
        if is_done || self.steps >= self.most.0 {
            self.is_cut |= !is_done;
            (self.cursor, self.steps) = (0, 0);
            self.nodes.pop();
        }
        if self.seen >= self.most.1 && !self.nodes.is_empty() {
            self.is_cut = true;
            self.nodes.clear();
        }
        Ok(Some(keys))
    }

    /// How many keys were seen, and of which pattern, if it ended early.
    pub(crate) fn cut(&self) -> Option<(usize, &str)> {
        self.is_cut.then_some((self.seen, self.pattern.as_str()))
    }
}

/// The text with each character of a pattern escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_a_prefix_matches_it_literally() {
        assert_eq!(escaped("a*b[c]?\\"), "a\\*b\\[c\\]\\?\\\\");
    }
}
