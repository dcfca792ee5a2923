//! `cargo xtask ci`: all that CI does on a clean checkout.

use std::process::Command;

use crate::{
    book, neighbours,
    step::{Failure, Steps},
    tidy, tools,
    workspace::{LINTED, Workspace, cargo},
};

/// The crate whose features users choose from.
const FACADE: &str = "tenure";

/// Format, lints, each feature alone, neighbours, docs, the book, tidy, and at the end what the README tells users to run.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let mut steps = Steps::default();
    // One client does not build without its compiler of protocols.
    tools::provide(&mut steps)?;
    steps.command("fmt", cargo().args(["fmt", "--all", "--check"]))?;
    steps.command("clippy", &mut clippy(LINTED))?;
    for choice in feature_choices(workspace)? {
        let arguments: Vec<&str> = choice.iter().map(String::as_str).collect();
        steps.command(&format!("clippy {}", choice.join(" ")), &mut clippy(&arguments))?;
    }
    neighbours::run(workspace, &mut steps)?;
    steps.command(
        "doc",
        cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    book::build(workspace, &mut steps)?;
    steps.work("tidy", || tidy::run(workspace))?;
    steps.last().command("cargo xtask test", cargo().args(["xtask", "test"]))
}

fn clippy(selection: &[&str]) -> Command {
    let mut command = cargo();
    command.arg("clippy").args(selection).args(["--", "-D", "warnings"]);
    command
}

/// Cargo's arguments for the facade without features, with each one alone, and with all together.
fn feature_choices(workspace: &Workspace) -> Result<Vec<Vec<String>>, Failure> {
    let Some(facade) = workspace.package(FACADE) else {
        return Err(Failure::new("features", format!("there is no package {FACADE}")));
    };
    let bare = ["-p", FACADE, "--no-default-features"].map(str::to_owned).to_vec();
    let alone = facade.features.keys().filter(|feature| *feature != "default").map(|feature| {
        let mut choice = bare.clone();
        choice.extend(["--features".to_owned(), feature.clone()]);
        choice
    });
    let all = ["-p", FACADE, "--all-features"].map(str::to_owned).to_vec();
    Ok([bare.clone()].into_iter().chain(alone).chain([all]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(features: &str) -> Workspace {
        Workspace::parse(&format!(
            r#"{{"workspace_root": "/w", "packages": [{{"name": "tenure", "version": "0.1.0",
                "manifest_path": "/w/Cargo.toml", "features": {features}}}]}}"#
        ))
        .unwrap()
    }

    #[test]
    fn none_each_alone_and_all_features_are_built_but_never_default() {
        let workspace = workspace(r#"{"default": ["memory"], "memory": [], "sqlite": []}"#);
        let choices: Vec<String> =
            feature_choices(&workspace).unwrap().iter().map(|choice| choice.join(" ")).collect();
        assert_eq!(
            choices,
            [
                "-p tenure --no-default-features",
                "-p tenure --no-default-features --features memory",
                "-p tenure --no-default-features --features sqlite",
                "-p tenure --all-features",
            ]
        );
    }

    #[test]
    fn a_workspace_without_the_facade_is_a_failure() {
        let empty = Workspace::parse(r#"{"workspace_root": "/w", "packages": []}"#).unwrap();
        assert!(feature_choices(&empty).is_err());
    }
}
