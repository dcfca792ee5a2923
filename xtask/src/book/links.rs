//! Links between pages: each leads to a file and a heading that are there; and the navigation has every page.

use std::collections::BTreeMap;

use super::{SETTINGS, markdown, pages};
use crate::tidy::house::{House, Violation};

/// The repository, as READMEs on crates.io and pages of the book link it.
const REPOSITORY: &[&str] = &[
    "https://github.com/tenure-rs/tenure/blob/main/",
    "https://raw.githubusercontent.com/tenure-rs/tenure/main/",
];

/// crates.io shows it, where a relative link leads nowhere.
const README: &str = "README.md";

/// Every link of a page into the repository that leads nowhere.
pub(crate) fn lead_somewhere(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in house.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (number, line, is_prose) in markdown::lines(text) {
            for target in markdown::targets(line).iter().filter(|_| is_prose) {
                if let Some(why) = broken(&house.texts, path, target) {
                    violations.push(Violation::new(path, number, format!("the link to {target} {why}")));
                }
            }
        }
    }
    violations
}

/// Every page that the navigation does not have, and the reverse.
pub(crate) fn listed(house: &House<'_>) -> Vec<Violation> {
    let Some(settings) = house.text(SETTINGS) else {
        return vec![Violation::new(SETTINGS, 1, "missing: it has the navigation of the book")];
    };
    let listed: Vec<&str> =
        settings.split('"').filter(|word| word.ends_with(".md") && !word.contains(' ')).collect();
    let pages: Vec<String> = house.texts.keys().filter_map(|path| pages::place(path)).collect();
    let pages: Vec<&str> = pages.iter().map(String::as_str).filter(|page| page.ends_with(".md")).collect();
    let missing =
        pages.iter().filter(|page| !listed.contains(page)).map(|page| format!("does not list {page}"));
    let gone = listed
        .iter()
        .filter(|page| !pages.contains(page))
        .map(|page| format!("lists {page}, which is not there"));
    missing.chain(gone).map(|what| Violation::new(SETTINGS, 1, what)).collect()
}

fn broken(texts: &BTreeMap<String, String>, page: &str, target: &str) -> Option<&'static str> {
    let absolute = REPOSITORY.iter().find_map(|base| target.strip_prefix(base));
    if absolute.is_none() && (target.contains(':') || target.contains(' ')) {
        return None;
    }
    let target = absolute.unwrap_or(target);
    let (file, name) = target.split_once('#').map_or((target, None), |(file, name)| (file, Some(name)));
    let path = match absolute {
        _ if file.is_empty() => page.to_owned(),
        Some(_) => file.to_owned(),
        None if page == README => return Some("is relative, and dead on crates.io"),
        None => markdown::resolve(page, file),
    };
    let folder = format!("{}/", path.trim_end_matches('/'));
    let is_folder = texts.range(folder.clone()..).next().is_some_and(|(other, _)| other.starts_with(&folder));
    match (texts.get(&path), name) {
        (None, None) if is_folder => None,
        (None, _) => Some("leads to no file"),
        (Some(text), Some(name)) if !markdown::has_anchor(text, name) => Some("leads to no heading"),
        (Some(_), _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn a_link_to_a_file_a_folder_or_a_heading_must_lead_there() {
        let page = "[a](../b/c.md#one) [b](../../src) [c](https://x.y/z) [d](#here)\n\n# Here\n";
        let good = [("docs/a/a.md", page), ("docs/b/c.md", "# One\n"), ("src/x.rs", "")];
        assert_eq!(judge(lead_somewhere, &good), Vec::<String>::new());
        let bad = [("docs/a/a.md", page), ("docs/b/c.md", "# Two\n")];
        assert_eq!(
            judge(lead_somewhere, &bad),
            [
                "docs/a/a.md:1: the link to ../b/c.md#one leads to no heading",
                "docs/a/a.md:1: the link to ../../src leads to no file"
            ]
        );
    }

    #[test]
    fn a_link_of_the_readme_is_absolute_and_leads_to_a_file() {
        let base = REPOSITORY[0];
        let good = format!(
            "# Here\n[a](#here) [b]({base}docs/a.md#part) ![c](https://example.org/x.svg)\n[d]: {base}docs\n"
        );
        assert!(judge(lead_somewhere, &[(README, &good), ("docs/a.md", "# Part\n")]).is_empty());
        let bad = format!("[a](docs/a.md)\n[b]: {base}docs/b.md\n");
        let found = judge(lead_somewhere, &[(README, &bad), ("docs/a.md", "x")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("README.md:1: ") && found[1].starts_with("README.md:2: "), "{found:?}");
    }

    #[test]
    fn the_navigation_has_every_page_and_no_other() {
        let settings = r#"nav = [{"A" = "a.md"}, {"Gone" = "gone.md"}]"#;
        let found = judge(listed, &[(SETTINGS, settings), ("docs/a.md", ""), ("docs/b.md", "")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(judge(listed, &[]).len(), 1);
    }
}
