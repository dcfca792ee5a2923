//! `cargo xtask bench`: measures, keeps what was seen as data with its commit and its machine, and makes the page of it.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use serde::{Deserialize, Serialize};

use crate::{
    step::{Failure, Steps, output_of},
    workspace::{Workspace, cargo},
};

/// One line for each run of a bench.
pub(crate) const DATA: &str = "docs/evidence/performance.jsonl";
pub(crate) const PAGE: &str = "docs/evidence/performance.md";

/// Where the benches of an earlier commit are built.
const BEFORE: &str = "before";

/// A bench that is run here: its name, the parts of it, and the title of its section.
struct Bench {
    name: &'static str,
    words: &'static [&'static str],
    title: &'static str,
}

/// Six minutes in all. The longer ones are run by hand.
const BENCHES: &[Bench] = &[
    Bench { name: "sqlite", words: &[], title: "SQLite" },
    Bench { name: "memory", words: &[], title: "Memory" },
    Bench { name: "redis", words: &["cycles", "handoff", "commands", "turns", "idle"], title: "Redis" },
    Bench { name: "redlock", words: &[], title: "Redlock" },
    Bench { name: "postgres", words: &[], title: "PostgreSQL" },
    Bench { name: "mysql", words: &[], title: "MariaDB" },
    Bench { name: "zookeeper", words: &[], title: "ZooKeeper" },
    Bench { name: "etcd", words: &[], title: "etcd" },
];

/// What one run of a bench said. A line of the data.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct Run {
    title: String,
    /// As it is repeated.
    command: String,
    commit: String,
    machine: String,
    date: String,
    /// Tables, and the sentence about the server.
    seen: Vec<String>,
}

/// `[--before COMMIT] [NAME...]`, or `page`. Answers what is wrong with the words.
pub(crate) fn run(workspace: &Workspace, words: &[&str]) -> Result<(), Failure> {
    if words == ["page"] {
        return write_page(&workspace.root, &read(&workspace.root)?);
    }
    let (before, names) = match words {
        ["--before", commit, names @ ..] => (Some(*commit), names),
        names => (None, names),
    };
    if let Some(unknown) = names.iter().find(|name| BENCHES.iter().all(|bench| bench.name != **name)) {
        return Err(Failure::new("bench", format!("no bench of six minutes is called {unknown}")));
    }
    let chosen: Vec<&Bench> =
        BENCHES.iter().filter(|bench| names.is_empty() || names.contains(&bench.name)).collect();
    let mut steps = Steps::default();
    let mut folders = vec![workspace.root.clone()];
    if let Some(commit) = before {
        folders.insert(0, check_out(workspace, commit, &mut steps)?);
    }
    // All is built before anything is measured.
    for folder in &folders {
        let mut build = benches(folder, &chosen);
        steps.command("build", build.arg("--no-run"))?;
    }
    let mut runs = read(&workspace.root)?;
    for bench in chosen {
        // In turn, so that both meet the same noise.
        for folder in &folders {
            let run = steps.work(bench.name, || measure(folder, bench))?;
            keep(&mut runs, run);
        }
    }
    let lines: Vec<String> = runs.iter().map(json).collect::<Result<_, _>>()?;
    write(&workspace.root.join(DATA), &format!("{}\n", lines.join("\n")))?;
    write_page(&workspace.root, &runs)
}

/// The page of this data.
pub(crate) fn page(data: &str) -> Result<String, String> {
    let runs = parse(data)?;
    let newest = runs.iter().max_by(|a, b| a.date.cmp(&b.date)).ok_or("there is no run")?;
    let mut page =
        format!("{HEAD}\nMeasured at commit {} on {}: {}.\n", newest.commit, newest.date, newest.machine);
    for run in &runs {
        let _ = write!(page, "\n## {}\n\n", run.title);
        if (&run.commit, &run.machine) != (&newest.commit, &newest.machine) {
            let Run { commit, machine, date, .. } = run;
            let _ = write!(page, "**Of another commit**: {commit}, {date}, {machine}.\n\n");
        }
        let _ = write!(page, "`{}`\n\n{}\n", run.command, run.seen.join("\n"));
    }
    Ok(page)
}

/// A run takes the place of the one before it of the same title and the same side of a comparison.
fn keep(runs: &mut Vec<Run>, run: Run) {
    match runs.iter_mut().find(|there| there.title == run.title) {
        Some(there) => *there = run,
        None => runs.push(run),
    }
}

fn measure(folder: &Path, bench: &Bench) -> Result<Run, Failure> {
    let failed = |why: String| Failure::new(bench.name, why);
    let mut command = benches(folder, &[bench]);
    command.arg("--").args(bench.words).stderr(Stdio::inherit());
    let output = command.output().map_err(|e| failed(format!("cannot start cargo: {e}")))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    let is_before = folder.ends_with(BEFORE);
    let title = if is_before { format!("{}, before", bench.title) } else { bench.title.to_owned() };
    let seen = seen(&String::from_utf8_lossy(&output.stdout));
    println!("{}", seen.join("\n"));
    let words = bench.words.join(" ");
    let features = if bench.name == "etcd" { " --features etcd" } else { "" };
    let command = format!("cargo bench -p tenure-bench{features} --bench {} -- {words}", bench.name);
    Ok(Run {
        title,
        command: command.trim_end_matches([' ', '-']).to_owned(),
        commit: commit_of(folder)?,
        machine: machine(),
        date: output_of(Command::new("date").args(["-u", "+%Y-%m-%d"]))?,
        seen,
    })
}

