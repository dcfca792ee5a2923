//! The man pages in `packaging/man`, generated from the command line and the pages of the book. They are committed,
//! so that a build of the command needs no generator. These tests compare them, and can write them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command as Process,
};

use clap::{Command, CommandFactory};
use clap_mangen::{
    Man,
    roff::{Inline, Roff, bold, roman},
};

use crate::args::Cli;

/// With this variable the pages are written, not compared.
const WRITE: &str = "TENURE_WRITE_MAN";

const HOW: &str = "TENURE_WRITE_MAN=1 cargo test -p tenure-cli --bin tenure man_tests";

/// The parts of the book that follow the help of a verb on its man page: man page, page of the book, heading in the book,
/// heading on the man page.
const PARTS: &[(&str, &str, &str, &str)] = &[
    ("tenure", DATA, "## Environment", "ENVIRONMENT"),
    ("tenure-run", CLI, "## What `run` does to the command", "WHAT IT DOES TO THE COMMAND"),
    ("tenure-run", CLI, "## `run` inside of `run`", "A RUN INSIDE OF A RUN"),
    ("tenure-run", "guides/several-locks.md", "# Several locks", "SEVERAL LOCKS"),
    ("tenure-run", "guides/once-per-interval.md", "# Once per interval", "ONCE PER INTERVAL"),
    ("tenure-run", CLI, "### `run -v`", "OUTPUT"),
    ("tenure-run", DATA, "## Environment", "ENVIRONMENT"),
    ("tenure-run", SCRIPTS, "# Scripts", "IN SCRIPTS"),
    ("tenure-lead", "guides/leader-election.md", "# Leader election", "ONE LEADER OF MANY"),
    ("tenure-lead", CLI, "## What `run` does to the command", "WHAT IT DOES TO THE COMMAND"),
    ("tenure-lead", DATA, "## Environment", "ENVIRONMENT"),
    ("tenure-attach", CLI, "## What `run` does to the command", "WHAT IT DOES TO THE COMMAND"),
    ("tenure-attach", DATA, "## Environment", "ENVIRONMENT"),
    ("tenure-attach", SCRIPTS, "## A lease that moves to another process", "IN SCRIPTS"),
    ("tenure-ls", DATA, "### `ls` and `show`", "OUTPUT"),
    ("tenure-show", DATA, "### `ls` and `show`", "OUTPUT"),
    ("tenure-watch", DATA, "### `watch`", "OUTPUT"),
    ("tenure-lock", DATA, "### `lock`", "OUTPUT"),
    ("tenure-doctor", DATA, "### `doctor`", "OUTPUT"),
    ("tenure-bench", DATA, "### `bench`", "OUTPUT"),
    ("tenure-break", CLI, "### `break`", "OUTPUT"),
];

const CLI: &str = "reference/cli.md";
const DATA: &str = "reference/json-and-environment.md";
const SCRIPTS: &str = "guides/scripts.md";

/// What the parts of the help are called on a page.
const HELP: &[(&str, &str)] =
    &[("Examples:", "EXAMPLES"), ("Exit codes:", "EXIT STATUS"), ("Parts:", "PARTS")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder() -> PathBuf {
    root().join("packaging/man")
}

/// Every page by the name of its file.
fn pages() -> BTreeMap<String, String> {
    let mut tenure = Cli::command().version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true);
    tenure.build();
    let verbs: Vec<Command> = tenure.get_subcommands().cloned().collect();
    let names: Vec<String> = verbs.iter().map(name).collect();
    let all = verbs.into_iter().chain([tenure]);
    all.map(|command| (format!("{}.1", name(&command)), page(&command, &names))).collect()
}

fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &Command, verbs: &[String]) -> String {
    let name = name(command);
    let source = concat!("tenure ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).date(" ").source(source).manual("Tenure Manual");
    let mut text = Vec::new();
    man.render_title(&mut text).unwrap();
    man.render_name_section(&mut text).unwrap();
    man.render_synopsis_section(&mut text).unwrap();
    man.render_description_section(&mut text).unwrap();
    man.render_options_section(&mut text).unwrap();
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text).unwrap();
    }
    let mut rest = Roff::new();
    help(&mut rest, &command.get_after_help().map(ToString::to_string).unwrap_or_default());
    for (_, source, theirs, ours) in PARTS.iter().filter(|(page, ..)| *page == name) {
        let source = fs::read_to_string(root().join("docs").join(source)).unwrap();
        // A comment is for who tests the page.
        let shown = source.lines().filter(|line| !line.starts_with("<!--"));
        let source = shown.fold(String::new(), |text, line| text + "\n" + line) + "\n";
        rest.control("SH", [*ours]);
        markdown(&mut rest, part(&source, theirs));
    }
    see_also(&mut rest, &name, verbs);
    rest.to_writer(&mut text).unwrap();
    once(&String::from_utf8(text).unwrap())
}

/// Every part of a page comes with the same preamble; one is enough.
fn once(page: &str) -> String {
    let preamble: Vec<&str> = page.lines().take(2).collect();
    let rest = page.lines().filter(|line| !preamble.contains(line)).map(marked);
    preamble.iter().map(ToString::to_string).chain(rest).fold(String::new(), |page, line| page + &line + "\n")
}

/// Text in backticks in the help is bold.
fn marked(line: &str) -> String {
    let parts = line.split('`').enumerate();
    parts
        .map(|(index, part)| if index % 2 == 1 { format!("\\fB{part}\\fR") } else { part.to_owned() })
        .collect()
}

