//! Dependencies: who may stand on whom; all arrows point down.

use crate::{
    tidy::backends::BACKENDS,
    tidy::house::{House, Violation},
    workspace::{Dependency, Package},
};

/// What a crate may depend on outside of its tests.
#[derive(Debug, Clone, Copy)]
struct Seat {
    /// Crates of ours that it may use; `None`: any.
    ours: Option<&'static [&'static str]>,
    /// Crates that it must not use.
    never: &'static [&'static [&'static str]],
}

const CORE: &str = "tenure-core";
const LEDGER: &str = "tenure-ledger";
const CAS: &str = "tenure-cas";
const CLIENT: &str = "tenure-client";
const FACADE: &str = "tenure";

/// The clients of stores, each of which belongs to its backend alone.
const DRIVERS: &[&str] = &[
    "rusqlite",
    "redis",
    "mysql_async",
    "tokio-postgres",
    "tokio-postgres-rustls",
    "zookeeper-client",
    "etcd-client",
];

/// A runtime and the system: core and ledger have no I/O and no clock.
const MACHINERY: &[&str] = &["tokio", "nix"];

/// What no other floor may know.
const TOPS: &[&str] = &[
    "tenure-testkit",
    "tenure-cli",
    "tenure-sim",
    "tenure-bench",
    "tenure-hazards",
    "tenure-picture",
    "tenure-python",
    "tenure-ring",
];

/// Backends that are cells of a store that compares and sets.
const CELLS: &[&str] = &["tenure-mysql", "tenure-postgres"];

/// The house, from the floor up.
fn seat(package: &str) -> Option<Seat> {
    let on = |ours: &'static [&'static str]| Some(Seat { ours: Some(ours), never: &[] });
    match package {
        CORE => Some(Seat { ours: Some(&[]), never: &[MACHINERY, DRIVERS] }),
        LEDGER => Some(Seat { ours: Some(&[CORE]), never: &[MACHINERY, DRIVERS] }),
        CLIENT => Some(Seat { ours: Some(&[CORE]), never: &[DRIVERS] }),
        "tenure-redlock" => on(&[CORE]),
        // Its runtime is the caller's: of tokio it takes what stands on no runtime.
        CAS => Some(Seat { ours: Some(&[CORE, LEDGER]), never: &[DRIVERS] }),
        _ if CELLS.contains(&package) => on(&[CORE, LEDGER, CAS, CLIENT]),
        "tenure-zookeeper" | "tenure-etcd" => on(&[CORE, CLIENT]),
        _ if BACKENDS.contains(&package) => on(&[CORE, LEDGER, CLIENT]),
        "tenure-testkit" => on(&[CORE, LEDGER, CAS]),
        FACADE => Some(Seat { ours: None, never: &[TOPS] }),
        "tenure-cli" | "tenure-python" | "fenced-write" | "two-accounts" | "leader-address"
        | "nightly-job" | "invoices" => on(&[FACADE]),
        "tenure-picture" => on(&[]),
        "tenure-sim" | "tenure-bench" | "tenure-hazards" | "tenure-ring" => {
            Some(Seat { ours: None, never: &[] })
        }
        "xtask" => on(&[]),
        _ => None,
    }
}

/// Every package has a seat, and none depends on what stands beside or above it.
pub(crate) fn direction(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &house.workspace.packages {
        let Some(seat) = seat(&package.name) else {
            let what = format!("{} has no seat in the house: give it one in xtask's tidy", package.name);
            violations.push(Violation::new(&package.manifest, 1, what));
            continue;
        };
        let refused = package.dependencies.iter().filter(|d| !d.is_dev && !allows(seat, d, house));
        violations.extend(refused.map(|dependency| refusal(house, package, dependency)));
    }
    violations
}

fn allows(seat: Seat, dependency: &Dependency, house: &House<'_>) -> bool {
    let name = dependency.name.as_str();
    let is_ours = house.workspace.package(name).is_some() || name.starts_with("tenure");
    let is_known = seat.ours.is_none_or(|ours| ours.contains(&name));
    !seat.never.iter().any(|list| list.contains(&name)) && (is_known || !is_ours)
}

