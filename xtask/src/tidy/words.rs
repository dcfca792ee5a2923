//! Words: what readers stumbled over is in no page for users and in no rustdoc of a shipped crate.

use crate::tidy::house::{House, Violation};

/// What is refused, and what to write. The rest of `docs/writing.md` is held by reviewers.
const REFUSED: &[(&[&str], &str)] = &[
    (&["at", "once"], "immediately, or at the same time"),
    (&["whoever"], "the client that, a process that"),
    (&["that", "is", "none"], "that is not valid"),
    (&["paper"], "page, document"),
    (&["papers"], "pages, documents"),
];

/// Pages in `docs` that are evidence, history or about words.
const EXEMPT_FOLDERS: &[&str] = &["docs/decisions/", "docs/evidence/"];
const EXEMPT_PAGES: &[&str] = &["laws.md", "holes.md", "hazards.md", "track-record.md", "writing.md"];

/// A word of a text, in lower case, and its line. An empty one parts texts that are not read together.
type Word = (usize, String);

/// No page for users and no rustdoc of a shipped crate has a word that readers stumble over.
pub(crate) fn refused(house: &House<'_>) -> Vec<Violation> {
    let pages = house.texts.iter().filter(|(path, _)| is_for_users(house, path));
    let pages =
        pages.map(|(path, text)| (path, words_of(text.lines().enumerate().map(|(i, line)| (i + 1, line)))));
    let is_shipped = |name: &str| is_published(house, name);
    let sources = house.rust.iter().filter(|f| f.in_crate_source().is_some_and(|(name, _)| is_shipped(name)));
    let sources = sources.map(|file| {
        let lines = file.shipped_lines().map(|line| (line.number, doc_of(line.text).unwrap_or(".")));
        (&file.path, words_of(lines))
    });
    pages.chain(sources).flat_map(|(path, words)| found_in(path, &words)).collect()
}

fn found_in(path: &str, words: &[Word]) -> Vec<Violation> {
    let mut found = Vec::new();
    for at in 0..words.len() {
        for (refused, instead) in REFUSED {
            let there = words[at..].iter().take(refused.len()).map(|(_, word)| word.as_str());
            if there.eq(refused.iter().copied()) {
                let what = format!("\"{}\": write {instead} (docs/writing.md)", refused.join(" "));
                found.push(Violation::new(path, words[at].0, what));
            }
        }
    }
    found
}

/// The words of these lines; a `.` parts, as does a blank line. Names with `_` or `-` are one word.
fn words_of<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Word> {
    let mut words = Vec::new();
    for (number, line) in lines {
        if line.trim().is_empty() || line == "." {
            words.push((number, String::new()));
        }
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '\'');
        let parts = line.split(|c: char| !is_part(c)).filter(|part| !part.is_empty());
        words.extend(parts.map(|part| (number, part.to_lowercase())));
    }
    words
}

fn doc_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

fn is_for_users(house: &House<'_>, path: &str) -> bool {
    if let Some(name) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/README.md")) {
        return is_published(house, name);
    }
    let page = path.rsplit('/').next().unwrap_or(path);
    let is_in_docs = path.starts_with("docs/") && page.ends_with(".md");
    let is_exempt =
        EXEMPT_PAGES.contains(&page) || EXEMPT_FOLDERS.iter().any(|folder| path.starts_with(folder));
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].contains(&path) || is_in_docs && !is_exempt
}

fn is_published(house: &House<'_>, name: &str) -> bool {
    house.workspace.package(name).is_some_and(|package| package.is_published)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::{judge_in, workspace};

    fn verdict(files: &[(&str, &str)]) -> Vec<String> {
        judge_in(&workspace(&[("shipped", ""), ("kept", r#""publish": []"#)]), refused, files)
    }

    #[test]
    fn a_word_in_a_page_for_users_is_found_with_what_to_write() {
        let found =
            verdict(&[("docs/guides/a.md", "# A\n\nIt ends at\nonce. Whoever waits reads this paper.\n")]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(
            found[0],
            "docs/guides/a.md:3: \"at once\": write immediately, or at the same time (docs/writing.md)"
        );
        for page in ["CONTRIBUTING.md", "CHANGELOG.md", "crates/shipped/README.md"] {
            assert_eq!(verdict(&[(page, "a name that is none\n")]).len(), 1, "{page}");
        }
    }

    #[test]
    fn evidence_and_what_is_not_shipped_are_free() {
        let free = [
            "docs/decisions/a.md",
            "docs/evidence/laws.md",
            "docs/evidence/x.md",
            "docs/writing.md",
            "ARCHITECTURE.md",
        ];
        for page in free.into_iter().chain(["crates/kept/README.md", "crates/kept/src/lib.rs"]) {
            assert!(verdict(&[(page, "//! at once\n")]).is_empty(), "{page}");
        }
    }

    #[test]
    fn rustdoc_is_read_and_comments_code_and_tests_are_not() {
        let text = "//! At once.\n// whoever\nconst A: &str = \"at once\";\n/// It is at\nfn once() {}\n#[cfg(test)]\nmod tests {\n    /// Papers.\n    fn a() {}\n}\n";
        assert_eq!(verdict(&[("crates/shipped/src/lib.rs", text)]).len(), 1);
    }

    #[test]
    fn names_and_other_words_are_right() {
        let text = "`at_once.rs`, look at Once, paperless, that is nonexistent\n\nat\n\nonce\n";
        assert_eq!(verdict(&[("docs/a.md", text)]).len(), 1, "`at Once` alone");
    }
}
