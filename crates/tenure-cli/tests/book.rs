//! The book: each command that a tutorial or a guide shows with its output is run, and says what stands there.
//!
//! A block of `console` has commands behind `$ ` and what they print. The blocks of a page are one session of bash in a home
//! of its own. Numbers, blanks, the host's name and an owner may differ; `…` stands for any text, on a line of its own for
//! any lines.
//!
//! A block of `sh` is a script. It is run with a separate store and with programs that do nothing, and must exit with 0. If it
//! cannot be run, the line before it says why.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::stage::Stage;

/// What stands before the output of a command.
const MARK: &str = "@@ ";

/// The host that the pages name.
const HOST: &str = "web-3";

/// A session is run again if it did not say what the page says: on a busy machine one may be too late for a line.
const TRIES: usize = 3;

fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Commands of a page, each with the lines that it prints.
fn sessions(page: &str) -> Vec<(String, Vec<String>)> {
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_console = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) {
            commands.push((command.to_owned(), Vec::new()));
        } else if is_console {
            commands.last_mut().expect("a block of console begins with a command").1.push(line.to_owned());
        }
    }
    commands
}

/// What may differ is taken out.
fn plain(line: &str, host: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let is_owner = word.len() == 48 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_owner { "OWNER".to_owned() } else { word.replace(host, HOST) }
    });
    let mut plain = String::new();
    for character in words.collect::<Vec<_>>().join(" ").chars() {
        match character {
            digit if digit.is_ascii_digit() && plain.ends_with('0') => {}
            digit if digit.is_ascii_digit() => plain.push('0'),
            other => plain.push(other),
        }
    }
    // A whole number has no fraction.
    plain.replace("0.0", "0")
}

/// Whether a line is what the page says.
fn fits(expected: &str, line: &str) -> bool {
    let parts: Vec<&str> = expected.split('…').collect();
    let Some(mut rest) = line.strip_prefix(parts[0]) else { return false };
    for (index, part) in parts.iter().enumerate().skip(1) {
        let place =
            if index + 1 == parts.len() && part.is_empty() { Some(rest.len()) } else { rest.find(part) };
        let Some(place) = place else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.is_empty()
}

/// Whether lines are what the page says.
fn all_fit(expected: &[String], lines: &[String]) -> bool {
    match (expected.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((first, others)), _) if first == "…" => {
            all_fit(others, lines) || lines.split_first().is_some_and(|(_, rest)| all_fit(expected, rest))
        }
        (Some((first, others)), Some((line, rest))) => fits(first, line) && all_fit(others, rest),
        _ => false,
    }
}

/// What differs between a page and what its commands said on a stage.
fn differences(commands: &[(String, Vec<String>)]) -> Vec<String> {
    let stage = Stage::new();
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let script: String = commands.iter().map(|(command, _)| format!("echo '{MARK}'\n{command}\n")).collect();
    let bin = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap();
    let mut shell = stage.program("bash");
    let path = std::env::var("PATH").unwrap_or_default();
    shell.args(["-c", &format!("exec 2>&1\n{script}")]).env("PATH", format!("{}:{path}", bin.display()));
    let out = stage.run_command(shell).out;
    let said: Vec<&str> = out.split(&format!("{MARK}\n")).skip(1).collect();
    assert_eq!(said.len(), commands.len(), "{out}");
    let pairs = commands.iter().zip(said).filter_map(|((command, expected), said)| {
        let lines: Vec<String> = said.lines().map(|line| plain(line, &host)).collect();
        let wanted: Vec<String> = expected.iter().map(|line| plain(line, &host)).collect();
        (!all_fit(&wanted, &lines)).then(|| format!("$ {command}\npage: {wanted:#?}\nsaid: {lines:#?}"))
    });
    pairs.collect()
}

fn says(page: &str) {
    let text = fs::read_to_string(book().join(page)).unwrap();
    let commands = sessions(&text);
    assert!(!commands.is_empty(), "{page} has a block of console");
    let mut found = Vec::new();
    for _ in 0..TRIES {
        found = differences(&commands);
        if found.is_empty() {
            return;
        }
    }
    panic!("{page}:\n{}", found.join("\n"));
}

macro_rules! pages {
    ($($name:ident $page:literal,)*) => {
        /// Pages whose commands are run.
        const PAGES: &[&str] = &[$($page,)*];

        $(#[test]
        fn $name() {
            says($page);
        })*
    };
}

