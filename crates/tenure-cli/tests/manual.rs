//! The manual, the pages of reference about the command: they have every verb, flag, exit code and JSON field that it has.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use crate::stage::{Stage, files::HOLD};

fn manual() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let pages = ["cli.md", "exit-codes.md", "json-and-environment.md"];
    pages.map(|page| fs::read_to_string(folder.join(page)).unwrap()).join("\n")
}

/// The words after two or more blanks in the lines of a part of the help.
fn listed<'a>(help: &'a str, part: &str) -> impl Iterator<Item = &'a str> {
    let lines = help.lines().skip_while(move |line| !line.starts_with(part)).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    lines
        .into_iter()
        .filter(|line| line.starts_with("  ") && !line.starts_with("      "))
        .filter_map(|line| line.split_whitespace().next())
}

/// The long flags of a help text.
fn flags(help: &str) -> BTreeSet<String> {
    let options = help.lines().filter(|line| line.trim_start().starts_with('-'));
    let words = options.flat_map(|line| line.split(|c: char| c.is_whitespace() || c == ','));
    let long = words.filter(|word| word.starts_with("--") && word.len() > 2);
    long.map(|word| word.trim_end_matches(['.', ';']).to_owned()).collect()
}

/// The names of all fields in a value.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                fields(value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

/// A flag that the manual does not have is one that nobody finds.
#[test]
fn every_verb_and_flag_is_in_the_manual() {
    let (stage, manual) = (Stage::new(), manual());
    let help = stage.run(&["--help"]).out;
    let groups = ["Run:", "Inspect:", "Scripts:", "Maintenance:"];
    let listed = groups.into_iter().flat_map(|group| listed(&help, group));
    let verbs: Vec<&str> = listed.filter(|verb| *verb != "help").collect();
    assert!(verbs.contains(&"run") && verbs.contains(&"completions"), "{verbs:?}");
    for verb in verbs {
        assert!(manual.contains(&format!("| `{verb}")), "the verb {verb}");
        let flags = flags(&stage.run(&[verb, "--help"]).out);
        assert!(flags.contains("--url"), "{verb}: {flags:?}");
        for flag in flags {
            let is_there =
                [format!("`{flag}`"), format!("`{flag} ")].iter().any(|text| manual.contains(text));
            assert!(is_there, "{flag} of {verb}");
        }
    }
}

/// The exit codes of the help are those of the manual.
#[test]
fn every_exit_code_is_in_the_manual() {
    let (stage, manual) = (Stage::new(), manual());
    let help = stage.run(&["--help"]).out;
    let codes: Vec<&str> =
        listed(&help, "Exit codes:").filter(|code| code.starts_with(char::is_numeric)).collect();
    assert!(codes.len() > 4, "{codes:?}");
    for code in codes {
        assert!(manual.contains(&format!("\n| {code}")), "the exit code {code}");
    }
}

/// JSON is a contract, so each field is explained where a reader looks for it.
#[test]
fn every_json_field_is_in_the_manual() {
    let (stage, manual) = (Stage::new(), manual());
    let mut found = BTreeSet::new();
    fields(&stage.json(&["doctor"]), &mut found);
    assert!(found.contains("remedy"), "there is no file yet, and that is a finding: {found:?}");
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "true"]);
    fields(&stage.show("job"), &mut found);
    assert!(found.contains("waiting_ms") && found.contains("host"), "{found:?}");
    stage.touch("go");
    for process in [holder, waiter] {
        process.ended().silent(0);
    }
    fields(&serde_json::from_str(&stage.run(&["lock", "lease", "--ttl", "1m"]).out).unwrap(), &mut found);
    fields(&stage.json(&["bench", "--duration", "10ms", "--waiters", "2"]), &mut found);
    for field in found {
        let is_there = [format!("`{field}`"), format!(".{field}`")].iter().any(|text| manual.contains(text));
        assert!(is_there, "the field {field}");
    }
}
