//! One holder: a process that acquires the lock, looks, and writes.

use std::{error::Error, fs, io, path::Path, time::Duration};

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

/// Acquires, looks, is held up until a line comes in, and writes without another look. Says what it does in lines.
pub(crate) fn run(name: &str, url: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    die_with_the_play();
    let locks = blocking::connect(url)?;
    let guard = locks.mutex("fenced-write").with(|lock| lock.ttl(TTL)).acquire_within(PATIENCE)?;
    guard.check()?;
    println!("holds {}", guard.token());

    // The pause that no lease can exclude: between the check and the write.
    io::stdin().read_line(&mut String::new())?;

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
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
}

/// For a server that was just started and grants nothing yet.
const PATIENCE: Duration = Duration::from_secs(60);
