//! `tenure` inside `tenure run`: it does not wait for a lock that the outer one holds, because that would never
//! end, and it does not end that lease.

use nix::sys::signal::Signal;
use tenure::{LockName, Locker, OwnerId, view::Mode};

use crate::{args::Global, exit::Stop, waiting::Question};

/// The owners of all the runs around a command, the outermost first.
pub(crate) const VARIABLE: &str = "TENURE_HELD";

const BETWEEN: char = ':';

/// The maximum number of owners that are passed on, so that a program that restarts itself under `tenure run` does
/// not fill its environment.
const MOST: usize = 100;

/// The value for a command that runs under the locks of these owners.
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
    // OK to skip a value that is not an owner: another program set it, and it holds nothing.
    text.split(BETWEEN).filter(|owner| owner.parse::<OwnerId>().is_ok()).map(str::to_owned).collect()
}

/// Whether a claim is possible together with the locks of the runs around this command.
pub(crate) enum Nesting {
    Fits,
    /// It can never be granted, because they hold the lock and do not end before it.
    Never(Stop),
    /// The store did not answer. If it still fails, the request for the lock reports it.
    Unanswered,
}

/// Asks the store whether they hold this very lock. Owners are unique, so neither the spelling of the URL matters,
/// nor whether an outer run has ended or lost its lease since. A semaphore with a free slot and a reader together
/// with readers are possible.
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

/// Refuses to end, by its owner, the lease under which this command runs. Otherwise another process could acquire
/// the lock while the command continues, until the outer `tenure` detects it at its next renewal (L1). `so` is the
/// reason and the remedy.
///
/// Needs no request to the store: owners are unique, and each has one lease in its life.
pub(crate) fn refuse_own(name: &LockName, owner: OwnerId, so: &str) -> Result<(), Stop> {
    if around().contains(&owner.to_string()) {
        let line = format!("{name}: this owner has the lease of the `tenure` around this command; {so}");
        return Err(Stop::usage(line));
    }
    Ok(())
}
