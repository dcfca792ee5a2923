//! `tenure` inside of `tenure run`: a lock that the outer one holds is not waited for, for it would be for ever, and its lease is
//! not ended under it.

use nix::sys::signal::Signal;
use tenure::{LockName, Locker, OwnerId, view::Mode};

use crate::{args::Global, exit::Stop, waiting::Question};

/// Where a command finds the owners of all the runs around it, the outermost first.
pub(crate) const VARIABLE: &str = "TENURE_HELD";

const BETWEEN: char = ':';

/// Owners that are handed on: a program that restarts itself under `tenure run` does not fill its environment.
const MOST: usize = 100;

/// What a command gets that runs under the locks of these owners.
pub(crate) fn with(held: impl Iterator<Item = OwnerId>) -> String {
    let mut owners = around();
    owners.extend(held.map(|owner| owner.to_string()));
    owners[owners.len().saturating_sub(MOST)..].join(&BETWEEN.to_string())
}

/// True if a process with this environment was started under a lock of this owner.
pub(crate) fn is_under(environment: &[u8], owner: &str) -> bool {
    let mut entries = environment.split(|byte| *byte == 0);
    let value = |entry: &[u8]| Some(entry.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"=")?.to_vec());
    let held = entries.find_map(value).unwrap_or_default();
    held.split(|byte| *byte == BETWEEN as u8).any(|one| one == owner.as_bytes())
}

fn around() -> Vec<String> {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    // OK to skip what is no owner: somebody else set it, and it holds nothing.
    text.split(BETWEEN).filter(|owner| owner.parse::<OwnerId>().is_ok()).map(str::to_owned).collect()
}

/// Whether a claim fits into what the runs around this command hold.
pub(crate) enum Nesting {
    Fits,
    /// It can never be granted, because they hold the lock and do not end before it.
    Never(Stop),
    /// The store did not say. If it fails on, it says so when it is asked for the lock.
    Unanswered,
}

/// Asks the store whether they hold this very lock: an owner is unlike every other one, so that it does not matter how its URL is
/// spelled, nor whether an outer run has ended or lost its lease meanwhile. A semaphore with a free slot and a reader beside
/// readers fit.
///
/// # Errors
/// A signal ended the wait for the answer.
pub(crate) async fn nesting(
    global: &Global,
    locks: &Locker,
    (name, mode): (&LockName, Mode),
    signal: impl Future<Output = Signal>,
) -> Result<Nesting, Stop> {
    let around = around();
    if around.is_empty() {
        return Ok(Nesting::Fits);
    }
    let question = Question::new(global, "looking at the lock").about(name);
    let view = question.awaited(signal, locks.inspect(name)).await.map_err(Stop::signalled)?;
    let Ok(view) = view else { return Ok(Nesting::Unanswered) };
    let held = view.holders.iter().filter(|holder| around.contains(&holder.owner));
    if mode.fits_beside(held.map(|holder| holder.mode)) {
        return Ok(Nesting::Fits);
    }
    Ok(Nesting::Never(Stop::usage(format!(
        "{name}: the `tenure run` around this command holds this lock already, and waiting for it would never end; \
         run the inner command without `tenure`, or under a lock of another name"
    ))))
}

/// Refuses what would end the lease under which this command runs, by its owner: another process could acquire the lock while the
/// command goes on, until the outer `tenure` hears of it at its next renewal (L1). `so` is why, and what to do.
///
/// The store is not asked: an owner is unlike every other one, and has one lease in its life.
pub(crate) fn refuse_own(name: &LockName, owner: OwnerId, so: &str) -> Result<(), Stop> {
    if around().contains(&owner.to_string()) {
        let line = format!("{name}: this owner has the lease of the `tenure` around this command; {so}");
        return Err(Stop::usage(line));
    }
    Ok(())
}
