//! A trial: the simulation as one mutant, and the same histories as it is shipped.

use std::{fmt, ops::Range, path::Path, process::Command};

use serde_json::Value;

use crate::mutants::mutant::Mutant;

/// What became of a mutant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It broke its law first in this history, and up to there nothing broke without it.
    Caught { seed: u64 },
    /// It broke its law nowhere.
    Missed { seeds: Range<u64> },
    /// The same histories break a law without it.
    Broken { how: String },
    /// The simulation gave no report.
    Silent { why: String },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught { seed } => write!(f, "seed {seed}"),
            Self::Missed { seeds } => write!(f, "NOT CAUGHT by seeds {} to {}", seeds.start, seeds.end - 1),
            Self::Broken { how } => write!(f, "BROKEN ALSO WITHOUT IT: {how}"),
            Self::Silent { why } => write!(f, "NO REPORT: {why}"),
        }
    }
}

/// Runs its histories with it until one breaks its law, then those without it.
pub(crate) fn of(program: &Path, mutant: &Mutant) -> Verdict {
    judge(mutant, |seeds, is_on| report(program, mutant, seeds, is_on))
        .unwrap_or_else(|why| Verdict::Silent { why })
}

fn judge(
    mutant: &Mutant,
    run: impl Fn(Range<u64>, bool) -> Result<Value, String>,
) -> Result<Verdict, String> {
    let seeds = mutant.seeds.0.clone();
    let Some(seed) = first_broken(&run(seeds.clone(), true)?, &mutant.law)? else {
        return Ok(Verdict::Missed { seeds });
    };
    let without = run(seeds.start..seed + 1, false)?;
    Ok(match bad(&without)?.first() {
        Some(history) => {
            Verdict::Broken { how: format!("seed {}: {}", history["seed"], history["violations"]) }
        }
        None => Verdict::Caught { seed },
    })
}

/// One thread, so that the first seed that is found is the first there is; several mutants run at once.
fn report(program: &Path, mutant: &Mutant, seeds: Range<u64>, is_on: bool) -> Result<Value, String> {
    let mut command = Command::new(program);
    command.args(["--json", "--jobs", "1", "--world", &mutant.world, "--plan", &mutant.plan]);
    command.args(["--seed", &seeds.start.to_string(), "--seeds", &(seeds.end - seeds.start).to_string()]);
    command.env_remove("TENURE_MUTANT");
    if is_on {
        command.args(["--until", &mutant.law]).env("TENURE_MUTANT", &mutant.name);
    }
    let output = command.output().map_err(|e| format!("cannot start {}: {e}", program.display()))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{}: {}", output.status, said.trim())
    })
}

/// The histories that broke a law that they must keep.
fn bad(report: &Value) -> Result<&[Value], String> {
    report["bad"].as_array().map(Vec::as_slice).ok_or_else(|| "the report has no `bad`".to_owned())
}

fn first_broken(report: &Value, law: &str) -> Result<Option<u64>, String> {
    let breaks = |history: &&Value| {
        history["laws"].as_array().is_some_and(|laws| laws.iter().any(|broken| broken == law))
    };
    Ok(bad(report)?.iter().filter(breaks).filter_map(|history| history["seed"].as_u64()).min())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mutants::mutant::sample::mutant;

    /// What is said of a mutant of L1, looked for in seeds 0 to 9, with these histories.
    fn verdict(with: Value, without: Value) -> Result<Verdict, String> {
        let mutant = mutant("late", "a.rs", "a", "b");
        judge(&mutant, |seeds, is_on| {
            assert_eq!(seeds, if is_on { 0..10 } else { 0..5 });
            Ok(if is_on { with.clone() } else { without.clone() })
        })
    }

    fn history(seed: u64, law: &str) -> Value {
        json!({"seed": seed, "laws": [law], "violations": [format!("{law} at 3 s")]})
    }

    #[test]
    fn a_mutant_is_caught_if_its_law_breaks_with_it_only() {
        let with = json!({"bad": [history(3, "L2"), history(4, "L1"), history(6, "L1")]});
        assert_eq!(verdict(with.clone(), json!({"bad": []})), Ok(Verdict::Caught { seed: 4 }));
        let broken = verdict(with, json!({"bad": [history(2, "L5")]})).unwrap();
        assert!(matches!(&broken, Verdict::Broken { how } if how.contains("seed 2")), "{broken}");
    }

    #[test]
    fn another_law_is_not_its_law() {
        let missed = verdict(json!({"bad": [history(3, "L2")]}), json!({"bad": []}));
        assert_eq!(missed, Ok(Verdict::Missed { seeds: 0..10 }));
    }

    #[test]
    fn a_simulation_that_does_not_start_or_report_is_no_catch() {
        assert!(verdict(json!({}), json!({})).is_err());
        let mutant = mutant("late", "a.rs", "a", "b");
        for program in ["/no/such/program", "true"] {
            let verdict = of(Path::new(program), &mutant);
            assert!(matches!(verdict, Verdict::Silent { .. }), "{verdict}");
        }
    }
}
