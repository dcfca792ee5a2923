//! `Ownership`: what a transaction of the store needs in order to commit only as the owner of a lock.

use crate::{
    error::{BackendError, ErrorKind, Outcome},
    name::LockName,
};

/// What a transaction of the store that holds the lock needs in order to succeed only while this lease has not been followed by
/// another one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ownership {
    /// A statement, on PostgreSQL, MySQL and MariaDB.
    Sql(SqlOwnership),
    /// A comparison, for a transaction of etcd: `Compare(CreateRevision(key), "=", revision)`.
    Etcd {
        /// The key of the holder.
        key: Vec<u8>,
        /// The revision at which it was created: only this lease has it.
        create_revision: i64,
    },
    /// A check, for a `multi` of ZooKeeper: `check(path, -1)`, which passes if the node exists.
    ZooKeeper {
        /// The node of the holder, under the chroot of the URL. No other lease has it.
        path: String,
    },
    /// A condition, for a script on the same Redis, and in a Cluster in the same slot: see [`RedisOwnership`].
    Redis(RedisOwnership),
}

impl Ownership {
    /// The statement; `None` on other stores than PostgreSQL, MySQL and MariaDB.
    pub fn sql(&self) -> Option<&SqlOwnership> {
        if let Self::Sql(sql) = self { Some(sql) } else { None }
    }
}

/// The condition by which a script on Redis relies on an owner: the value of the key begins with the proof.
///
/// In Lua: `string.sub(redis.call('GET', KEYS[1]) or '', 1, #ARGV[1]) == ARGV[1]`, with the key and the proof. A script is one
/// atomic step, so no other client acquires the lock in it. The key ends with the lease, by the clock of the server.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisOwnership {
    key: String,
    proof: String,
}

impl RedisOwnership {
    /// A key, and the beginning of its value.
    pub fn new(key: impl Into<String>, proof: impl Into<String>) -> Self {
        Self { key: key.into(), proof: proof.into() }
    }

    /// The key of the lock.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What its value begins with while this lease lasts.
    pub fn proof(&self) -> &str {
        &self.proof
    }
}

impl std::fmt::Debug for RedisOwnership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisOwnership").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The statement by which a transaction relies on an owner.
///
/// It returns one row, and locks it until the transaction ends: no other client acquires the lock before. If it returns
/// no row, another owner has the lock, or had it: roll back.
#[derive(Clone, PartialEq, Eq)]
pub struct SqlOwnership {
    statement: String,
    row: String,
    proof: String,
    literal: String,
}

impl SqlOwnership {
    /// A statement with placeholders for the row and the proof. `literal` is the same statement with these values.
    pub fn new(
        statement: impl Into<String>,
        (row, proof): (impl Into<String>, impl Into<String>),
        literal: impl Into<String>,
    ) -> Self {
        let (statement, row, proof, literal) = (statement.into(), row.into(), proof.into(), literal.into());
        Self { statement, row, proof, literal }
    }

    /// The statement, with the placeholders of the database: `$1` and `$2`, or `?` and `?`.
    pub fn statement(&self) -> &str {
        &self.statement
    }

    /// The first parameter: the row in which the database looks, as text.
    pub fn row(&self) -> &str {
        &self.row
    }

    /// The second parameter: the owner and the token of this lease, as text.
    pub fn proof(&self) -> &str {
        &self.proof
    }

    /// The statement with the parameters in it, for a program that has no placeholders, such as `psql`.
    pub fn literal(&self) -> &str {
        &self.literal
    }
}

impl std::fmt::Debug for SqlOwnership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlOwnership").field("statement", &self.statement).finish_non_exhaustive()
    }
}

/// The answer to [`Backend::expose`](crate::Backend::expose).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Transactions can rely on the owner by this.
    Exposed(Ownership),
    /// This owner does not hold the lock under this token; nothing was changed.
    Gone,
}

/// A lock that others may hold at the same time has no owner on which a transaction can rely: holders of one lock would wait for
/// the transactions of each other.
pub fn no_single_owner(name: &LockName) -> BackendError {
    let message = "others may hold this lock at the same time, so a transaction cannot rely on one owner";
    BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message).with("lock", name)
}