pages! {
    first_lock "learn/first-lock.md",
    break_it "learn/break-it.md",
    install "guides/install.md",
    choose_a_ttl "guides/choose-a-ttl.md",
    once_per_interval "guides/once-per-interval.md",
    operate "guides/operate.md",
}

/// A page with such a block is run.
#[test]
fn every_page_of_learn_and_guides_with_console_is_run() {
    for folder in ["learn", "guides", "guides/migrate"] {
        for file in fs::read_dir(book().join(folder)).unwrap() {
            let file = file.unwrap().path();
            if file.is_file() && !sessions(&fs::read_to_string(&file).unwrap()).is_empty() {
                let page = file.strip_prefix(book()).unwrap().to_str().unwrap();
                assert!(PAGES.contains(&page), "{page} is to be listed here");
            }
        }
    }
}

/// The programs that the scripts call, as shell scripts. Most do nothing; `ssh` runs its command on this host.
const PROGRAMS: &[(&str, &str)] = &[
    ("backup.sh", ""),
    ("deploy.sh", ""),
    ("build.sh", ""),
    ("migrate.sh", ""),
    ("report", ""),
    ("scheduler", ""),
    ("serve", ""),
    ("server", ""),
    ("train.py", ""),
    ("transfer.sh", ""),
    ("bin/curl", ""),
    ("bin/make_report", ""),
    ("bin/ssh", "shift; case $# in 1) exec sh -c \"$1\" ;; *) exec \"$@\" ;; esac"),
    ("bin/tar", "echo archive"),
];

/// The scripts of a page that are to be run.
fn scripts(page: &str) -> Vec<String> {
    let (mut scripts, mut before, mut script) = (Vec::new(), "", None::<String>);
    for line in page.lines() {
        match &mut script {
            Some(_) if line == "```" => scripts.extend(script.take()),
            Some(script) => *script += &format!("{line}\n"),
            None if line == "```sh" && !before.starts_with("<!-- not run: ") => script = Some(String::new()),
            None => {}
        }
        before = line;
    }
    scripts
}

#[test]
fn each_script_of_a_page_ends_well() {
    let mut count = 0;
    for page in pages_with_scripts() {
        for script in scripts(&fs::read_to_string(&page).unwrap()) {
            let stage = Stage::new();
            fs::create_dir(stage.path("bin")).unwrap();
            for (name, does) in PROGRAMS {
                fs::write(stage.path(name), format!("#!/bin/sh\n{does}\n")).unwrap();
                fs::set_permissions(stage.path(name), fs::Permissions::from_mode(0o755)).unwrap();
            }
            // The store is that of the stage.
            let words = script.split(' ').filter(|word| *word != "--url" && !word.contains("://locks@"));
            fs::write(stage.path("script"), words.collect::<Vec<_>>().join(" ")).unwrap();
            let ours = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap();
            let path = std::env::var("PATH").unwrap_or_default();
            let mut shell = stage.program("sh");
            let path = format!("{}:{}:{path}", stage.path("bin").display(), ours.display());
            shell.args(["-e", "./script"]).env("PATH", path);
            let ended = stage.run_command(shell);
            assert_eq!(ended.code, 0, "{}:\n{script}\n{ended:?}", page.display());
            count += 1;
        }
    }
    assert!(count >= 10, "{count}");
}

fn pages_with_scripts() -> Vec<PathBuf> {
    let mut pages = vec![book().join("../README.md")];
    for folder in ["learn", "guides", "guides/migrate", "../packaging"] {
        let files = fs::read_dir(book().join(folder)).unwrap().map(|file| file.unwrap().path());
        pages.extend(files.filter(|file| file.extension().is_some_and(|extension| extension == "md")));
    }
    pages
}

#[test]
fn a_script_that_is_not_run_says_why() {
    let page = "```sh\ntrue\n```\n\n<!-- not run: it needs root -->\n```sh\nfalse\n```\n\n```text\nno\n```\n";
    assert_eq!(scripts(page), ["true\n"]);
}

#[test]
fn what_differs_from_a_page_is_noticed() {
    let lines = |text: &str| text.lines().map(|line| plain(line, "vm")).collect::<Vec<_>>();
    assert!(all_fit(
        &lines("held by web-3 pid 4711, 9.5 s left\n1"),
        &lines("held by  vm pid 12, 10 s left\n0")
    ));
    assert!(all_fit(&lines("…\nb … d"), &lines("x\ny\nb c d")));
    assert!(!all_fit(&lines("…\nb"), &lines("x")));
    assert!(!all_fit(&lines("a"), &lines("a\nb")));
    assert!(!fits("a…c", "a b") && !fits("a", "ab"));
}