/// A heading, lines of a word and its meaning, and text.
fn help(roff: &mut Roff, text: &str) {
    for line in text.lines() {
        match line.trim_start().split_once("  ") {
            Some((word, meaning)) => {
                roff.control("TP", []).text([bold(word)]).text([roman(meaning.trim())]);
            }
            None => match HELP.iter().find(|(heading, _)| *heading == line) {
                Some((_, heading)) => _ = roff.control("SH", [*heading]),
                None => _ = roff.control("PP", []).text([roman(line)]),
            },
        }
    }
}

fn see_also(roff: &mut Roff, name: &str, verbs: &[String]) {
    roff.control("SH", ["SEE ALSO"]);
    let verbs = verbs.iter().map(String::as_str);
    let mut others: Vec<&str> = if name == "tenure" { verbs.collect() } else { vec!["tenure"] };
    others.push("flock");
    for (index, other) in others.iter().enumerate() {
        let end = if index + 1 == others.len() { "(1)" } else { "(1)," };
        roff.text([bold(*other), roman(end)]);
    }
}

/// The text under a heading, to the next one of its rank.
fn part<'a>(manual: &'a str, heading: &str) -> &'a str {
    let (_, text) = manual.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let rank = heading.find(' ').unwrap();
    let ends = (2..=rank).filter_map(|rank| text.find(&format!("\n{} ", "#".repeat(rank))));
    &text[..ends.min().unwrap_or(text.len())]
}

/// Markdown in the manual: headings, paragraphs, lists, tables and quotations.
fn markdown(roff: &mut Roff, text: &str) {
    let (mut is_quoted, mut is_open) = (false, false);
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let is_header = lines.get(index + 1).is_some_and(|next| next.starts_with("|-"));
        if line.starts_with("```") {
            is_quoted = !is_quoted;
            roff.control(if is_quoted { "PP" } else { "EE" }, []);
            if is_quoted {
                roff.control("EX", []);
            }
        } else if is_quoted {
            roff.text([roman(*line)]);
        } else if let Some(heading) =
            line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
        {
            roff.control("SS", [heading]);
        } else if line.starts_with('|') {
            if !is_header && !line.starts_with("|-") {
                row(roff, line);
            }
        } else if let Some(item) = line.strip_prefix("* ") {
            roff.control("IP", ["\\(bu", "2"]).text(words(item));
        } else if line.is_empty() {
            is_open = false;
            continue;
        } else {
            if !is_open && !line.starts_with(' ') {
                roff.control("PP", []);
            }
            roff.text(words(line.trim_start()));
        }
        is_open = true;
    }
}

/// The first cell is the word; the cells between it and the meaning go in brackets.
fn row(roff: &mut Roff, line: &str) {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let (word, rest) = cells.split_first().unwrap();
    let (meaning, between) = rest.split_last().unwrap();
    let mut tag = words(word);
    if !between.is_empty() {
        tag.push(roman(format!(" ({})", between.join(", "))));
    }
    roff.control("TP", []).text(tag).text(words(meaning));
}

/// Text in backticks is bold; of a link only its text stays.
fn words(text: &str) -> Vec<Inline> {
    let text = text.replace("**", "");
    let parts = text.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(index, part)| if index % 2 == 1 { bold(part) } else { roman(unlinked(part)) }).collect()
}

fn unlinked(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((shown, after)) = link.split_once("](") else { break };
        plain.extend([before, shown]);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    plain + rest
}

/// A page that was not regenerated describes an old version of the command.
#[test]
fn the_pages_are_those_of_the_command_line_and_the_manual() {
    let (pages, folder) = (pages(), folder());
    assert!(pages.len() > 10 && pages.contains_key("tenure.1") && pages.contains_key("tenure-run.1"));
    if env::var_os(WRITE).is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (file, page) in &pages {
            fs::write(folder.join(file), page).unwrap();
        }
    }
    let there = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.collect::<BTreeSet<_>>(), pages.keys().cloned().collect(), "to be mended by: {HOW}");
    for (file, page) in &pages {
        let committed = fs::read_to_string(folder.join(file)).unwrap();
        assert!(committed == *page, "{file} is not what the command line says; to be mended by: {HOW}");
    }
}

/// A wrong macro shows as text, or hides it. Where `man` is not installed, only the form is checked.
#[test]
fn the_pages_are_right_for_man() {
    let folder = folder();
    for (file, page) in pages() {
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS", ".SH \"SEE ALSO\""] {
            assert!(page.lines().any(|line| line == section), "{file}: {section}");
        }
        assert!(!page.contains('`'), "{file}: Markdown is left in it");
        let mut man = Process::new("man");
        man.args(["--warnings", "-E", "UTF-8", "-l"]).arg(folder.join(&file));
        let Ok(shown) = man.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80").output() else {
            eprintln!("not tried: there is no man");
            continue;
        };
        assert!(shown.status.success() && shown.stderr.is_empty(), "{file}: {shown:?}");
    }
}

/// Each exit code and variable in the docs is on a man page.
#[test]
fn what_scripts_rely_on_is_on_the_pages() {
    let pages = pages();
    let run = &pages["tenure-run.1"];
    for word in ["EXIT STATUS", "79", "TENURE_TOKEN", "TENURE_URL", "\\-\\-nonblock", "EXAMPLES"] {
        assert!(run.contains(word), "{word}");
    }
    assert!(
        pages["tenure.1"].contains("tenure\\-doctor") && pages["tenure-show.1"].contains("expires_in_ms")
    );
}
