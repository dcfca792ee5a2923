//! What a connection finds: settings of the server, and whether the table is one of Tenure.

use std::collections::HashMap;

use tenure_core::{BackendError, ErrorKind};

use crate::{
    answer::Answer,
    error::{self, WORDS},
    sql::is_table,
};

/// What was found when a connection was made.
#[derive(Clone, Debug)]
pub(crate) struct ServerFacts {
    pub(crate) table: LockTable,
    /// This user may delete rows. Places may have separate rows, which would stay indefinitely otherwise.
    pub(crate) may_delete: bool,
    /// Variables of [`VARIABLES`] that the server has, by name, in lower case.
    settings: HashMap<String, String>,
}

/// What was found where the table should be. A table is Tenure's if it has what Tenure uses, whatever else it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockTable {
    /// With this engine.
    Ours(String),
    Missing,
    /// Another program's, with these columns.
    Strange(String),
}

/// The first query of a connection. A server returns one row for each of the variables that it has.
pub(crate) fn variables() -> String {
    let names: Vec<String> = VARIABLES.iter().map(|name| format!("'{name}'")).collect();
    format!("SHOW VARIABLES WHERE Variable_name IN ({})", names.join(", "))
}

/// The columns of a table, one row for each: name, type, whether it is generated, engine, and the number of unique
/// indexes that have the whole name and nothing else.
pub(crate) fn columns(schema: Option<&str>, table: &str) -> String {
    let of = |columns| is_table(columns, schema, table);
    format!(
        "SELECT LOWER(c.column_name), LOWER(c.column_type), LOWER(c.extra), LOWER(COALESCE(t.engine, '')), \
         (SELECT COUNT(*) FROM (SELECT COUNT(*) AS parts, MAX(LOWER(s.column_name)) AS part, \
         MAX(s.sub_part) AS cut FROM information_schema.statistics AS s WHERE {} AND s.non_unique = 0 \
         GROUP BY s.index_name) AS i WHERE i.parts = 1 AND i.part = 'name' AND i.cut IS NULL) \
         FROM information_schema.columns AS c JOIN information_schema.tables AS t WHERE {} AND {} \
         ORDER BY c.ordinal_position",
        of(["s.table_schema", "s.table_name"]),
        of(["c.table_schema", "c.table_name"]),
        // The condition is repeated for `t`: a join on the names makes the server read the definitions of all its tables.
        of(["t.table_schema", "t.table_name"])
    )
}

impl ServerFacts {
    pub(crate) fn read(variables: &Answer, columns: &Answer) -> Self {
        let setting = |at: usize| Some((variables.text(at, 0)?.to_lowercase(), variables.text(at, 1)?));
        let settings = (0..variables.rows.len()).filter_map(setting).collect();
        Self { table: LockTable::read(columns), may_delete: true, settings }
    }

    #[cfg(test)]
    pub(crate) fn of(table: LockTable, settings: &[(&str, &str)]) -> Self {
        let settings =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { table, may_delete: true, settings }
    }

    /// The value of a variable, in lower case; empty if the server does not have it.
    pub(crate) fn setting(&self, name: &str) -> String {
        self.settings.get(name).map(|value| value.to_lowercase()).unwrap_or_default()
    }

    pub(crate) fn is_enabled(&self, name: &str) -> bool {
        matches!(&*self.setting(name), "on" | "1")
    }

