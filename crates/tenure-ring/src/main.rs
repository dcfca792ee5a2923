//! Tenure next to the lock libraries of other languages. `cargo xtask ring` installs them and runs this.

#![allow(clippy::disallowed_methods, reason = "real servers and processes live in real time")]

mod clients;
mod contest;
mod counter;
mod table;

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;

use crate::{
    clients::CLIENTS,
    contest::Terms,
    table::{Contest, Table},
};

/// Three clients of each library and three of Tenure want one lock, with a pause of the library's clients and without.
#[derive(Debug, Parser)]
#[command(name = "tenure-ring", version)]
struct Args {
    /// Only clients whose names contain this; may be given several times.
    #[arg(long, value_name = "NAME")]
    client: Vec<String>,
    /// How long a run lasts.
    #[arg(long, default_value_t = 10, value_name = "N")]
    seconds: u64,
    /// Runs of each client and pause.
    #[arg(long, default_value_t = 10, value_name = "N")]
    runs: usize,
    /// Pauses of the library's clients between two turns, in ms.
    #[arg(long, value_delimiter = ',', default_value = "0,30", value_name = "MS")]
    pauses: Vec<u64>,
    /// Write the results into docs/evidence/ring.jsonl, and the table into the page.
    #[arg(long)]
    write: bool,
    /// Where the clients are installed.
    #[arg(long, default_value = "target/clients", value_name = "FOLDER")]
    installed: PathBuf,
}

const DATA: &str = "docs/evidence/ring.jsonl";
const PAGE: &str = "docs/reference/interop-and-platforms.md";
fn main() -> ExitCode {
    match play(&Args::parse()) {
        Ok(complaints) if complaints.is_empty() => ExitCode::SUCCESS,
        Ok(complaints) => {
            complaints.iter().for_each(|complaint| eprintln!("tenure-ring: {complaint}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tenure-ring: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play(args: &Args) -> Result<Vec<String>, String> {
    let installed = args.installed.canonicalize();
    let installed = installed
        .map_err(|error| format!("{}: {error}; `cargo xtask ring` makes it", args.installed.display()))?;
    let is_wanted = |name: &str| args.client.is_empty() || args.client.iter().any(|part| name.contains(part));
    let mut complaints = Vec::new();
    for client in CLIENTS.iter().filter(|client| is_wanted(client.name)) {
        for &pause_ms in &args.pauses {
            let terms =
                Terms { time: Duration::from_secs(args.seconds), pause: Duration::from_millis(pause_ms) };
            let mut contest =
                Contest { client: client.name.to_owned(), pause_ms, seconds: args.seconds, runs: Vec::new() };
            for _ in 0..args.runs {
                let run = contest::run(client, terms, &installed)?;
                println!("{} ({}), pause {pause_ms} ms: {run:?}", client.name, client.layout);
                contest.runs.push(run);
            }
            complaints.extend(contest.complaints());
            if args.write {
                write_down(contest)?;
            }
        }
    }
    Ok(complaints)
}

/// Called after each contest, so that an interrupted ring has written something. The page has medians, the file every run.
fn write_down(contest: Contest) -> Result<(), String> {
    let failed = |path: &str| {
        let path = path.to_owned();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    let known = fs::read_to_string(DATA).unwrap_or_default();
    let mut table = Table::parse(&known).map_err(|error| format!("{DATA}: {error}"))?;
    table.put(contest);
    let lines = table.lines().map_err(|error| format!("{DATA}: {error}"))?;
    fs::write(DATA, lines).map_err(failed(DATA))?;
    let page = fs::read_to_string(PAGE).map_err(failed(PAGE))?;
    let page =
        table::put_into(&page, &table.page()).ok_or_else(|| format!("{PAGE} has no table of the ring"))?;
    fs::write(PAGE, page).map_err(failed(PAGE))
}
