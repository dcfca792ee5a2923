//! The map: the code map of ARCHITECTURE names the files that are there, and all of them.

use std::collections::BTreeSet;

use crate::tidy::house::{House, Violation};

const PAPER: &str = "ARCHITECTURE.md";

/// What opens the map, and what opens the next part.
const OPENS: &str = "## Code map";

/// What stands in for a section: a line such as "### `tenure-core`: the words".
const SECTION: &str = "### `";

/// Every file that a section names is in the crate's sources, and every source is named, or lies in a folder that is.
pub(crate) fn of_code(house: &House<'_>) -> Vec<Violation> {
    let Some(paper) = house.text(PAPER) else {
        return vec![Violation::new(PAPER, 1, "missing: it has the map of the code")];
    };
    let mut violations = Vec::new();
    for (line, package, section) in sections(paper) {
        let sources = sources(house, package);
        let named: Vec<&str> = section.split('`').skip(1).step_by(2).filter(|name| is_file(name)).collect();
        let gone = named.iter().filter(|name| !sources.iter().any(|source| covers(name, source)));
        let gone = gone.map(|name| format!("{package}: there is no {name}"));
        let left_out = sources.iter().filter(|source| !named.iter().any(|name| covers(name, source)));
        let left_out = left_out.map(|source| format!("{package}: {source} is not on the map"));
        violations.extend(gone.chain(left_out).map(|what| Violation::new(PAPER, line, what)));
    }
    violations
}

/// The sections of the map that are named after a crate: first line, crate, text.
fn sections(paper: &str) -> Vec<(usize, &str, String)> {
    let mut sections: Vec<(usize, &str, String)> = Vec::new();
    let map = paper.lines().enumerate().skip_while(|(_, line)| *line != OPENS).skip(1);
    let mut is_of_crate = false;
    for (index, line) in map.take_while(|(_, line)| !line.starts_with("## ")) {
        if line.starts_with("### ") {
            let package = line.strip_prefix(SECTION).and_then(|rest| rest.split_once('`'));
            is_of_crate = package.is_some();
            sections.extend(package.map(|(package, _)| (index + 1, package, String::new())));
        } else if let Some((_, _, text)) = sections.last_mut().filter(|_| is_of_crate) {
            text.push_str(line);
            text.push('\n');
        }
    }
    sections
}

/// Files of a crate's `src` that are no map of their own and no tests.
fn sources(house: &House<'_>, package: &str) -> BTreeSet<String> {
    let folder = format!("crates/{package}/src/");
    let shipped = house.rust.iter().filter(|file| file.shipped_lines().next().is_some());
    let inside = shipped.filter_map(|file| file.path.strip_prefix(&folder));
    let is_judged = |path: &&str| !matches!(*path, "lib.rs" | "main.rs") && !path.ends_with("_tests.rs");
    inside.filter(is_judged).map(str::to_owned).collect()
}

/// `sql.rs`, `engine/`, `engine/cell.rs`; scripts and what lies beside `src` are not judged.
fn is_file(name: &str) -> bool {
    let is_path = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.'));
    is_path && !name.starts_with("..") && (name.ends_with(".rs") || name.ends_with('/'))
}

/// Whether a name on the map means this file: by its path, by its last part, or as the folder that it lies in, with
/// the file that declares the folder's modules.
fn covers(name: &str, source: &str) -> bool {
    match name.strip_suffix('/') {
        Some(folder) => source.starts_with(name) || source == format!("{folder}.rs"),
        None => source == name || source.ends_with(&format!("/{name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    fn verdict(map: &str) -> Vec<String> {
        let paper = format!(
            "# A\n\n## Code map\n\n### `x`: a crate\n\n{map}\n\n### Beside\n\n`no.rs`\n\n## More\n\n`no.rs`\n"
        );
        let files = [
            (PAPER, &*paper),
            ("crates/x/src/lib.rs", "mod a;\nmod b;\n"),
            ("crates/x/src/a.rs", "fn a() {}\n#[cfg(test)]\nmod a_tests;\n"),
            ("crates/x/src/a/a_tests.rs", "fn a() {}\n"),
            ("crates/x/src/b.rs", "mod c;\n"),
            ("crates/x/src/b/c.rs", "fn c() {}\n"),
        ];
        judge(of_code, &files)
    }

    #[test]
    fn a_map_of_what_is_there_is_right() {
        for map in [
            "`a.rs`, `b/`",
            "`a.rs`, `b.rs`, `b/c.rs`",
            "* a: `a.rs`\n* `b/`, c (`c.rs`), `../gone/`, `*.lua`, `Word`",
        ] {
            assert!(verdict(map).is_empty(), "{map}: {:?}", verdict(map));
        }
    }

    #[test]
    fn what_is_gone_and_what_is_left_out_is_found() {
        assert_eq!(verdict("`a.rs`, `b/`, `d.rs`"), ["ARCHITECTURE.md:5: x: there is no d.rs"]);
        assert_eq!(verdict("`a.rs`, `b.rs`"), ["ARCHITECTURE.md:5: x: b/c.rs is not on the map"]);
        assert_eq!(judge(of_code, &[]).len(), 1);
    }
}