    /// The variable by which the server takes no writes, if there is one.
    pub(crate) fn read_only(&self) -> Option<&'static str> {
        ["super_read_only", "innodb_read_only", "read_only", "transaction_read_only", "tx_read_only"]
            .into_iter()
            .find(|name| self.is_enabled(name))
    }

    /// Whether a statement may set its clock to the server's: with `secure_timestamp` no session has another clock.
    pub(crate) fn sets_clock(&self) -> bool {
        !self.settings.is_empty() && matches!(&*self.setting("secure_timestamp"), "" | "no")
    }

    /// The identity of the server, whatever name led to it.
    pub(crate) fn identity(&self) -> String {
        ["server_uuid", "server_uid", "hostname", "port"].map(|name| self.setting(name)).join(" ")
    }

    /// Each statement that writes is committed here.
    pub(crate) fn takes_writes(&self) -> bool {
        self.is_enabled("autocommit") && self.read_only().is_none()
    }

    /// # Errors
    /// `Unavailable`: a replica may be promoted.
    pub(crate) fn must_take_writes(&self, place: &str) -> Result<(), BackendError> {
        self.read_only().map_or(Ok(()), |variable| Err(error::read_only(place, variable)))
    }

    /// A statement can look for a lock of a row without a wait: MariaDB from 10.3 on, MySQL from 8 on.
    pub(crate) fn knows_nowait(&self) -> bool {
        let version = self.setting("version");
        let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        match major {
            10 => minor >= 3,
            major => major >= 8,
        }
    }

    /// The cluster in which several servers take writes, if this server is in one.
    pub(crate) fn many_writers(&self) -> Option<&'static str> {
        let says =
            |mark: &str| ["version", "version_comment"].iter().any(|it| self.setting(it).contains(mark));
        if let Some((_, cluster)) = CLUSTERS.iter().find(|(mark, _)| says(mark)) {
            return Some(cluster);
        }
        if let LockTable::Ours(engine) = &self.table
            && let Some((_, cluster)) = ENGINES.iter().find(|(name, _)| name == engine)
        {
            return Some(cluster);
        }
        if self.is_enabled("wsrep_on") {
            return Some("a Galera cluster");
        }
        let is_group = !self.setting("group_replication_group_name").is_empty();
        let is_single = self.is_enabled("group_replication_single_primary_mode");
        (is_group && !is_single).then_some("a group with several primaries")
    }

    /// # Errors
    /// If no lock can be kept here: the clocks of several servers that all take writes would judge one lease; a
    /// statement would not be a transaction; or the table is another program's.
    pub(crate) fn must_be_ours(&self, place: &str, one_writer: bool) -> Result<(), BackendError> {
        if !self.is_enabled("autocommit") {
            return Err(WORDS.refused(place, ErrorKind::Unsupported, error::NO_AUTOCOMMIT));
        }
        if let Some(cluster) = self.many_writers().filter(|_| !one_writer) {
            let message = format!(
                "the server is one of {cluster}: a lease would be judged by several clocks, and two clients \
                 could hold a lock; if all clients write to one server, say so with one_writer=yes"
            );
            return Err(WORDS.refused(place, ErrorKind::Unsupported, message));
        }
        match &self.table {
            LockTable::Strange(columns) => Err(WORDS.strange(place, columns)),
            LockTable::Ours(_) | LockTable::Missing => Ok(()),
        }
    }
}

impl LockTable {
    fn read(answer: &Answer) -> Self {
        let columns: Vec<[String; 5]> = (0..answer.rows.len())
            .map(|at| [0, 1, 2, 3, 4].map(|column| answer.text(at, column).unwrap_or_default()))
            .collect();
        let Some([.., engine, unique]) = columns.first() else { return Self::Missing };
        let has = |(name, fits): &(&str, Fits)| {
            let found = columns.iter().find(|[column, ..]| column == name);
            found.is_some_and(|[_, kind, extra, ..]| fits(kind) && !extra.contains("generated"))
        };
        if unique != "0" && OURS.iter().all(has) {
            return Self::Ours(engine.clone());
        }
        let shown: Vec<String> = columns.iter().map(|[name, kind, ..]| format!("{name} {kind}")).collect();
        Self::Strange(shown.join(", "))
    }
}

/// Whether a column of this type can be used.
type Fits = fn(&str) -> bool;

/// The columns that Tenure uses, and the types that lose nothing of what is written to them.
const OURS: [(&str, Fits); 5] = [
    ("name", |kind| {
        let length = kind.strip_prefix("varbinary(").and_then(|rest| rest.strip_suffix(')'));
        length.and_then(|length| length.parse().ok()).is_some_and(|length: u32| length >= 600)
    }),
    ("version", is_bigint),
    ("busy", |kind| kind.starts_with("tinyint") || is_bigint(kind) || kind.starts_with("int")),
    ("used", is_bigint),
    ("state", |kind| matches!(kind, "mediumblob" | "longblob")),
];

