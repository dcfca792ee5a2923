//! `Keys`: where a lock and its other data are stored.

use std::{borrow::Cow, ops::Range};

use tenure_core::{BackendError, ErrorKind, LockName, Outcome};

/// What Tenure's own keys begin with; the key of a lock must not.
pub(crate) const PREFIX: &str = "tenure:";

/// The record and the one counter of a server.
pub(crate) const ONE: &str = "tenure:one";

/// The record of a server as one node of a quorum.
pub(crate) const QUORUM: &str = "tenure:quorum";

/// Where tokens are counted, and what decides whether a server may grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// One counter for all locks, in the record; it is the gate as well.
    One,
    /// A counter per lock, and no record: in a Cluster.
    Own,
    /// A counter per lock, and a separate record: on the nodes of a quorum.
    Quorum,
}

/// The keys of one lock. All have its hash tag, so that they are in one slot of a Cluster (H1.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// The lock itself: plain, as other libraries expect it.
    pub(crate) lock: String,
    /// Where the tag is in it.
    tag: Range<usize>,
    counting: Counting,
}

impl Keys {
    /// Under a template in which `%s` is the name.
    ///
    /// # Errors
    /// `Invalid` if the key is one of Tenure's own, or cannot be tagged (H1.10, H1.11, hazards 38 and 39).
    pub(crate) fn new(template: &str, name: &LockName, counting: Counting) -> Result<Self, BackendError> {
        let lock = if template == "%s" {
            name.as_str().to_owned()
        } else {
            template.replacen("%s", name.as_str(), 1)
        };
        let refused = |why: &str| {
            BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, why.to_owned()).with("lock", name)
        };
        if lock.starts_with(PREFIX) {
            return Err(refused("on Redis the name of a lock must not begin with `tenure:`, which is ours"));
        }
        let Some(tag) = tag(&lock) else {
            return Err(refused(
                "on Redis a name with `}` needs a hash tag: a pair of braces with something in it, before any other",
            ));
        };
        Ok(Self { lock, tag, counting })
    }

    pub(crate) fn side(&self, kind: &str) -> String {
        side(&self.lock[self.tag.clone()], kind, &self.lock)
    }

    /// The waiters, by arrival.
    pub(crate) fn queue(&self) -> String {
        self.side("queue")
    }

    /// The third key of each script that may grant: the record with the one counter, or this lock's own counter.
    pub(crate) fn counter(&self) -> Cow<'static, str> {
        match self.counting {
            Counting::One => ONE.into(),
            Counting::Own | Counting::Quorum => self.side("fence").into(),
        }
    }

    /// Makes a call with the keys of the plain path, in their order.
    pub(crate) fn plain<A>(&self, call: impl FnOnce(&[&str]) -> A) -> A {
        let (queue, counter) = (self.queue(), self.counter());
        let all = [&*self.lock, &*queue, &*counter, QUORUM];
        call(if self.counting == Counting::Quorum { &all } else { &all[..3] })
    }

    /// The keys of the scripts of the full path, in their order.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut all = Vec::with_capacity(7);
        all.extend([self.lock.clone(), self.queue(), self.counter().into_owned()]);
        all.extend(["places", "shared", "who"].map(|kind| self.side(kind)));
        all.extend((self.counting == Counting::Quorum).then(|| QUORUM.to_owned()));
        all
    }
}

/// `tenure:{tag}:queue:lock`
fn side(tag: &str, kind: &str, lock: &str) -> String {
    let mut key = String::with_capacity(PREFIX.len() + tag.len() + kind.len() + lock.len() + 4);
    for part in [PREFIX, "{", tag, "}:", kind, ":", lock] {
        key.push_str(part);
    }
    key
}

/// The lock that a queue belongs to, from the queue's key.
pub(crate) fn lock_of_queue(key: &str) -> Option<&str> {
    // The tag may hold anything but `}`.
    key.strip_prefix(PREFIX)?.strip_prefix('{')?.split_once("}:queue:").map(|(_, lock)| lock)
}

/// The name of the lock with this key.
pub(crate) fn name_of(template: &str, lock: &str) -> Option<LockName> {
    let (before, after) = template.split_once("%s")?;
    LockName::new(lock.strip_prefix(before)?.strip_suffix(after)?).ok()
}

/// The part of a key that Redis Cluster hashes, if it stays the same when it is put between braces.
fn tag(key: &str) -> Option<Range<usize>> {
    let hashed = key.find('{').and_then(|open| {
        let len = key[open + 1..].find('}')?;
        (len > 0).then_some(open + 1..open + 1 + len)
    });
    Some(hashed.unwrap_or(0..key.len())).filter(|tag| !key[tag.clone()].contains('}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(name: &str) -> Result<Keys, BackendError> {
        Keys::new("%s", &LockName::new(name).unwrap(), Counting::One)
    }

    #[test]
    fn side_keys_have_the_tag_of_the_lock() {
        let cases = [
            ("orders/42", "tenure:{orders/42}:queue:orders/42"),
            ("{user}:a", "tenure:{user}:queue:{user}:a"),
            ("a{b}c{d}", "tenure:{b}:queue:a{b}c{d}"),
            ("{foo{x}y}", "tenure:{foo{x}:queue:{foo{x}y}"),
            ("open{", "tenure:{open{}:queue:open{"),
            ("a}b{c}", "tenure:{c}:queue:a}b{c}"),
        ];
        for (name, queue) in cases {
            assert_eq!(keys(name).unwrap().queue(), queue);
            assert_eq!(lock_of_queue(queue), Some(name));
        }
    }

    /// Hazards 38 and 39.
    #[test]
    fn what_cannot_be_tagged_and_what_is_ours_is_refused() {
        for name in ["a}b", "{}", "x{}y", "}", "tenure:one", "tenure:quorum", "tenure:{a}:queue:a"] {
            assert_eq!(keys(name).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
    }

    /// A counter per lock is next to its lock; the record of a quorum comes last.
    #[test]
    fn counters_and_records_lie_where_their_scripts_look_for_them() {
        let name = LockName::new("a").unwrap();
        let keys = |counting| Keys::new("%s", &name, counting).unwrap().all();
        let (one, own, quorum) = (keys(Counting::One), keys(Counting::Own), keys(Counting::Quorum));
        assert_eq!((one.len(), one[2].as_str()), (6, "tenure:one"));
        assert_eq!((own.len(), own[2].as_str()), (6, "tenure:{a}:fence:a"));
        assert_eq!((&quorum[..6], quorum[6..].join(",").as_str()), (&own[..], "tenure:quorum"));
    }

    #[test]
    fn a_template_is_undone() {
        let name = LockName::new("a").unwrap();
        assert_eq!(Keys::new("lock:%s!", &name, Counting::One).unwrap().lock, "lock:a!");
        assert_eq!(name_of("lock:%s!", "lock:a!"), Some(name));
        assert_eq!(name_of("lock:%s!", "other:a!"), None);
    }
}
