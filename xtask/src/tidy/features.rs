//! Features: what nobody may get without asking for it.

use std::collections::BTreeSet;

use crate::{
    tidy::house::{House, Violation},
    workspace::{Dependency, Package},
};

/// Turns on code that is wrong on purpose, so that the simulation can show that it would notice.
const FATAL: &str = "fatal-variants";

/// `fatal-variants` is on by default nowhere, and nothing published turns it on in what it depends on.
pub(crate) fn fatal_variants(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &house.workspace.packages {
        if default_features(package).iter().any(|feature| is_fatal(feature)) {
            let line = house.line_of(&package.manifest, "default");
            let what = format!("{FATAL} is among the default features of {}", package.name);
            violations.push(Violation::new(&package.manifest, line, what));
        }
        let asked = |d: &&_| asks_for_it(d);
        for dependency in package.dependencies.iter().filter(|_| package.is_published).filter(asked) {
            let line = house.line_of(&package.manifest, &dependency.name);
            let what = format!("{} is published and turns on {FATAL} of {}", package.name, dependency.name);
            violations.push(Violation::new(&package.manifest, line, what));
        }
    }
    violations
}

fn asks_for_it(dependency: &Dependency) -> bool {
    !dependency.is_dev && dependency.features.iter().any(|feature| is_fatal(feature))
}

/// Also as a feature of a dependency: `tenure-ledger/fatal-variants`.
fn is_fatal(feature: &str) -> bool {
    feature.rsplit('/').next() == Some(FATAL)
}

/// All that `default` turns on, directly or through other features.
fn default_features(package: &Package) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut open = vec!["default"];
    while let Some(feature) = open.pop() {
        if found.insert(feature) {
            open.extend(package.features.get(feature).into_iter().flatten().map(String::as_str));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::{judge_in, workspace};

    fn verdict(rest: &str) -> Vec<String> {
        judge_in(&workspace(&[("tenure", rest)]), fatal_variants, &[])
    }

    #[test]
    fn a_default_that_reaches_it_is_found_however_far() {
        for features in [
            r#"{"default": ["fatal-variants"], "fatal-variants": []}"#,
            r#"{"default": ["a"], "a": ["b"], "b": ["fatal-variants"], "fatal-variants": []}"#,
            r#"{"default": ["tenure-ledger/fatal-variants"]}"#,
        ] {
            assert_eq!(verdict(&format!(r#""features": {features}"#)).len(), 1, "{features}");
        }
    }

    #[test]
    fn having_it_off_is_right() {
        let features = r#"{"default": ["a"], "a": ["default"], "fatal-variants": ["x/fatal-variants"]}"#;
        assert!(verdict(&format!(r#""features": {features}"#)).is_empty());
    }

    #[test]
    fn nothing_published_turns_it_on_below() {
        let dependencies =
            r#""dependencies": [{"name": "tenure-ledger", "kind": null, "features": ["fatal-variants"]}]"#;
        assert_eq!(verdict(dependencies).len(), 1);
        assert!(verdict(&format!(r#""publish": [], {dependencies}"#)).is_empty());
    }
}