fn is_bigint(kind: &str) -> bool {
    kind.starts_with("bigint") && !kind.contains("unsigned")
}

/// Databases that speak the protocol and take writes in several servers, by a word in their version.
const CLUSTERS: [(&str, &str); 10] = [
    ("tidb", "a TiDB cluster"),
    ("-ndb-", "an NDB cluster"),
    ("mysql cluster", "an NDB cluster"),
    ("vitess", "a Vitess cluster"),
    ("planetscale", "a Vitess cluster"),
    ("oceanbase", "an OceanBase cluster"),
    ("polardb-x", "a PolarDB-X cluster"),
    ("tddl", "a PolarDB-X cluster"),
    ("singlestore", "a SingleStore cluster"),
    ("memsql", "a SingleStore cluster"),
];

/// Engines that keep a table on other servers.
const ENGINES: [(&str, &str); 4] = [
    ("ndbcluster", "an NDB cluster"),
    ("spider", "several servers, by the engine Spider"),
    ("federated", "several servers, by the engine FEDERATED"),
    ("connect", "several servers, by the engine CONNECT"),
];

/// The variables that are read; no server has all of them.
const VARIABLES: [&str; 22] = [
    "secure_timestamp",
    "version",
    "version_comment",
    "server_uuid",
    "server_uid",
    "hostname",
    "port",
    "autocommit",
    "read_only",
    "super_read_only",
    "innodb_read_only",
    "tx_read_only",
    "transaction_read_only",
    "wsrep_on",
    "group_replication_group_name",
    "group_replication_single_primary_mode",
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "log_bin",
    "binlog_format",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_source_enabled",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// What these servers answer to `SHOW VARIABLES`, by their documentation. Two are recognized by their engine.
    #[test]
    fn databases_with_many_writers_are_refused_by_name() {
        for (engine, settings, name) in [
            (
                "innodb",
                [("version", "8.0.11-TiDB-v7.5.1"), ("version_comment", "TiDB Server (Apache License 2.0)")],
                "TiDB",
            ),
            (
                "innodb",
                [("version", "8.0.35-cluster"), ("version_comment", "MySQL Cluster Community Server - GPL")],
                "NDB",
            ),
            ("ndbcluster", [("version", "8.0.35"), ("version_comment", "")], "NDB"),
            ("spider", [("version", "10.11.6-MariaDB"), ("version_comment", "Debian 12")], "Spider"),
            ("innodb", [("version", "8.0.30-Vitess"), ("version_comment", "Version: 19.0.4")], "Vitess"),
            ("innodb", [("version", "8.0.34-PlanetScale"), ("version_comment", "")], "Vitess"),
            (
                "innodb",
                [("version", "5.7.25-OceanBase-v4.2.1"), ("version_comment", "OceanBase 4.2.1")],
                "OceanBase",
            ),
            ("innodb", [("version", "8.0.32-X-Cluster"), ("version_comment", "PolarDB-X")], "PolarDB-X"),
            (
                "innodb",
                [("version", "5.7.32"), ("version_comment", "SingleStoreDB source distribution")],
                "SingleStore",
            ),
        ] {
            let settings = [&[("autocommit", "ON")], &settings[..]].concat();
            let facts = ServerFacts::of(LockTable::Ours(engine.into()), &settings);
            let refusal = facts.must_be_ours("h", false).unwrap_err();
            assert_eq!(refusal.kind(), ErrorKind::Unsupported);
            assert!(refusal.to_string().contains(name), "{name}: {refusal}");
            assert!(facts.must_be_ours("h", true).is_ok(), "{name}: all write to one");
        }
        let one = [
            ("autocommit", "ON"),
            ("version", "8.0.35"),
            ("version_comment", "MySQL Community Server - GPL"),
        ];
        assert!(ServerFacts::of(LockTable::Missing, &one).must_be_ours("h", false).is_ok());
    }
}
