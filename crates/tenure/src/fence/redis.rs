//! A fenced key in Redis: one script, and the key of its mark.
//!
//! Any client can run it. [`SCRIPT`] begins with its contract: input, output, what is atomic.
//!
//! ```text
//! EVAL SCRIPT 2 report {report}:mark 1763755200000001 x SET "new text"
//! ```
//! returns `1` and the mark if the write was done, `0` and the mark if a later holder has shown its token.
//!
//! ```
//! use tenure::{FencingToken, fence::{Pass, redis}};
//!
//! let pass = Pass::exclusive(FencingToken::new(1_763_755_200_000_001));
//! let [token, rule] = redis::arguments(pass);
//! assert_eq!((token.as_str(), rule.as_str()), ("1763755200000001", "x"));
//! assert_eq!(redis::mark_key("report").as_deref(), Some("{report}:mark"));
//! // then, with the client of your choice:
//! // Script::new(redis::SCRIPT).key("report").key("{report}:mark").arg(token).arg(rule).arg("SET").arg("new text")
//! ```
//!
//! # What is not promised
//! * **A Redis that loses data loses marks.** After a failover or a restart that loses the last writes, the mark
//!   may be lower than it was, and the value may be older. A server that evicts keys (any policy but `noeviction`)
//!   may evict the mark and keep the value. Where that is not enough, keep the data in a database.
//! * **The mark has no expiry, and must not get one.** After it is deleted, former holders may write again.
//! * **Writes without the script are not fenced.**
//! * The protected key differs from the lock's: on Redis a lock named `report` *is* the key `report`.

use crate::fence::pass::Pass;

/// The script, in Lua. It calls `GET` and `SET` on the mark, and the one command in its arguments.
pub const SCRIPT: &str = include_str!("redis.lua");

/// The first two of the script's `ARGV`: the token, and `x` if it raises the mark or `s` if not.
pub fn arguments(pass: Pass) -> [String; 2] {
    [pass.token().to_string(), if pass.raises() { "x" } else { "s" }.to_owned()]
}

/// The key of the mark of a key, on the same node of a Cluster: `{report}:mark` for `report`, `{a}b:mark` for `{a}b`.
///
/// `None` if there is no such name, because the braces in the key are not a hash tag. Any other key on the same
/// node works too, as long as all clients use the same one.
pub fn mark_key(key: &str) -> Option<String> {
    if is_tagged(key) {
        return Some(format!("{key}:mark"));
    }
    let is_free_of_braces = !key.is_empty() && !key.contains(['{', '}']);
    is_free_of_braces.then(|| format!("{{{key}}}:mark"))
}

/// Whether there is text between the first `{` and the next `}`: only that text is hashed.
fn is_tagged(key: &str) -> bool {
    let inside = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    inside.is_some_and(|(tag, _)| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_lies_on_the_node_of_its_key() {
        for (key, mark) in [
            ("report", Some("{report}:mark")),
            ("{user}:7", Some("{user}:7:mark")),
            ("a{b}c{d}", Some("a{b}c{d}:mark")),
            ("{}x", None),
            ("a}b", None),
            ("{a", None),
            ("", None),
        ] {
            assert_eq!(mark_key(key).as_deref(), mark, "{key:?}");
        }
    }

    #[test]
    fn the_script_says_what_goes_in_and_what_comes_out() {
        for word in ["-- KEYS", "-- ARGV", "-- reply"] {
            assert!(SCRIPT.contains(word), "{word}");
        }
    }
}