/// Tables, and sentences about the server; nothing of what the runner of benches says.
fn seen(output: &str) -> Vec<String> {
    let is_ours = |line: &&str| {
        let is_sentence = line.ends_with('.') && !line.starts_with(' ');
        line.is_empty() || line.starts_with('|') || is_sentence
    };
    let mut lines: Vec<&str> = output.lines().map(str::trim_end).filter(is_ours).collect();
    lines.dedup_by(|a, b| a.is_empty() && b.is_empty());
    let lines = lines.join("\n");
    lines.trim().lines().map(str::to_owned).collect()
}

fn benches(folder: &Path, chosen: &[&Bench]) -> Command {
    let mut command = cargo();
    command.current_dir(folder).args(["bench", "--quiet", "--package", "tenure-bench"]);
    if chosen.iter().any(|bench| bench.name == "etcd") {
        command.args(["--features", "etcd"]);
    }
    for bench in chosen {
        command.args(["--bench", bench.name]);
    }
    command
}

/// A tree of that commit, with a target of its own.
fn check_out(workspace: &Workspace, commit: &str, steps: &mut Steps) -> Result<PathBuf, Failure> {
    let folder = workspace.target.join(BEFORE);
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&workspace.root).args(words);
        git
    };
    if folder.exists() {
        steps.command("before", git(&["checkout", "--quiet", "--detach", commit]).current_dir(&folder))?;
    } else {
        let place = folder.display().to_string();
        steps.command("before", &mut git(&["worktree", "add", "--detach", &place, commit]))?;
    }
    Ok(folder)
}

/// The commit of a tree in which nothing else has changed than what a bench writes.
fn commit_of(folder: &Path) -> Result<String, Failure> {
    let changed = output_of(Command::new("git").current_dir(folder).args(["status", "--porcelain"]))?;
    let of_ours = |line: &str| [DATA, PAGE].iter().any(|path| line.ends_with(path));
    if changed.lines().any(|line| !of_ours(line)) {
        return Err(Failure::new("bench", "commit first: the figures are those of a commit"));
    }
    output_of(Command::new("git").current_dir(folder).args(["rev-parse", "--short=12", "HEAD"]))
}

fn machine() -> String {
    let facts = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = facts.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unknown processor", |(_, model)| model.trim());
    let count = thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{count} processors of {model}, Linux {}", kernel.trim())
}

fn read(root: &Path) -> Result<Vec<Run>, Failure> {
    parse(&fs::read_to_string(root.join(DATA)).unwrap_or_default()).map_err(|why| Failure::new(DATA, why))
}

fn parse(data: &str) -> Result<Vec<Run>, String> {
    data.lines().map(|line| serde_json::from_str(line).map_err(|e| e.to_string())).collect()
}

fn json(run: &Run) -> Result<String, Failure> {
    serde_json::to_string(run).map_err(|e| Failure::new(DATA, e.to_string()))
}

fn write_page(root: &Path, runs: &[Run]) -> Result<(), Failure> {
    let lines: Vec<String> = runs.iter().map(json).collect::<Result<_, _>>()?;
    let page = page(&lines.join("\n")).map_err(|why| Failure::new(DATA, why))?;
    write(&root.join(PAGE), &page)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|e| Failure::new("bench", format!("cannot write {}: {e}", path.display())))
}

const HEAD: &str = "\
# Performance

Each figure is measured next to *the same by hand*: a minimal client written directly against the driver, with the same
guarantees as far as it can have them. Both take turns in one run, and the median of the rounds is shown. Absolute figures
belong to their machine; the quotients travel.

`cargo xtask bench` measures, and makes this page from [performance.jsonl](performance.jsonl). No other figure is on it.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn of(title: &str, commit: &str, date: &str) -> Run {
        let seen = vec!["| a | 1.5 |".to_owned()];
        let (command, machine) = ("cargo bench".to_owned(), "2 processors".to_owned());
        Run { title: title.into(), command, commit: commit.into(), machine, date: date.into(), seen }
    }

    #[test]
    fn a_figure_of_another_commit_is_marked() {
        let runs = [of("SQLite", "new", "2026-02-01"), of("An hour", "old", "2026-01-01")];
        let data: Vec<String> = runs.iter().map(|run| json(run).unwrap()).collect();
        let page = page(&data.join("\n")).unwrap();
        assert!(page.contains("Measured at commit new on 2026-02-01: 2 processors."), "{page}");
        assert_eq!(page.matches("**Of another commit**: old, 2026-01-01").count(), 1, "{page}");
        assert_eq!(page.matches("| a | 1.5 |").count(), 2);
    }

    #[test]
    fn a_run_replaces_the_one_before_it() {
        let mut runs = vec![of("SQLite", "old", "2026-01-01"), of("Redis", "old", "2026-01-01")];
        keep(&mut runs, of("SQLite", "new", "2026-02-01"));
        keep(&mut runs, of("SQLite, before", "old", "2026-02-01"));
        assert_eq!(runs.iter().map(|run| &*run.commit).collect::<Vec<_>>(), ["new", "old", "old"]);
    }

    #[test]
    fn tables_are_kept_and_the_words_of_the_runner_are_not() {
        let output = "sqlite/raw  time: [1 2 3]\n    No change in performance detected.\n\n\nRedis 7, guard on.\n\n| a |\n|--|\n";
        assert_eq!(seen(output), ["Redis 7, guard on.", "", "| a |", "|--|"]);
    }
}
