//! The completions as shells read them: what the package installs, and what `tenure completions SHELL` prints.

use std::fs;

use crate::stage::Stage;

/// A script that asks bash as a TAB does, and prints a candidate a line: script, then the words so far.
const ASK_BASH: &str = r#"
set -u
. "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
declaration=$(complete -p tenure)
function=${declaration#* -F }; function=${function%% *}
"$function" tenure "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// What fish would offer: script, then the line so far.
const ASK_FISH: &str = "source $argv[1]; complete -C $argv[2]";

/// The script for a shell, in a file.
fn script(stage: &Stage, shell: &str) -> String {
    let path = stage.path(shell);
    let printed = stage.run(&["completions", shell]);
    printed.silent(0);
    fs::write(&path, &printed.out).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What a shell says; nothing if it is not installed.
fn said(stage: &Stage, shell: &str, arguments: &[&str]) -> Option<String> {
    let Ok(output) = stage.program(shell).args(arguments).output() else {
        eprintln!("not tried: there is no {shell}");
        return None;
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{shell}: {} {complaints}", output.status);
    Some(String::from_utf8(output.stdout).unwrap())
}

fn candidates(stage: &Stage, words: &[&str]) -> Vec<String> {
    let script = script(stage, "bash");
    let arguments = [&["--norc", "-c", ASK_BASH, "bash", &script], words].concat();
    let said = said(stage, "bash", &arguments).expect("bash, which the tests run on");
    said.lines().map(str::to_owned).collect()
}

/// A user of bash gets verbs, then the flags of the verb, and files for what is to be run.
#[test]
fn bash_offers_verbs_and_flags() {
    let stage = Stage::new();
    let verbs = candidates(&stage, &["tenure", "r"]);
    assert_eq!(verbs, ["run", "renew"]);
    let verbs = candidates(&stage, &["tenure", ""]);
    for verb in
        ["run", "ls", "show", "break", "doctor", "bench", "lock", "unlock", "attach", "watch", "completions"]
    {
        assert!(verbs.iter().any(|offered| offered == verb), "{verb}: {verbs:?}");
    }
    assert!(!verbs.iter().any(|verb| verb.starts_with("__")), "inner verbs are not for people: {verbs:?}");
    assert_eq!(candidates(&stage, &["tenure", "run", "--no"]), ["--nonblock"]);
    assert_eq!(candidates(&stage, &["tenure", "completions", "fi"]), ["fish"]);
}

/// No shell stumbles over its script. A shell that is not installed reads nothing.
#[test]
fn each_shell_can_read_its_script() {
    let stage = Stage::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = script(&stage, shell);
        assert_eq!(said(&stage, shell, &["-n", &script]).unwrap_or_default(), "", "{shell}");
    }
    let zsh = fs::read_to_string(stage.path("zsh")).unwrap();
    assert!(zsh.starts_with("#compdef tenure\n"), "by this line zsh finds it in a folder of completions");
    if let Some(offered) = said(&stage, "fish", &["-c", ASK_FISH, &script(&stage, "fish"), "tenure run --no"])
    {
        assert!(offered.starts_with("--nonblock\t"), "{offered}");
    }
}
