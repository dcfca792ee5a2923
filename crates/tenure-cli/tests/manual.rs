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

/// The words of a message that are the same each time: at least three that follow each other, without what is put into them.
fn constant_parts(message: &str) -> Vec<String> {
    let mut parts = vec![Vec::new()];
    for word in message.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        let is_put_in = bare.chars().any(|c| c.is_ascii_digit())
            || word.contains(['…', '`'])
            || bare.chars().any(char::is_alphabetic) && !bare.chars().any(char::is_lowercase);
        if !is_put_in {
            parts.last_mut().unwrap().push(word);
        }
        if is_put_in || word.ends_with([',', ';', ':', '.', ')', '?']) {
            parts.push(Vec::new());
        }
    }
    let parts = parts.into_iter().filter(|part| part.len() >= 3);
    parts.map(|part| part.join(" ").trim_matches([',', ';', ':', '.', '(', ')', '?']).to_owned()).collect()
}

/// The sources of all crates, each string in one line.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            for line in fs::read_to_string(&path).unwrap().lines() {
                match line.strip_suffix('\\') {
                    Some(open) => *text += open.trim_start(),
                    None => *text += &format!("{}\n", line.trim_start()),
                }
            }
        }
    }
}

/// Who looks for a message that was printed finds it on the page of errors: its words are those of the code.
#[test]
fn every_message_on_the_page_of_errors_is_one_of_the_code() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(crates.join("../docs/reference/errors.md")).unwrap();
    let mut code = String::new();
    for entry in fs::read_dir(&crates).unwrap() {
        let folder = entry.unwrap().path().join("src");
        if folder.is_dir() {
            sources(&folder, &mut code);
        }
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let messages = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let parts: Vec<String> = messages.flat_map(constant_parts).collect();
    assert!(parts.len() > 50, "{parts:?}");
    let missing: Vec<&String> = parts.iter().filter(|part| !code.contains(*part)).collect();
    assert!(missing.is_empty(), "no source says {missing:#?}");
    assert_eq!(constant_parts("held by HOST pid 7: the lease has ended, or so"), ["the lease has ended"]);
}
