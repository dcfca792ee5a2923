//! `Config`: the nodes of a quorum, from a URL.

use crate::ballot::MOST;

/// The settings of a `redlock:` URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// The URL of each node, with the parameters that apply to all.
    pub nodes: Vec<String>,
}

/// Why a list of nodes is no quorum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuorumError {
    /// An even number, fewer than three, or more than 63.
    #[error("a quorum needs an odd number of nodes, 3 to {MOST}; the URL names {nodes}: {why}")]
    Nodes {
        /// How many there are.
        nodes: usize,
        /// Why that is not allowed.
        why: &'static str,
    },
    /// One node is named twice.
    #[error("the node {place} is listed twice; list every server once, or it would vote twice")]
    Twice {
        /// Its name.
        place: String,
    },
    /// Another mistake in the URL.
    #[error("{0}")]
    Url(String),
}

impl QuorumError {
    /// Whether these places are a quorum.
    pub(crate) fn of(places: &[&str]) -> Result<(), Self> {
        let nodes = places.len();
        let why = match nodes {
            0..3 => Some("name 3, 5 or 7 servers"),
            _ if nodes.is_multiple_of(2) => Some("name one fewer: that many tolerate as many failures"),
            _ if nodes > MOST => Some("with more, every lock would wait for the answers of half of them"),
            _ => None,
        };
        if let Some(why) = why {
            return Err(Self::Nodes { nodes, why });
        }
        let twice = places.iter().enumerate().find(|(at, place)| places[..*at].contains(place));
        match twice {
            Some((_, place)) => Err(Self::Twice { place: (*place).to_owned() }),
            None => Ok(()),
        }
    }
}

impl Config {
    /// From `redlock:URL,URL,URL?parameters`; the parameters apply to every node.
    ///
    /// # Errors
    /// [`QuorumError`] if this is not a list of nodes. The URL of each node is checked by its backend.
    pub fn from_url(url: &str) -> Result<Self, QuorumError> {
        let list = url.strip_prefix("redlock:").unwrap_or_default();
        let (list, parameters) = match list.split_once('?') {
            Some((list, parameters)) => (list, Some(parameters)),
            None => (list, None),
        };
        let nodes: Vec<&str> = list.split(',').map(str::trim).collect();
        if list.is_empty() || nodes.iter().any(|node| node.is_empty()) {
            let what = "redlock: needs the URLs of its nodes, separated by commas, as in \
                        redlock:redis://a,redis://b,redis://c";
            return Err(QuorumError::Url(what.into()));
        }
        let whole = |node: &&str| match parameters {
            Some(parameters) => format!("{node}?{parameters}"),
            None => (*node).to_owned(),
        };
        Ok(Self { nodes: nodes.iter().map(whole).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_apply_to_every_node() {
        let config =
            Config::from_url("redlock:redis://a,redis://b:7000/1, rediss://c?max_ttl=10s&guard=on").unwrap();
        let nodes = [
            "redis://a?max_ttl=10s&guard=on",
            "redis://b:7000/1?max_ttl=10s&guard=on",
            "rediss://c?max_ttl=10s&guard=on",
        ];
        assert_eq!(config.nodes, nodes);
    }

    /// H3.5, hazard 43: what tolerates no failure, an even number, and a node that is listed twice.
    #[test]
    fn what_is_no_quorum_is_refused_with_the_reason() {
        let refused = |places: &[&str]| QuorumError::of(places).unwrap_err().to_string();
        assert!(refused(&["a"]).contains("name 3, 5 or 7 servers"));
        assert!(refused(&["a", "b"]).contains("name 3, 5 or 7 servers"));
        assert!(refused(&["a", "b", "c", "d"]).contains("name one fewer"));
        let many: Vec<String> = (0..MOST + 2).map(|node| node.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(refused(&many).contains("wait for the answers of half"));
        assert_eq!(QuorumError::of(&many[..MOST]), Ok(()));
        assert!(refused(&["a", "b", "a"]).contains("the node a is listed twice"));
        assert_eq!(QuorumError::of(&["a", "b", "c"]), Ok(()));
        for url in ["redlock:", "redlock:redis://a,,redis://b", "redlock:?x=1"] {
            assert!(Config::from_url(url).is_err(), "{url}");
        }
    }
}
