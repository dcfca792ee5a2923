//! Paths: nothing in the tree knows where on this machine the tree lies.

use std::path::Path;

use crate::tidy::house::{House, Violation};

/// Folders that every machine has: that a text names one says nothing of this machine.
const EVERYWHERE: &[&str] =
    &["/", "/tmp", "/var/tmp", "/home", "/root", "/opt", "/srv", "/mnt", "/src", "/usr/src", "/usr/local"];

/// No text has the absolute path of the folder that our root lies in (or, where that folder is one
/// that every machine has, of the root itself).
pub(crate) fn of_this_machine(house: &House<'_>) -> Vec<Violation> {
    let Some(telltale) = telltale(&house.workspace.root) else { return Vec::new() };
    let mut violations = Vec::new();
    for (path, text) in &house.texts {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| has_path(line, &telltale)) {
            let what = format!("has a path of this machine: {}", line.trim());
            violations.push(Violation::new(path, index + 1, what));
        }
    }
    violations
}

/// The path to look for, with its last `/`.
fn telltale(root: &Path) -> Option<String> {
    let parent = root.parent()?.to_str()?;
    let folder = if EVERYWHERE.contains(&parent) { root.to_str()? } else { parent };
    Some(format!("{folder}/")).filter(|path| !EVERYWHERE.contains(&path.trim_end_matches('/')))
}

/// Whether the path starts there, and is not the end of a longer one.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(index, _)| {
        !line[..index].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '~'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn a_path_of_this_machine_is_found_in_any_text() {
        for text in ["\nsee /site/other/x.md\n", "\nurl = \"file:///site/house/\"\n"] {
            let found = judge(of_this_machine, &[("docs/notes.md", text)]);
            assert_eq!(found.len(), 1, "{text}");
            assert!(found[0].starts_with("docs/notes.md:2: "), "{found:?}");
        }
    }

    #[test]
    fn longer_paths_that_end_alike_are_right() {
        let text = "https://example.org/site/x ./site/x $HOME/site/x /sitemap/x\n";
        assert!(judge(of_this_machine, &[("docs/notes.md", text)]).is_empty());
    }

    #[test]
    fn a_checkout_in_a_folder_that_every_machine_has_looks_for_itself() {
        assert_eq!(telltale(Path::new("/a/b/house")), Some("/a/b/".to_owned()));
        assert_eq!(telltale(Path::new("/tmp/house")), Some("/tmp/house/".to_owned()));
        assert_eq!(telltale(Path::new("/src")), None);
        assert_eq!(telltale(Path::new("/")), None);
    }
}
