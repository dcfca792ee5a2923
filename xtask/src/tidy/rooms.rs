//! Rooms: the files that every backend has, so that whoever knows one knows all.

use std::collections::BTreeSet;

use crate::{
    tidy::backends::BACKENDS,
    tidy::house::{House, Violation},
};

/// The backend that talks to nobody has no errors to translate and nothing to configure.
const WITHOUT_SERVER: &str = "tenure-memory";

const ALWAYS: &[&str] = &["src/backend.rs", "README.md", "tests/conformance.rs"];
const WITH_SERVER: &[&str] = &["src/error.rs", "src/config.rs"];

/// Each backend that is in the tree has all of its rooms.
pub(crate) fn of_backends(house: &House<'_>) -> Vec<Violation> {
    let present: BTreeSet<&str> = house
        .texts
        .keys()
        .filter_map(|path| path.strip_prefix("crates/")?.split('/').next())
        .filter(|name| BACKENDS.contains(name))
        .collect();
    let mut violations = Vec::new();
    for backend in present {
        let extra = if backend == WITHOUT_SERVER { &[] } else { WITH_SERVER };
        for room in ALWAYS.iter().chain(extra) {
            let path = format!("crates/{backend}/{room}");
            if house.text(&path).is_none() {
                violations.push(Violation::new(path, 1, "missing: every such backend has this room"));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    fn tree(backend: &str, rooms: &[&str]) -> Vec<String> {
        let paths: Vec<String> = rooms.iter().map(|room| format!("crates/{backend}/{room}")).collect();
        let files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "")).collect();
        judge(of_backends, &files)
    }

    #[test]
    fn a_missing_room_is_named() {
        let found = tree("tenure-redis", &["src/backend.rs", "src/error.rs", "README.md", "src/script.rs"]);
        let missing = "missing: every such backend has this room";
        assert_eq!(
            found,
            [
                format!("crates/tenure-redis/tests/conformance.rs:1: {missing}"),
                format!("crates/tenure-redis/src/config.rs:1: {missing}"),
            ]
        );
    }

    #[test]
    fn a_full_house_is_right_and_memory_needs_less() {
        let all = ["src/backend.rs", "src/error.rs", "src/config.rs", "README.md", "tests/conformance.rs"];
        assert!(tree("tenure-sqlite", &all).is_empty());
        assert!(tree("tenure-memory", &["src/backend.rs", "README.md", "tests/conformance.rs"]).is_empty());
        assert_eq!(tree("tenure-memory", &["Cargo.toml"]).len(), 3);
    }

    #[test]
    fn backends_that_do_not_exist_yet_and_other_crates_owe_nothing() {
        assert!(tree("tenure-core", &["src/lib.rs"]).is_empty());
    }
}
