//! Tests that are not run: files that belong to no program, and tests that are left out.

use crate::tidy::house::{House, Violation};

/// Where a crate has one program for its tests, that names each file beside it, and Cargo is told of each other program.
pub(crate) fn named(house: &House<'_>) -> Vec<Violation> {
    let mains =
        house.texts.iter().filter_map(|(path, text)| Some((path.strip_suffix("/tests/main.rs")?, text)));
    let mut violations = Vec::new();
    for (home, main) in mains {
        let cargo = house.text(&format!("{home}/Cargo.toml")).unwrap_or_default();
        for path in house.texts.keys() {
            let Some(file) = path.strip_prefix(home).and_then(|rest| rest.strip_prefix("/tests/")) else {
                continue;
            };
            let is_named = match (file.strip_suffix(".rs"), file.strip_suffix("/main.rs")) {
                (_, Some(program)) if !program.contains('/') => {
                    cargo.contains(&format!("path = \"tests/{program}/main.rs\""))
                }
                (Some(module), _) if !module.contains('/') && module != "main" => {
                    main.lines().any(|line| line == format!("mod {module};"))
                }
                _ => true,
            };
            if !is_named {
                violations.push(Violation::new(
                    path.clone(),
                    1,
                    "not run: neither tests/main.rs nor Cargo.toml names it",
                ));
            }
        }
    }
    violations
}

/// Put together here, so that this file does not find itself.
const LEFT_OUT: &str = concat!("#[ign", "ore");

/// No test is left out.
pub(crate) fn left_out(house: &House<'_>) -> Vec<Violation> {
    let lines = house.rust.iter().flat_map(|file| file.lines().map(move |line| (file, line)));
    let found = lines.filter(|(_, line)| line.code.contains(LEFT_OUT));
    found.map(|(file, line)| Violation::new(&file.path, line.number, "a test that is left out")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    const MAIN: (&str, &str) = ("crates/a/tests/main.rs", "mod loss;\nmod stage;\n");

    #[test]
    fn a_file_that_no_program_names_is_found() {
        let files = [
            MAIN,
            ("crates/a/tests/loss.rs", ""),
            ("crates/a/tests/gain.rs", ""),
            ("crates/a/tests/stage/mod.rs", ""),
        ];
        let found = judge(named, &files);
        assert_eq!(
            found,
            ["crates/a/tests/gain.rs:1: not run: neither tests/main.rs nor Cargo.toml names it"]
        );
    }

    #[test]
    fn another_program_is_known_to_cargo() {
        let other = ("crates/a/tests/interop/main.rs", "");
        assert_eq!(judge(named, &[MAIN, other]).len(), 1);
        let cargo =
            ("crates/a/Cargo.toml", "[[test]]\nname = \"interop\"\npath = \"tests/interop/main.rs\"\n");
        assert!(judge(named, &[MAIN, other, cargo]).is_empty());
    }

    #[test]
    fn a_test_that_is_left_out_is_found() {
        let text = format!("#[test]\n{LEFT_OUT} = \"slow\"]\nfn a() {{}}\n");
        let found =
            judge(left_out, &[("crates/a/src/b.rs", &text), ("crates/a/tests/c.rs", "fn ignore() {}")]);
        assert_eq!(found, ["crates/a/src/b.rs:2: a test that is left out"]);
    }

    #[test]
    fn where_cargo_looks_for_programs_itself_nothing_is_owed() {
        assert!(judge(named, &[("crates/b/tests/play.rs", "")]).is_empty());
    }
}
