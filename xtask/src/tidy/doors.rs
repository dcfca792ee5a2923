//! Doors: time, tasks and threads come in through the `Host` and nowhere else.

use crate::tidy::house::{House, Violation};

/// What only a `Host` and the engine may say.
const CALLS: &[&str] =
    &["Instant::now(", "SystemTime::now(", "tokio::time", "tokio::spawn", "thread::sleep", "thread::spawn"];

/// Crates that stand outside of simulated time: they meet the real world, or measure it.
const OUTSIDE: &[&str] = &["tenure-testkit", "tenure-bench", "tenure-cli", "tenure-hazards", "tenure-ring"];

/// No shipped line outside the engine reads a clock, sleeps or spawns.
pub(crate) fn clocks_and_tasks(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &house.rust {
        let Some((name, inside)) = file.in_crate_source() else { continue };
        if is_door(name, inside) {
            continue;
        }
        for line in file.shipped_lines() {
            for call in CALLS.iter().filter(|call| line.code.contains(**call)) {
                let what = format!("`{}` goes through the Host", call.trim_end_matches('('));
                violations.push(Violation::new(&file.path, line.number, what));
            }
        }
    }
    violations
}

fn is_door(name: &str, inside: &str) -> bool {
    let is_engine =
        matches!(inside, "engine.rs" | "host.rs" | "testing/host.rs") || inside.starts_with("engine/");
    OUTSIDE.contains(&name) || (name == "tenure" && is_engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn each_call_is_found_in_a_crate_that_has_no_clock() {
        for call in CALLS {
            let text = format!("fn a() {{\n    b = std::{call}(c);\n}}\n");
            for path in
                ["crates/tenure-core/src/a.rs", "crates/tenure/src/guard.rs", "crates/tenure-sim/src/a.rs"]
            {
                let found = judge(clocks_and_tasks, &[(path, &text)]);
                assert_eq!(found.len(), 1, "{call}");
                assert!(found[0].starts_with(&format!("{path}:2: ")), "{found:?}");
            }
        }
    }

    #[test]
    fn comments_texts_and_tests_may_speak_of_it() {
        let text = "/// Not Instant::now().\nconst A: &str = \"thread::sleep\";\n\
                    #[cfg(test)]\nmod tests {\n    use tokio::time;\n}\n";
        assert!(judge(clocks_and_tasks, &[("crates/tenure-core/src/a.rs", text)]).is_empty());
    }

    #[test]
    fn the_engine_the_host_and_the_outer_crates_may_do_it() {
        for path in [
            "crates/tenure/src/engine/hold.rs",
            "crates/tenure/src/host.rs",
            "crates/tenure/src/testing/host.rs",
            "crates/tenure-testkit/src/clock.rs",
            "crates/tenure-bench/src/main.rs",
            "crates/tenure-cli/src/run.rs",
            "crates/tenure-sqlite/tests/conformance.rs",
        ] {
            assert!(judge(clocks_and_tasks, &[(path, "fn a() { tokio::spawn(b); }\n")]).is_empty(), "{path}");
        }
    }
}
