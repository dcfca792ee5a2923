//! Crate roots: `lib.rs` is a map, and nobody inside walks through it.

use crate::tidy::{
    code,
    house::{House, Violation},
};

/// `lib.rs` holds modules, re-exports and docs, and defines nothing itself.
pub(crate) fn definitions(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &house.rust {
        let Some((_, "lib.rs")) = file.in_crate_source() else { continue };
        for line in file.shipped_lines().filter(|line| !is_map_entry(line.code)) {
            let what = format!("lib.rs defines nothing, only modules and re-exports: {}", line.text.trim());
            violations.push(Violation::new(&file.path, line.number, what));
        }
    }
    violations
}

/// Indented lines continue what began at the margin.
fn is_map_entry(code: &str) -> bool {
    let code = code.trim_end();
    if code.is_empty() || code.starts_with([' ', '#', '}', ']', ')']) {
        return true;
    }
    let item = without_visibility(code);
    item.starts_with("use ") || (item.starts_with("mod ") && item.ends_with(';'))
}

fn without_visibility(item: &str) -> &str {
    let Some(rest) = item.strip_prefix("pub") else { return item };
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')').map_or(scope, |(_, after)| after),
        None => rest,
    };
    rest.trim_start()
}

/// What is re-exported by the root is imported from where it is defined.
pub(crate) fn imports(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in house.rust.iter().filter(|file| file.in_crate_source().is_some()) {
        for (number, rest) in code::from_each_line(&file.code) {
            for name in names_of_root(rest) {
                let what = format!("`{name}` is imported through the crate's own root, not from its module");
                violations.push(Violation::new(&file.path, number, what));
            }
        }
    }
    violations
}

/// If an import from `crate::` starts here: what it takes from the root itself. Modules are lower
/// case; a capital, a star or `self` is the root's own.
fn names_of_root(code: &str) -> Vec<&str> {
    let item = without_visibility(code.trim_start_matches(' '));
    let Some((paths, _)) = item.strip_prefix("use crate::").and_then(|rest| rest.split_once(';')) else {
        return Vec::new();
    };
    let paths = match paths.strip_prefix('{') {
        Some(group) => entries(group),
        None => vec![paths],
    };
    let names = paths.into_iter().map(|path| path.split([':', ' ', '}']).next().unwrap_or(path));
    names.filter(|name| *name == "self" || name.starts_with(|c: char| c == '*' || c.is_uppercase())).collect()
}

/// The paths of a group, without those of the groups inside it.
fn entries(group: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let is_own_comma = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    group.split(is_own_comma).map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    fn lines(rule: fn(&House<'_>) -> Vec<Violation>, path: &str, text: &str) -> Vec<usize> {
        let found = judge(rule, &[(path, text)]);
        found.iter().map(|violation| violation.split(':').nth(1).unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn a_map_is_a_right_root() {
        let map = "//! Docs: fn a() {}\n#![cfg_attr(\n    a,\n    b\n)]\n\nmod a;\npub mod b;\n\
                   pub(crate) mod c;\npub use a::{\n    B,\n    C,\n};\n#[cfg(feature = \"d\")]\npub use d::D;\n\
                   #[cfg(test)]\nmod tests {\n    fn a() {}\n}\n";
        assert!(lines(definitions, "crates/x/src/lib.rs", map).is_empty());
    }

    #[test]
    fn each_kind_of_definition_is_found() {
        for item in [
            "fn a() {}",
            "pub fn a() {}",
            "pub(crate) async fn a() {}",
            "struct A;",
            "pub enum A {}",
            "trait A {}",
            "impl A {}",
            "pub const A: u8 = 1;",
            "static A: u8 = 1;",
            "type A = u8;",
            "macro_rules! a { () => {} }",
            "pub mod a {",
        ] {
            assert_eq!(
                lines(definitions, "crates/x/src/lib.rs", &format!("mod b;\n{item}\n")),
                [2],
                "{item}"
            );
        }
        assert!(lines(definitions, "crates/x/src/a.rs", "fn a() {}\n").is_empty());
    }

    #[test]
    fn imports_through_the_root_are_found() {
        for import in [
            "use crate::A;",
            "pub use crate::A as B;",
            "use crate::*;",
            "use crate::{A};",
            "use crate::{a::B, C};",
            "pub(crate) use crate::{\n    a::{B, C},\n    D,\n};",
            "use crate::{self as a};",
        ] {
            assert_eq!(lines(imports, "crates/x/src/a/b.rs", &format!("\n    {import}\n")), [2], "{import}");
        }
    }

    #[test]
    fn imports_from_modules_and_examples_in_docs_are_right() {
        let text = "use crate::a::A;\nuse crate::a::{B, C};\n/// use crate::A;\nuse other::{D};\n\
                    use crate::{\n    a::{A, B},\n    c::{self, D},\n    e,\n};\n";
        assert!(lines(imports, "crates/x/src/b.rs", text).is_empty());
    }
}
