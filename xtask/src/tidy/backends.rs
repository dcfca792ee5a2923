//! Backends: which ones there are, and who may call them by name.

use crate::{
    tidy::code::has_word,
    tidy::house::{House, Violation},
};

/// Every backend crate.
pub(crate) const BACKENDS: &[&str] = &[
    "tenure-memory",
    "tenure-sqlite",
    "tenure-mysql",
    "tenure-postgres",
    "tenure-redis",
    "tenure-redlock",
    "tenure-zookeeper",
    "tenure-etcd",
];

/// The one file of the crate `tenure` that names backends.
const DOOR: &str = "connect.rs";

/// Only `connect.rs` names backend crates; the rest of `tenure` knows the contract. Tests may use a
/// backend as what it is to users.
pub(crate) fn named(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &house.rust {
        let Some(("tenure", inside)) = file.in_crate_source() else { continue };
        if inside == DOOR {
            continue;
        }
        for line in file.shipped_lines() {
            for backend in BACKENDS.iter().filter(|b| has_word(line.code, &b.replace('-', "_"))) {
                let what = format!("names the backend {backend}: only {DOOR} may");
                violations.push(Violation::new(&file.path, line.number, what));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn a_backend_named_outside_the_door_is_found() {
        let found = judge(named, &[("crates/tenure/src/locker.rs", "//! x\nuse tenure_sqlite::Sqlite;\n")]);
        assert_eq!(
            found,
            ["crates/tenure/src/locker.rs:2: names the backend tenure-sqlite: only connect.rs may"]
        );
    }

    #[test]
    fn the_door_the_docs_the_tests_and_other_crates_may_name_it() {
        let use_it = "use tenure_sqlite::Sqlite;\n";
        let in_test = format!("#[cfg(test)]\nmod tests {{\n    {use_it}}}\n");
        let files = [
            ("crates/tenure/src/connect.rs", use_it),
            ("crates/tenure/src/locker.rs", "/// See tenure_sqlite.\nuse my_tenure_sqlite2::X;\n"),
            ("crates/tenure/src/guard.rs", in_test.as_str()),
            ("crates/tenure-bench/src/main.rs", use_it),
        ];
        assert!(judge(named, &files).is_empty());
    }
}
