//! No circles: inside a crate, files that import from one another form a graph without a cycle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::tidy::{
    house::{House, Violation},
    rust_file::RustFile,
};

/// For each module of a crate: the modules that it names, and the line where it does so first.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, usize>>;

/// Where two files need each other, what they share is a third file below both.
pub(crate) fn of_files(house: &House<'_>) -> Vec<Violation> {
    let mut crates: BTreeMap<&str, BTreeMap<String, &RustFile>> = BTreeMap::new();
    for file in &house.rust {
        let xtask = || file.path.strip_prefix("xtask/src/").map(|inside| ("xtask", inside));
        if let Some((name, inside)) = file.in_crate_source().or_else(xtask) {
            crates.entry(name).or_default().insert(module_of(inside), file);
        }
    }
    crates.values().flat_map(in_crate).collect()
}

fn in_crate(files: &BTreeMap<String, &RustFile>) -> Vec<Violation> {
    let imports: Imports<'_> =
        files.iter().map(|(module, file)| (module.as_str(), imports_of(module, file, files))).collect();
    let mut violations = Vec::new();
    for (module, named) in &imports {
        let Some(circle) = shortest_circle(module, &imports) else { continue };
        // Each is told once, at the first of its files.
        if circle.iter().all(|other| module <= other) {
            let what = format!("circle: {module} -> {}", circle.join(" -> "));
            violations.push(Violation::new(&files[*module].path, named[circle[0]], what));
        }
    }
    violations
}

/// `a/b.rs` is `a::b`, and so is `a/b/mod.rs`; the root of the crate has no name.
fn module_of(inside: &str) -> String {
    let stem = inside.trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    if matches!(stem, "lib" | "main") { String::new() } else { stem.replace('/', "::") }
}

/// The other modules that have a file, and that the shipped lines of this one name by `crate::` or `super::`.
fn imports_of<'a>(
    module: &str,
    file: &RustFile,
    files: &'a BTreeMap<String, &RustFile>,
) -> BTreeMap<&'a str, usize> {
    let mut code = String::new();
    for line in file.lines() {
        code.push_str(if line.is_test { "" } else { line.code });
        code.push('\n');
    }
    let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
    let mut found = BTreeMap::new();
    for (word, base) in [("crate::", ""), ("super::", parent)] {
        for (at, _) in code.match_indices(word) {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == ':') {
                continue;
            }
            let line = code[..at].matches('\n').count() + 1;
            for path in paths(&code[at + word.len()..]) {
                let target = file_of(&joined(base, &path), files);
                if let Some(target) = target.filter(|target| *target != module && !target.is_empty()) {
                    found.entry(target).or_insert(line);
                }
            }
        }
    }
    found
}

fn joined(base: &str, path: &str) -> String {
    if base.is_empty() { path.to_owned() } else { format!("{base}::{path}") }
}

/// The longest beginning of the path that is a module with a file of its own.
fn file_of<'a>(path: &str, files: &'a BTreeMap<String, &RustFile>) -> Option<&'a str> {
    let mut end = path.len();
    loop {
        if let Some((module, _)) = files.get_key_value(&path[..end]) {
            return Some(module);
        }
        end = path[..end].rfind("::")?;
    }
}

/// The paths that the code names here: one, or those of a group in braces.
fn paths(code: &str) -> Vec<String> {
    let code = code.trim_start();
    if let Some(group) = code.strip_prefix('{') {
        return entries(group).into_iter().flat_map(paths).collect();
    }
    let end = code.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(code.len());
    let (name, rest) = code.split_at(end);
    match rest.strip_prefix("::") {
        Some(rest) => paths(rest).iter().map(|path| joined(name, path)).collect(),
        None => vec![name.to_owned()],
    }
}

/// What stands between the commas of a group that has just been opened.
fn entries(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut entries) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                entries.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if c == '}' && depth == 0 && start == at + 1 {
            break;
        }
    }
    entries.retain(|entry| !entry.trim().is_empty());
    entries
}

/// The shortest way from this module back to it, without its beginning.
fn shortest_circle<'a>(module: &'a str, imports: &Imports<'a>) -> Option<Vec<&'a str>> {
    let mut ways = VecDeque::from([vec![module]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in imports.get(way.last()?)?.keys() {
            let longer = [&way[..], &[*next]].concat();
            if *next == module {
                return Some(longer[1..].to_vec());
            }
            if seen.insert(*next) {
                ways.push_back(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    fn told(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/x/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        judge(of_files, &files)
    }

    #[test]
    fn a_planted_circle_is_refused() {
        let files = [
            ("a.rs", "//! A.\nuse crate::b::B;\n"),
            ("b.rs", "use crate::{\n    c::{self, C},\n    d::D,\n};\n"),
            ("c.rs", "fn c() -> crate::a::A {}\n"),
            ("d.rs", "use crate::e::E;\n"),
        ];
        assert_eq!(told(&files), ["crates/x/src/a.rs:2: circle: a -> b -> c -> a"]);
    }

    #[test]
    fn two_circles_are_told_once_each() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::{a::A, e::f::F};"),
            ("e/f.rs", "use super::g::G;"),
            ("e/g.rs", "\nuse crate::e::f;"),
        ];
        let circles = [
            "crates/x/src/a.rs:1: circle: a -> b -> a",
            "crates/x/src/e/f.rs:1: circle: e::f -> e::g -> e::f",
        ];
        assert_eq!(told(&files), circles);
    }

    #[test]
    fn tests_comments_other_crates_and_the_root_make_no_circle() {
        let files = [
            ("lib.rs", "mod a;\npub use crate::a::A;\n"),
            ("a.rs", "use crate::b::B;\nuse other_crate::c::C;\nmacro_rules! m { () => { $crate::c::C } }\n"),
            ("b.rs", "// use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            ("c.rs", "use crate::a::A;\nuse crate::c::inner;\n"),
        ];
        assert_eq!(told(&files), [""; 0]);
    }

    #[test]
    fn groups_within_groups_are_taken_apart() {
        assert_eq!(paths("{a::{b, c::D}, e, f::*};"), ["a::b", "a::c::D", "e", "f::"]);
        assert_eq!(paths("a::b(c, d)"), ["a::b"]);
    }
}