fn refusal(house: &House<'_>, package: &Package, dependency: &Dependency) -> Violation {
    let line = house.line_of(&package.manifest, &dependency.name);
    let what = format!("{} must not depend on {}", package.name, dependency.name);
    Violation::new(&package.manifest, line, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::{judge_in, workspace};

    /// What is said of a package with these dependencies.
    fn verdict(package: &str, dependencies: &[&str]) -> Vec<String> {
        let list: Vec<String> =
            dependencies.iter().map(|name| format!(r#"{{"name": "{name}", "kind": null}}"#)).collect();
        let rest = format!(r#""dependencies": [{}]"#, list.join(","));
        judge_in(&workspace(&[(package, &rest)]), direction, &[])
    }

    #[test]
    fn each_floor_may_stand_on_what_is_below() {
        assert!(verdict("tenure-core", &["thiserror"]).is_empty());
        assert!(verdict("tenure-ledger", &["tenure-core", "serde"]).is_empty());
        assert!(verdict("tenure-client", &["tenure-core", "tokio", "rustls"]).is_empty());
        assert!(verdict("tenure-etcd", &["tenure-core", "tenure-client", "etcd-client"]).is_empty());
        assert!(verdict("tenure-sqlite", &["tenure-core", "tenure-ledger", "rusqlite", "tokio"]).is_empty());
        assert!(verdict("tenure-testkit", &["tenure-core", "tokio"]).is_empty());
        assert!(verdict("tenure", &["tenure-core", "tenure-memory", "tenure-redlock", "tokio"]).is_empty());
        assert!(verdict("tenure-cli", &["tenure", "nix"]).is_empty());
        assert!(verdict("fenced-write", &["tenure", "nix"]).is_empty());
        assert!(verdict("tenure-bench", &["tenure", "tenure-redis"]).is_empty());
    }

    #[test]
    fn no_floor_stands_on_what_is_beside_or_above() {
        for (package, dependency) in [
            ("tenure-core", "tenure-ledger"),
            ("tenure-core", "tokio"),
            ("tenure-core", "redis"),
            ("tenure-ledger", "tokio"),
            ("tenure-ledger", "tenure-testkit"),
            ("tenure-ledger", "tenure-client"),
            ("tenure-client", "tenure-ledger"),
            ("tenure-client", "redis"),
            ("tenure-client", "tokio-postgres"),
            ("tenure-client", "etcd-client"),
            ("tenure-client", "zookeeper-client"),
            ("tenure-cas", "tenure-postgres"),
            ("tenure-cas", "tokio-postgres"),
            ("tenure-redis", "tenure-cas"),
            ("tenure-memory", "tenure-sqlite"),
            ("tenure-redis", "tenure"),
            ("tenure-redlock", "tenure-ledger"),
            ("tenure-testkit", "tenure-memory"),
            ("tenure", "tenure-testkit"),
            ("tenure-cli", "tenure-sqlite"),
            ("fenced-write", "tenure-sqlite"),
            ("xtask", "tenure"),
        ] {
            let found = verdict(package, &[dependency]);
            assert_eq!(found.len(), 1, "{package} on {dependency}: {found:?}");
            assert!(found[0].contains(&format!("{package} must not depend on {dependency}")), "{found:?}");
        }
    }

    #[test]
    fn tests_may_use_anything() {
        let rest = r#""dependencies": [{"name": "tenure-testkit", "kind": "dev"}]"#;
        assert!(judge_in(&workspace(&[("tenure-memory", rest)]), direction, &[]).is_empty());
    }

    #[test]
    fn a_newcomer_needs_a_seat_and_a_violation_names_its_line() {
        assert_eq!(verdict("tenure-consul", &[]).len(), 1);
        let rest = r#""dependencies": [{"name": "nix", "kind": null}]"#;
        let manifest = ("crates/tenure-core/Cargo.toml", "[dependencies]\nserde = 1\nnix = 1\n");
        let found = judge_in(&workspace(&[("tenure-core", rest)]), direction, &[manifest]);
        assert_eq!(found, ["crates/tenure-core/Cargo.toml:3: tenure-core must not depend on nix"]);
    }
}
