//! Sizes: how long a file and a function may be.

use crate::{
    tidy::code,
    tidy::house::{House, Violation},
};

/// Lines of a file, its tests not counted. Longer ones are split by noun.
const FILE_MAX: usize = 400;

/// Lines from `fn` to the last brace.
const FUNCTION_MAX: usize = 60;

/// No source file is longer than the limit without its tests.
pub(crate) fn of_files(house: &House<'_>) -> Vec<Violation> {
    let sources = house.rust.iter().filter(|file| file.is_source());
    let sized = sources.map(|file| (file, file.shipped_lines().count()));
    sized
        .filter(|(_, lines)| *lines > FILE_MAX)
        .map(|(file, lines)| {
            let what = format!("{lines} lines without tests, at most {FILE_MAX}: split it by noun");
            Violation::new(&file.path, FILE_MAX, what)
        })
        .collect()
}

/// No function in source is longer than the limit, those of unit tests included.
pub(crate) fn of_functions(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in house.rust.iter().filter(|file| file.is_source()) {
        for function in functions(&file.code).into_iter().filter(|f| f.lines > FUNCTION_MAX) {
            let what = format!("fn {} has {} lines, at most {FUNCTION_MAX}", function.name, function.lines);
            violations.push(Violation::new(&file.path, function.start, what));
        }
    }
    violations
}

#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    start: usize,
    lines: usize,
}

/// Every function with a body, inner ones too.
fn functions(code: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    for (number, rest) in code::from_each_line(code) {
        let line = rest.lines().next().unwrap_or_default();
        for (column, _) in line.match_indices("fn ") {
            let is_word = !line[..column].ends_with(code::is_word);
            let after = &line[column + 3..];
            let name = &after[..after.find(|c| !code::is_word(c)).unwrap_or(after.len())];
            let lines = code::function_lines(&rest[column..]);
            if let Some(lines) = lines.filter(|_| is_word && !name.is_empty()) {
                found.push(Function { name, start: number, lines });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn a_file_over_the_limit_is_found_and_its_tests_do_not_count() {
        let full = "// a\n".repeat(FILE_MAX);
        let tests = format!("{full}#[cfg(test)]\nmod tests {{\n{full}}}\n");
        assert!(judge(of_files, &[("crates/x/src/a.rs", &tests)]).is_empty());
        let over = format!("{tests}// b\n");
        assert_eq!(
            judge(of_files, &[("crates/x/src/a.rs", &over)]),
            ["crates/x/src/a.rs:400: 401 lines without tests, at most 400: split it by noun"]
        );
        assert_eq!(judge(of_files, &[("xtask/src/a.rs", &over)]).len(), 1);
        assert!(judge(of_files, &[("crates/x/tests/a.rs", &over)]).is_empty());
    }

    #[test]
    fn a_function_over_the_limit_is_found() {
        let body = |lines: usize| format!("\n    pub(crate) fn a() {{\n{}    }}\n", "b;\n".repeat(lines - 2));
        assert!(judge(of_functions, &[("crates/x/src/a.rs", &body(FUNCTION_MAX))]).is_empty());
        assert_eq!(
            judge(of_functions, &[("crates/x/src/a.rs", &body(FUNCTION_MAX + 1))]),
            ["crates/x/src/a.rs:2: fn a has 61 lines, at most 60"]
        );
    }

    #[test]
    fn functions_are_told_from_what_only_looks_like_one() {
        let code =
            "fn a<T>(b: fn (u8) -> u8)\nwhere\n    T: C,\n{\n    fn d() {}\n}\ntrait E {\n    fn f();\n}\n";
        assert_eq!(
            functions(code),
            [Function { name: "a", start: 1, lines: 6 }, Function { name: "d", start: 5, lines: 1 }]
        );
    }
}
