//! One host, in one night: cron has started the job here, as on the others.

use std::{error::Error, fs, io, path::Path, thread, time::Duration};

use tenure::{Label, blocking, once::RunOutcome};

/// The word by which this program knows that it is a host.
pub(crate) const VERB: &str = "__host";

/// From one night to the next. In earnest a little less than a day, for clocks that start the job sooner.
pub(crate) const NIGHT: Duration = Duration::from_secs(6);

/// While this file is there, the job finds no disk. The first one that tries takes it away.
pub(crate) const NO_DISK: &str = "no disk";

/// Runs the job unless another host has done it, and says in a line what became of it.
pub(crate) fn run(name: &str, url: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let label = Label::new(name, std::process::id(), "", "backup");
    let locks = blocking::connect(url)?.with_label(label);
    let nightly = locks.once("nightly").with(|once| once.interval(NIGHT));
    match nightly.run(|_lease| backup(folder))? {
        RunOutcome::Ran(Ok(())) => println!("has made the backup"),
        RunOutcome::Ran(Err(error)) => println!("has failed: {error}"),
        RunOutcome::Skipped(last) => {
            let by = last.by.split(' ').next().unwrap_or_default();
            println!("has nothing to do: {by} began it {:.1} s ago", last.ago.as_secs_f64());
        }
    }
    locks.flush(Duration::from_secs(2));
    Ok(())
}

/// The work.
fn backup(folder: &Path) -> io::Result<()> {
    if fs::remove_file(folder.join(NO_DISK)).is_ok() {
        return Err(io::Error::other(NO_DISK));
    }
    thread::sleep(Duration::from_millis(300));
    Ok(())
}
