//! The play: three nights, in each of which three hosts want to do the same.

use std::{
    env,
    error::Error,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::host::{NIGHT, NO_DISK, VERB};

const HOSTS: [&str; 3] = ["anna", "berta", "clara"];

/// Plays it, and fails if anything happens that should not.
pub(crate) fn run(url: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    for (number, night) in ["first", "second", "third"].into_iter().enumerate() {
        println!("The {night} night: cron starts the job on {}", HOSTS.join(", "));
        let fails = number == 1;
        if fails {
            fs::write(folder.join(NO_DISK), "")?;
            println!("        The first one that tries finds no disk");
        }
        let hosts: Result<Vec<Child>, _> = HOSTS.iter().map(|name| start(name, url, folder)).collect();
        let mut said = Vec::new();
        for (name, host) in HOSTS.iter().zip(hosts?) {
            let ended = host.wait_with_output()?;
            expect("a host ends well", ended.status.success())?;
            let line = String::from_utf8_lossy(&ended.stdout).trim_end().to_owned();
            println!("{name:<7} {line}");
            said.push(line);
        }
        let count = |what: &str| said.iter().filter(|line| line.starts_with(what)).count();
        expect("one host has made the backup", count("has made the backup") == 1)?;
        expect("one has failed, where one had to", count("has failed: no disk") == usize::from(fails))?;
        if number < 2 {
            thread::sleep(NIGHT + PAST);
        }
    }
    println!("\nThree nights, three backups");
    Ok(())
}

fn start(name: &str, url: &str, folder: &Path) -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new(env::current_exe()?);
    command.args([VERB, name, url]).arg(folder).stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command.spawn()?)
}

fn expect(what: &str, is_so: bool) -> Result<(), Box<dyn Error>> {
    if is_so { Ok(()) } else { Err(format!("this should be so, and is not: {what}").into()) }
}

/// For stores that count in whole seconds.
const PAST: Duration = Duration::from_secs(2);
