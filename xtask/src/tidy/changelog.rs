//! The changelog: users find in it the version that they have.

use crate::tidy::house::{House, Violation};

const PAGE: &str = "CHANGELOG.md";

/// The package whose version is the version of all of us.
const FACADE: &str = "tenure";

/// The version of the workspace is in the changelog.
pub(crate) fn has_version(house: &House<'_>) -> Vec<Violation> {
    let Some(page) = house.text(PAGE) else {
        return vec![Violation::new(PAGE, 1, "missing: it tells users what changed")];
    };
    let Some(facade) = house.workspace.package(FACADE) else {
        return vec![Violation::new("Cargo.toml", 1, format!("there is no package {FACADE}"))];
    };
    if has(page, &facade.version) {
        return Vec::new();
    }
    vec![Violation::new(PAGE, 1, format!("says nothing of version {}", facade.version))]
}

/// Whether the version stands there as itself and not inside of another.
fn has(page: &str, version: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '-';
    page.match_indices(version).any(|(index, _)| {
        let before = &page[..index];
        let after = &page[index + version.len()..];
        let goes_on = after.strip_prefix('.').is_some_and(|rest| rest.starts_with(is_part));
        let before = before.strip_suffix('v').unwrap_or(before);
        !before.ends_with(|c| is_part(c) || c == '.') && !after.starts_with(is_part) && !goes_on
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::{judge_in, workspace};

    fn verdict(files: &[(&str, &str)]) -> Vec<String> {
        judge_in(&workspace(&[("tenure", "")]), has_version, files)
    }

    #[test]
    fn the_version_that_cargo_knows_must_be_there() {
        assert!(verdict(&[(PAGE, "# Changelog\n\n## [0.3.1] - 2026-01-02\n")]).is_empty());
        assert!(verdict(&[(PAGE, "Since v0.3.1.\n")]).is_empty());
        assert_eq!(verdict(&[(PAGE, "## 0.3.0\n")]), ["CHANGELOG.md:1: says nothing of version 0.3.1"]);
    }

    #[test]
    fn another_version_around_it_is_not_it() {
        for other in ["10.3.1", "0.3.10", "0.3.1-rc", "0.3.1.2", "1.0.3.1"] {
            assert_eq!(verdict(&[(PAGE, other)]).len(), 1, "{other}");
        }
    }

    #[test]
    fn no_changelog_is_a_violation() {
        assert_eq!(verdict(&[]).len(), 1);
    }
}
