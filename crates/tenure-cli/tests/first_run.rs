//! A fresh machine: nothing but the binary and an empty home. And every command that the READMEs show to its user.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

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
    let line = line.replacen("cargo run -- ", "tenure ", 1);
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

/// `tenure` where no store is named.
fn without_a_store(stage: &Stage, arguments: &[&str]) -> Command {
    if stage.path(".local").exists() {
        fs::remove_dir_all(stage.path(".local")).unwrap();
    }
    let mut command = stage.command(arguments);
    command.env_remove("TENURE_URL");
    command
}

/// The README's first command, and what `ls` says of a store that nobody named.
#[test]
fn an_empty_home_is_all_it_takes_and_the_default_file_is_announced_once() {
    let stage = Stage::new();
    let ended = stage.run_command(without_a_store(&stage, &["ls"]));
    ended.complained(0, "there is no file");
    let run = ["run", "hello", "--", "echo", "I hold the lock"];
    let first = stage.run_command(without_a_store(&stage, &run));
    assert_eq!((first.code, first.out.as_str()), (0, "I hold the lock\n"));
    assert_eq!(first.err.lines().count(), 1, "{first:?}");
    let file = stage.database();
    assert!(first.err.contains(&format!("kept in {}", file.display())) && file.is_file(), "{first:?}");
    let mut second = stage.command(&run);
    second.env_remove("TENURE_URL");
    stage.run_command(second).silent(0);
    let mut looks = stage.command(&["ls"]);
    looks.env_remove("TENURE_URL");
    stage
        .run_command(looks)
        .complained(0, &format!("no lock is held or waited for in sqlite:{}", file.display()));
    stage.run_command(without_a_store(&stage, &["run", "-q", "hello", "--", "true"])).silent(0);
}

/// `$XDG_STATE_HOME` wins over the home, and what systemd made for the unit over both.
#[test]
fn the_state_directories_of_a_unit_and_of_xdg_are_respected() {
    let stage = Stage::new();
    let mut command = without_a_store(&stage, &["run", "-q", "hello", "--", "true"]);
    command.env("XDG_STATE_HOME", stage.path("state"));
    stage.run_command(command).silent(0);
    assert!(stage.path("state/tenure/locks.db").is_file());
    let mut command = without_a_store(&stage, &["run", "-q", "hello", "--", "true"]);
    command.env("XDG_STATE_HOME", stage.path("state")).env("STATE_DIRECTORY", stage.path("unit"));
    stage.run_command(command).silent(0);
    assert!(stage.path("unit/locks.db").is_file() && !stage.database().exists());
}

/// One variable names the store for every command, and `--url` wins over it. Only there a path may be relative.
#[test]
fn the_store_is_named_by_a_variable_or_a_flag() {
    let stage = Stage::new();
    let with_variable = |url: &str, arguments: &[&str]| {
        let mut command = stage.command(arguments);
        command.env("TENURE_URL", url);
        stage.run_command(command)
    };
    let absolute = format!("sqlite:{}", stage.path("by-variable.db").display());
    with_variable(&absolute, &["run", "hello", "--", "true"]).silent(0);
    with_variable(&absolute, &["run", "--url", "sqlite:by-flag.db", "hello", "--", "true"]).silent(0);
    assert!(stage.path("by-variable.db").is_file() && stage.path("by-flag.db").is_file());
    assert!(!stage.database().exists());
    let relative = with_variable("sqlite:by-variable.db", &["run", "hello", "--", "true"]);
    relative.complained(64, "the store in TENURE_URL is relative");
}

/// A file of settings names the store of the account, and a variable wins over it.
#[test]
fn the_store_is_named_by_a_file_of_settings() {
    let stage = Stage::new();
    let folder = stage.path("config/tenure");
    fs::create_dir_all(&folder).unwrap();
    let (file, secret) = (folder.join("config.toml"), folder.join("url"));
    fs::write(&secret, format!("sqlite:{}\n", stage.path("by-secret.db").display())).unwrap();
    let run = |set: &dyn Fn(&mut Command)| {
        let mut command = without_a_store(&stage, &["run", "hello", "--", "true"]);
        command.env("XDG_CONFIG_HOME", stage.path("config"));
        set(&mut command);
        stage.run_command(command)
    };
    fs::write(&file, format!("url = \"sqlite:{}\"", stage.path("by-file.db").display())).unwrap();
    run(&|_| {}).silent(0);
    assert!(stage.path("by-file.db").is_file());
    run(&|command| {
        command.env("TENURE_URL_FILE", &secret);
    })
    .silent(0);
    assert!(stage.path("by-secret.db").is_file());
    fs::write(&file, "url = 5").unwrap();
    run(&|_| {}).complained(64, "config.toml is wrong in line 1");
    assert!(!stage.database().exists());
}
