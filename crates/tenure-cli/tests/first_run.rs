//! A fresh machine: nothing but the binary and an empty home.

use crate::stage::Stage;

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
