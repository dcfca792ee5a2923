//! Switches: nothing that is shipped can be told to be wrong. Known ways to be wrong are in `crates/tenure-sim/mutants`; what the
//! tests of users need is a module of its own, which no other line asks for.

use crate::{
    tidy::{
        code::has_word,
        house::{House, Violation},
        rust_file::Line,
    },
    workspace::Package,
};

/// What code says that asks whether it is to be wrong. Put together here, so that it is told from what it forbids.
const ASKS: &[&str] = &["is_on(", "Variant::"];

/// In names of features and in code.
const WORDS: &[&str] = &["variant", "variants", "mutant", "mutants"];

/// The feature with what the tests of users need, and the one item that it may add.
const FEATURE: &str = "feature = \"testing\"";
const MODULE: &str = "#[cfg(feature = \"testing\")] pub mod testing;";

/// No published crate asks in its code, or has a feature for it; and the feature for tests of users adds one module.
pub(crate) fn of_tests(house: &House<'_>) -> Vec<Violation> {
    let published = || house.workspace.packages.iter().filter(|package| package.is_published);
    let mut violations: Vec<Violation> = published().flat_map(|package| features(house, package)).collect();
    for file in &house.rust {
        let Some((name, _)) =
            file.in_crate_source().filter(|(name, _)| published().any(|p| p.name == **name))
        else {
            continue;
        };
        let lines: Vec<Line<'_>> = file.shipped_lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let next = lines.get(at + 1).map_or("", |next| next.text);
            // Comments speak of it; code says it in a literal, which is blanked.
            if line.code.contains("feature")
                && line.text.contains(FEATURE)
                && format!("{} {next}", line.text) != MODULE
            {
                let what =
                    "a branch on the feature `testing`: it adds the module of that name, and changes nothing";
                violations.push(Violation::new(&file.path, line.number, what));
            }
            let asks = ASKS.iter().any(|ask| line.code.contains(ask)) || is_named(line.code);
            if asks {
                let what = format!("{name} is shipped: a mutant is an edit in crates/tenure-sim/mutants");
                violations.push(Violation::new(&file.path, line.number, what));
            }
        }
    }
    violations
}

fn features(house: &House<'_>, package: &Package) -> Vec<Violation> {
    let wrong = package.features.keys().filter(|feature| is_named(feature));
    let violation = |feature: &String| {
        let what = format!("{} is published and has a feature for tests: {feature}", package.name);
        Violation::new(&package.manifest, house.line_of(&package.manifest, feature), what)
    };
    wrong.map(violation).collect()
}

fn is_named(text: &str) -> bool {
    WORDS.iter().any(|word| has_word(text, word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::{judge_in, workspace};

    fn verdict(rest: &str, text: &str) -> Vec<String> {
        let files =
            [("crates/tenure/src/a.rs", text), ("crates/tenure/tests/a.rs", "let a = mutant::is_on(b);\n")];
        judge_in(&workspace(&[("tenure", rest)]), of_tests, &files)
    }

    /// What this crate had once: a public list of ways to be wrong, and branches that asked for them.
    #[test]
    fn a_switch_in_shipped_code_is_found() {
        for line in ["if x && !Variant::NoRecheck.is_on() {}", "if late.is_on() {}", "pub mod mutant;"] {
            let found = verdict("", &format!("//! A.\n{line}\n"));
            assert_eq!(found.len(), 1, "{line}");
            assert!(found[0].starts_with("crates/tenure/src/a.rs:2: "), "{found:?}");
        }
    }

    /// What is tested must be what is shipped.
    #[test]
    fn a_branch_on_the_feature_for_tests_of_users_is_found() {
        let module = "#[cfg(feature = \"testing\")]\npub mod testing;\n";
        assert!(verdict("", &format!("//! A.\n{module}// feature = \"testing\"\n")).is_empty());
        for line in [
            "#[cfg(feature = \"testing\")]\nlet a = 1;",
            "let a = cfg!(all(unix, feature = \"testing\"));",
            "#[cfg(not(feature = \"testing\"))]",
        ] {
            let found = verdict("", &format!("//! A.\n{line}\n"));
            assert_eq!(found.len(), 1, "{line}");
            assert!(found[0].starts_with("crates/tenure/src/a.rs:2: a branch"), "{found:?}");
        }
    }

    #[test]
    fn a_feature_that_is_a_switch_is_found() {
        for name in ["fatal-variants", "mutants"] {
            assert_eq!(verdict(&format!(r#""features": {{"{name}": []}}"#), "").len(), 1, "{name}");
        }
        assert!(verdict(r#""features": {"serde": [], "invariant": []}"#, "").is_empty());
    }

    #[test]
    fn tests_comments_and_what_is_not_published_may_speak_of_them() {
        let text = "//! A mutant.\n#[cfg(test)]\nmod tests {\n    use mutant;\n}\n";
        assert!(verdict("", text).is_empty());
        assert!(verdict(r#""publish": [], "features": {"mutants": []}"#, "if a.is_on() {}\n").is_empty());
    }
}
