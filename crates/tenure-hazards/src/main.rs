//! The command `tenure-hazards`: plays the scenes and shows what became of them.

use std::{
    env, fs,
    io::{self, BufRead, IsTerminal, Write},
    panic,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use console::Term;
use indicatif::{ProgressBar, ProgressStyle};
use tenure_hazards::{Need, Report, Runner, SCENES, Scene, Setup, client, output, page, pictures, programs};

/// Plays twenty-one ways to get a distributed lock wrong on real servers, and the same schedules with Tenure.
#[derive(Debug, Parser)]
#[command(name = "tenure-hazards", version)]
struct Args {
    /// Only these scenes, by number; may be given several times.
    #[arg(long, value_name = "N")]
    only: Vec<u8>,
    /// Print a list for programs.
    #[arg(long)]
    json: bool,
    /// Write a page with pictures; one file that needs no other.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the pictures into this folder, as SVG.
    #[arg(long, value_name = "FOLDER")]
    pictures: Option<PathBuf>,
    /// Compare the pictures with those in this folder: they must show the same, except for times.
    #[arg(long, value_name = "FOLDER")]
    compare: Option<PathBuf>,
    /// Play the scenes that need only keys on this Redis server, and write to it. Other scenes start their own servers.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Do not ask before something is written to the server of --url.
    #[arg(long)]
    yes: bool,
    /// How many scenes are played at the same time.
    #[arg(long, default_value_t = 4, value_name = "N")]
    jobs: usize,
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some((client::CLIENT, rest)) => return client::run(rest),
        Some((client::WORK, rest)) => return client::work(rest),
        _ => {}
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(refusal) => {
            // OK to ignore because there is no other place to report to.
            let _ = refusal.print();
            return ExitCode::from(if refusal.use_stderr() { USAGE } else { 0 });
        }
    };
    match played(&args) {
        Ok(code) => code,
        Err(refusal) => {
            eprintln!("tenure-hazards: {refusal}");
            ExitCode::from(USAGE)
        }
    }
}

fn played(args: &Args) -> Result<ExitCode, String> {
    let scenes = chosen(args)?;
    if let Some(url) = &args.url {
        agreed(args, url)?;
    }
    let needs_tenure = scenes.iter().any(|scene| scene.needs.contains(&Need::Tenure));
    if let Some(url) = &args.url {
        waited(url)?;
    }
    let program = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let tenure = if needs_tenure { programs::tenure(&program) } else { None };
    let setup = Setup { tenure, url: args.url.clone(), ..Setup::of(program) };
    // What goes wrong in a scene is shown as its verdict.
    panic::set_hook(Box::new(|_| {}));
    let runner = Runner { setup, jobs: args.jobs };
    let bar = bar(scenes.len(), args.json);
    let mut until_now: Vec<Report> = Vec::new();
    let shown = runner.play(&scenes, |scene| {
        until_now.push(scene.clone());
        until_now.sort_by_key(|shown| shown.scene.number);
        bar.inc(1);
        if !bar.is_hidden() {
            bar.set_message(format!("{}\n", in_table(&until_now, &Term::stderr(), output::short)));
        }
    });
    bar.finish_and_clear();
    if args.json {
        println!("{}", output::json(&shown));
    } else {
        println!("{}", in_table(&shown, &Term::stdout(), output::full));
    }
    written(args, &shown)?;
    let differences = args.compare.as_ref().map_or_else(Vec::new, |folder| pictures::compare(folder, &shown));
    differences.iter().for_each(|line| eprintln!("{line}"));
    Ok(if differences.is_empty() { code(&shown) } else { ExitCode::FAILURE })
}

/// The page and the pictures, where they are wanted.
fn written(args: &Args, shown: &[Report]) -> Result<(), String> {
    if let Some(file) = &args.html {
        let page = page::of(shown).map_err(|error| error.to_string())?;
        fs::write(file, page).map_err(|error| format!("--html {}: {error}", file.display()))?;
    }
    match &args.pictures {
        Some(folder) => pictures::write(folder, shown)
            .map_err(|error| format!("--pictures {}: {error}", folder.display())),
        None => Ok(()),
    }
}

fn chosen(args: &Args) -> Result<Vec<&'static Scene>, String> {
    let is_there = |number: &&u8| SCENES.iter().any(|scene| scene.number == **number);
    if let Some(number) = args.only.iter().find(|number| !is_there(number)) {
        return Err(format!("--only {number}: there is no such scene; there are 1 to {}", SCENES.len()));
    }
    let is_wanted = |scene: &&Scene| args.only.is_empty() || args.only.contains(&scene.number);
    Ok(SCENES.iter().filter(is_wanted).collect())
}

fn in_table(shown: &[Report], term: &Term, table: fn(&[Report], u16, bool) -> String) -> String {
    let is_plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let columns = if term.is_term() { term.size().1.clamp(60, 160) } else { 160 };
    table(shown, columns, term.is_term() && !is_plain)
}

/// Asks before anything is written to a server that this program did not start.
fn agreed(args: &Args, url: &str) -> Result<(), String> {
    if !["redis://", "rediss://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err("--url: only a Redis server can be given, as redis://HOST:PORT/".into());
    }
    if args.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err("--url: keys are written to that server; say --yes if they may be".into());
    }
    eprint!(
        "The scenes write keys that begin with tenure-hazards: and the record of Tenure to that server. Go on? [y/N] "
    );
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(|error| error.to_string())?;
    if answer.trim().eq_ignore_ascii_case("y") { Ok(()) } else { Err("nothing was written".into()) }
}

/// A server that is new to Tenure grants nothing for up to 10 s, once in its life. This wait comes before the scenes.
fn waited(url: &str) -> Result<(), String> {
    let told = |words: String| format!("--url: {words}");
    let locks = tenure::blocking::connect(url).map_err(|error| told(error.to_string()))?;
    let guard = locks.mutex("tenure-hazards:first").within(PATIENCE).acquire();
    let guard = guard.map_err(|error| told(error.to_string()))?;
    guard.release().map_err(|error| told(error.to_string()))
}

fn bar(scenes: usize, is_quiet: bool) -> ProgressBar {
    if is_quiet || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg}[{bar:40}] {pos} of {len} scenes, {elapsed}");
    let bar = ProgressBar::new(u64::try_from(scenes).unwrap_or(0));
    bar.enable_steady_tick(TICK);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn code(shown: &[Report]) -> ExitCode {
    let is_wrong = |scene: &&Report| !scene.was_not_begun() && !scene.is_as_expected();
    match (shown.iter().any(|scene| is_wrong(&scene)), shown.iter().any(Report::was_not_begun)) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(UNAVAILABLE),
        (false, false) => ExitCode::SUCCESS,
    }
}

/// More than a server that is new to Tenure waits by default.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the bar shows the time.
const TICK: Duration = Duration::from_millis(250);
const USAGE: u8 = 64;
/// A program is missing: some scenes were not played.
const UNAVAILABLE: u8 = 69;
