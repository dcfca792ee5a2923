//! One holder: a process that acquires the lock, looks, and writes.

use std::{error::Error, fs, io, path::Path, time::Duration};

use nix::sys::signal::{Signal, raise};
use tenure::{
    blocking,
    fence::{FencedFile, FileError},
};

/// The word by which this program knows that it is a holder.
pub(crate) const VERB: &str = "__holder";

pub(crate) const FENCED: &str = "fenced.txt";
pub(crate) const PLAIN: &str = "plain.txt";

/// Short, because the audience waits for its end.
pub(crate) const TTL: Duration = Duration::from_secs(1);

/// What it is told in lines: to stop as if the machine held it up there, and to go on with its write.
pub(crate) const STOP: &str = "stop";
pub(crate) const WRITE: &str = "write";

/// Acquires, looks, is held up if it is told so, and writes without another look. Says what it does in lines.
pub(crate) fn run(name: &str, url: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    die_with_the_play();
    let locks = blocking::connect(url)?;
    let guard = locks.mutex("fenced-write").with(|lock| lock.ttl(TTL)).within(PATIENCE).acquire()?;
    guard.check()?;
    println!("holds {}", guard.token());

    // The pause that no lease can exclude: between the check and the write.
    for order in io::stdin().lines() {
        match order?.as_str() {
            // A signal from outside may come in the middle of a write to the file of locks: nobody could use that until we go on.
            STOP => tenure::command::suspend(|| raise(Signal::SIGSTOP))?,
            _ => break,
        }
    }

    let text = content(name);
    match FencedFile::new(folder.join(FENCED)).write(guard.pass(), text.as_bytes()) {
        Ok(()) => println!("{FENCED}: written"),
        Err(FileError::Refused(refused)) => println!("{FENCED}: {refused}"),
        Err(error) => return Err(error.into()),
    }
    fs::write(folder.join(PLAIN), text)?;
    println!("{PLAIN}: written");
    // OK to ignore because a holder that is over has nothing to release.
    let _ = guard.release();
    Ok(())
}

/// What a holder of this name writes.
pub(crate) fn content(name: &str) -> String {
    format!("written by the {name}\n")
}

/// Also while it is stopped. Elsewhere than on Linux, it ends when it goes on.
fn die_with_the_play() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
}

/// For a server that was just started and grants nothing yet.
const PATIENCE: Duration = Duration::from_secs(60);
