//! A log or a shared memory that was deleted or replaced beneath a process that has it open.
//!
//! Two processes would have two worlds in one file: two holders, and damage if both wrote into the file. So the file counts as
//! a replaced one, and this is written into its guard by the first that sees it: a process that finds others at the names of
//! those that it has open, or a newcomer that finds a process with others. The leases in the lost log have expired when the
//! longest ttl has passed since then.

use std::{path::Path, time::Duration};

use tenure_core::{BackendError, ErrorKind, Host};

use crate::{
    anchor::{Anchor, Others},
    clock::{LeaseClock, micros},
    error,
    file::FileId,
    guard::{Guard, LostLog},
    names::LogFiles,
};

/// How long a newcomer writes nothing while a process has the lost log open. It looks at the names before it writes, and is
/// in the midst of a write for no longer.
const SETTLED: Duration = Duration::from_secs(5);
/// It may have noticed sooner.
const AGAIN: Duration = Duration::from_millis(50);

/// What a newcomer has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Known,
    /// To forget one that was waited for: the log that stood there then has been tidied up since.
    Forget,
    /// To wait for its leases.
    Lost,
}

pub(crate) fn judge(guard: &Guard, others: Others) -> Verdict {
    match guard.lost_log {
        Some(LostLog::WaitedFor { number }) if others.number == Some(number) => Verdict::Known,
        Some(LostLog::Seen { .. }) => Verdict::Lost,
        _ if others.are_elsewhere => Verdict::Lost,
        Some(_) => Verdict::Forget,
        None => Verdict::Known,
    }
}

/// Whether this process has the file open beside another log or shared memory than those at their names.
pub(crate) fn is_open_here(path: &Path, file: FileId) -> Result<bool, BackendError> {
    let Some(open) = Anchor::opened(file) else { return Ok(false) };
    Ok(LogFiles::of(path)? != Some(open))
}

/// Writes down that the log of this file was lost, unless that is known. Only under the exclusive lock of the folder.
pub(crate) fn remember(
    path: &Path,
    file: FileId,
    host: &dyn Host,
    clock: &LeaseClock,
) -> Result<(), BackendError> {
    let Some(guard) = Guard::read(path)?.filter(|guard| guard.file == file) else { return Ok(()) };
    let number = LogFiles::of(path)?.map(LogFiles::number);
    let is_known = match &guard.lost_log {
        Some(LostLog::Seen { clock: id, .. }) => id == clock.id(),
        Some(LostLog::WaitedFor { number: waited_for }) => number == Some(*waited_for),
        None => false,
    };
    if is_known {
        return Ok(());
    }
    let seen = LostLog::Seen { clock: clock.id().to_owned(), at_us: micros(clock.now(host).boot) };
    Guard { lost_log: Some(seen), ..guard }.write(path, host)
}

/// Refuses while a process may be in the midst of a write to the lost log.
pub(crate) fn must_be_settled(path: &Path, host: &dyn Host, clock: &LeaseClock) -> Result<(), BackendError> {
    let seen = Guard::read(path)?.and_then(|guard| seen_at(&guard, clock));
    let left = seen.unwrap_or_default().saturating_add(SETTLED).saturating_sub(clock.now(host).boot);
    if left.is_zero() {
        return Ok(());
    }
    let message = format!(
        "the log of the database was deleted or replaced while a process has it open; nothing is granted until that \
         process has noticed, or for another {left:.1?}"
    );
    Err(error::refused(path, ErrorKind::Unavailable, message).retry_after(left.min(AGAIN)))
}

/// When it was seen, by this clock.
pub(crate) fn seen_at(guard: &Guard, clock: &LeaseClock) -> Option<Duration> {
    match &guard.lost_log {
        Some(LostLog::Seen { clock: id, at_us }) if id == clock.id() => Some(Duration::from_micros(*at_us)),
        _ => None,
    }
}
