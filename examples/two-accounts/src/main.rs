//! Two accounts locked together: see the README.

mod bank;
mod teller;

use std::{
    env,
    error::Error,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
};

use bank::Bank;

/// How many processes move money at the same time.
const TELLERS: usize = 4;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match arguments[..] {
        [teller::VERB, number, url, folder] => teller::run(number, url, Path::new(folder)),
        [] => in_a_folder(None),
        [url] if !url.starts_with('-') => in_a_folder(Some(url)),
        _ => Err("usage: two-accounts [URL]".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("two-accounts: {}", in_full(&*error));
            ExitCode::FAILURE
        }
    }
}

/// The accounts, and the locks if no other store is named, are in a folder that is gone afterwards.
fn in_a_folder(url: Option<&str>) -> Result<(), Box<dyn Error>> {
    if url.is_some_and(|url| url.starts_with("memory:")) {
        return Err("a lock in memory is seen by one process only; name a store that all can see".into());
    }
    let folder = tempfile::tempdir()?;
    let own = format!("sqlite:{}", folder.path().join("locks.db").display());
    play(url.unwrap_or(&own), folder.path().to_owned())
}

fn play(url: &str, folder: PathBuf) -> Result<(), Box<dyn Error>> {
    let bank = Bank::open(folder.clone());
    let before = bank.total()?;
    let tellers = (0..TELLERS).map(|number| start(number, url, &folder)).collect::<Result<Vec<_>, _>>()?;
    for mut teller in tellers {
        if !teller.0.wait()?.success() {
            return Err("a teller failed".into());
        }
    }
    for (account, balance) in bank.balances()?.iter().enumerate() {
        println!("account {account}  {balance:>5}");
    }
    let after = bank.total()?;
    println!("in all     {after:>5}, as at the start: {before}");
    if before == after { Ok(()) } else { Err("money was lost, or made".into()) }
}

/// A teller's process. It does not outlive the play.
struct Teller(Child);

fn start(number: usize, url: &str, folder: &Path) -> Result<Teller, Box<dyn Error>> {
    let mut command = Command::new(env::current_exe()?);
    command.args([teller::VERB, &number.to_string(), url]).arg(folder);
    Ok(Teller(command.spawn()?))
}

impl Drop for Teller {
    fn drop(&mut self) {
        // OK to ignore because one that has ended is what we want.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The error and what caused it.
fn in_full(error: &dyn Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", in_full(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}
