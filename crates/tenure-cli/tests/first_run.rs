//! A fresh machine: nothing but the binary and an empty home. And every command that the READMEs show to its user.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::stage::{Ended, Stage};

/// Where the READMEs show commands.
const READMES: &[&str] = &["../../README.md", "README.md"];

fn text(readme: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(readme)).unwrap()
}

/// The lines of the blocks in this language.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let mut inside = false;
    let fence = format!("```{language}");
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.starts_with("```") {
            true => inside = line == fence,
            false if inside => lines.push(line),
            false => {}
        }
    }
    lines
}

/// Runs a line of a README as a shell does.
fn types(stage: &Stage, line: &str) -> Ended {
    let line = line.replacen("cargo run --release -- ", "tenure ", 1);
    let rest = line.strip_prefix("tenure ").unwrap_or_else(|| panic!("not a command of ours: {line}"));
    let mut command = stage.program("sh");
    command.args(["-c", &format!("\"$0\" {rest}"), env!("CARGO_BIN_EXE_tenure")]);
    stage.run_command(command)
}

/// What a user copies works, on a machine that has the user's scripts.
#[test]
fn the_commands_in_the_readmes_succeed() {
    let stage = Stage::new();
    for script in ["backup.sh", "deploy.sh", "serve.sh"] {
        fs::write(stage.path(script), "#!/bin/sh\n").unwrap();
        fs::set_permissions(stage.path(script), fs::Permissions::from_mode(0o755)).unwrap();
    }
    for readme in READMES {
        let text = text(readme);
        let lines = blocks(&text, "sh").into_iter().filter(|line| line.starts_with("tenure "));
        let count = lines.clone().count();
        assert!(count >= 4, "{readme} shows commands: {count}");
        for line in lines {
            let ended = types(&stage, line);
            assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{readme}: {line}");
        }
    }
}

/// A command with the output below it prints that.
#[test]
fn the_readme_shows_what_its_first_command_prints() {
    let text = text(READMES[0]);
    let block = blocks(&text, "console");
    let [command, shown] = block[..] else { panic!("one command, one line of output: {block:?}") };
    let ended = types(&Stage::new(), command.strip_prefix("$ ").unwrap());
    ended.silent(0);
    assert_eq!(ended.out, format!("{shown}\n"));
}

/// Each command and flag in the README's table of features is one that the command line knows.
#[test]
fn the_flags_in_the_readme_are_known() {
    let (stage, text) = (Stage::new(), text(READMES[0]));
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let commands: Vec<&str> =
        rows.flat_map(|row| row.split('`')).filter(|span| span.starts_with("tenure ")).collect();
    assert!(commands.len() > 8, "{commands:?}");
    for command in commands {
        let ended = types(&stage, &format!("{command} --help"));
        assert_eq!(ended.code, 0, "{command}: {}", ended.err);
    }
}

/// The README's first command.
#[test]
fn an_empty_home_is_all_it_takes() {
    let stage = Stage::new();
    let ended = stage.run(&["run", "hello", "--", "echo", "I hold the lock"]);
    ended.silent(0);
    assert_eq!(ended.out, "I hold the lock\n");
    assert!(stage.database().is_file(), "the state directory is the default's place");
}

/// `$XDG_STATE_HOME` wins over the home.
#[test]
fn the_state_directory_of_xdg_is_respected() {
    let stage = Stage::new();
    let mut command = stage.command(&["run", "hello", "--", "true"]);
    command.env("XDG_STATE_HOME", stage.path("state"));
    stage.run_command(command).silent(0);
    assert!(stage.path("state/tenure/locks.db").is_file());
    assert!(!stage.database().exists());
}

/// One variable names the store for every command, and `--url` wins over it.
#[test]
fn the_store_is_named_by_a_variable_or_a_flag() {
    let stage = Stage::new();
    let with_variable = |arguments: &[&str]| {
        let mut command = stage.command(arguments);
        command.env("TENURE_URL", "sqlite:by-variable.db");
        stage.run_command(command).silent(0);
    };
    with_variable(&["run", "hello", "--", "true"]);
    with_variable(&["run", "--url", "sqlite:by-flag.db", "hello", "--", "true"]);
    assert!(stage.path("by-variable.db").is_file() && stage.path("by-flag.db").is_file());
    assert!(!stage.database().exists());
}

/// Without a home there is no default, and nothing is guessed.
#[test]
fn without_a_home_a_store_must_be_named() {
    let stage = Stage::new();
    let mut command = stage.command(&["run", "hello", "--", "true"]);
    command.env_remove("HOME").env("XDG_STATE_HOME", "not/absolute");
    stage.run_command(command).complained(64, "neither HOME nor XDG_STATE_HOME is set");
    assert!(!stage.path("not").exists());
}
