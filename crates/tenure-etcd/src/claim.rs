//! The verb `claim`: taking a place in the line, keeping it, and entering when its turn has come.

use std::time::Duration;

use futures_util::future::join;
use tenure_core::{BackendError, Claim, ClaimAnswer, FencingToken, Grant, HolderView, Outcome, Wait};

use crate::{
    backend::Etcd,
    error,
    keys::{Leases, Value, folder, key},
    line::Line,
    requests::{Change, Kept, Leased},
    seats::Seat,
    wake::Awaited,
};

/// How long the place of a dead waiter bars those behind it at most, in seconds.
const PLACE_SECONDS: i64 = 6;

/// A waiter asks again after this long at the latest.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How often a step is done anew that a change of the leader made uncertain.
const ROUNDS: usize = 3;

/// One claim on its way.
struct Asking<'a> {
    etcd: &'a Etcd,
    claim: &'a Claim,
    folder: String,
    key: Vec<u8>,
    leases: Leases,
    /// The ttl in the server's seconds, rounded up: its lease ends no sooner than ours.
    seconds: i64,
    patience: Duration,
}

/// A lease that certainly lasts its ttl from after we began: granted through the quorum, or kept alive by whoever is the
/// leader in this term.
#[derive(Clone, Copy)]
struct Secured {
    term: Option<u64>,
}

impl Secured {
    /// Whether a linearizable read of this term, which came later, proves it: had another leader been elected before the
    /// lease was kept alive, the quorum would answer with a later term. So a leader that does not know yet that it is none
    /// is not believed (etcd #15247).
    fn is_proved_by(self, line: &Line) -> bool {
        self.term.is_none_or(|term| term == line.term)
    }
}

impl Etcd {
    pub(crate) async fn claim_once(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let folder = folder(&self.config().prefix, &claim.name);
        let key = key(&folder, claim.owner);
        let (leases, seconds) = (Leases::of(claim.owner), whole_seconds(claim.ttl));
        let patience = self.members.patience(claim.ttl);
        let asking = Asking { etcd: self, claim, folder, key, leases, seconds, patience };
        match claim.wait {
            Wait::Wake => Err(error::no_turnless_place()),
            Wait::No => asking.ask_in_passing().await,
            Wait::Turn => {
                let seat = self.shared.seats.get(claim.owner);
                if let Some(Seat::Waiting { created, on_place }) = seat {
                    let answer = asking.ask_again(created, on_place).await;
                    // What was done before stays done, whatever fails now (L9).
                    if let Some(answer) = answer.map_err(BackendError::of_unknown_outcome)? {
                        return Ok(answer);
                    }
                }
                asking.arrive().await
            }
        }
    }
}

impl Asking<'_> {
    /// Looks first: who does not fit leaves no trace.
    async fn ask_in_passing(&self) -> Result<ClaimAnswer, BackendError> {
        let line = self.etcd.members.line(&self.folder, self.patience).await?;
        if line.find(self.claim.owner).is_none() && !line.has_room_for(self.claim.mode) {
            return self.busy(&line).await;
        }
        self.arrive().await
    }

    /// A place was taken before: keeps it, and looks whether its turn has come. `None` if it is lost.
    async fn ask_again(&self, created: i64, on_place: bool) -> Result<Option<ClaimAnswer>, BackendError> {
        let members = &self.etcd.members;
        let lease = if on_place { self.leases.place } else { self.leases.own };
        let kept = members.keep_place(lease, self.patience);
        let (kept, line) = join(kept, members.line(&self.folder, self.patience)).await;
        let (kept, line) = (kept?, line?);
        let at = line.find(self.claim.owner).filter(|&at| line.places[at].created == created);
        match at {
            Some(at) if at < line.leading() => self.enter(created, on_place).await,
            Some(at) if kept => self.queued(&line, at, true).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Takes a place in the line, unless there is one, and enters if its turn is now.
    async fn arrive(&self) -> Result<ClaimAnswer, BackendError> {
        for _ in 0..ROUNDS {
            // Where others wait, it will wait too: it begins with the lease that it would need then.
            let is_contended = self.etcd.shared.seats.is_contended(&self.claim.name);
            let on_place = self.has_place_lease() && is_contended;
            let Some((secured, line)) = self.take_place(on_place).await? else { continue };
            let answer = self.stand(secured, line, on_place).await;
            // The place is taken, whatever fails from now on (L9).
            if let Some(answer) = answer.map_err(BackendError::of_unknown_outcome)? {
                return Ok(answer);
            }
        }
        Err(error::unsettled(&self.etcd.members.place()))
    }

    /// It stands in the line, and was in the step that read this line. `None` if the place went meanwhile.
    async fn stand(
        &self,
        secured: Secured,
        line: Line,
        on_place: bool,
    ) -> Result<Option<ClaimAnswer>, BackendError> {
        let Some(at) = line.find(self.claim.owner) else { return Ok(None) };
        let (created, lease) = (line.places[at].created, line.places[at].lease);
        if at >= line.leading() {
            return self.stay(line, at, on_place).await;
        }
        self.etcd.shared.seats.set_contended(&self.claim.name, line.places.len() > 1);
        if lease == self.leases.own && !on_place && secured.is_proved_by(&line) {
            return Ok(Some(self.granted(created, line.revision, false)));
        }
        self.enter(created, true).await
    }

    /// A lease, and the key on it if it is not there; `None` if the lease went between the two.
    async fn take_place(&self, on_place: bool) -> Result<Option<(Secured, Line)>, BackendError> {
        let lease = if on_place { self.leases.place } else { self.leases.own };
        let secured = self.secure(on_place).await?;
        match self.write(0, lease).await {
            Ok(None) => Ok(None),
            Ok(Some((_, line))) => Ok(Some((secured, line))),
            Err(error) => Err(self.undo(secured, lease, error).await),
        }
    }

    /// The key was certainly not written: then nothing was, if the lease goes as well (L9).
    async fn undo(&self, secured: Secured, lease: i64, error: BackendError) -> BackendError {
        let is_new = secured.term.is_none();
        if error.outcome() == Outcome::Unknown || !is_new {
            return error.of_unknown_outcome();
        }
        match self.etcd.members.revoke(lease, self.patience).await {
            Ok(_) => error,
            Err(_) => error.of_unknown_outcome(),
        }
    }

    /// It does not fit, and waits where it is asked to; `None` if its turn came meanwhile and went.
    async fn stay(&self, line: Line, at: usize, on_place: bool) -> Result<Option<ClaimAnswer>, BackendError> {
        let members = &self.etcd.members;
        if self.claim.wait == Wait::No {
            self.etcd.leave_line(&self.leases, self.patience).await?;
            return self.busy(&line).await.map(Some);
        }
        self.etcd.shared.seats.set_contended(&self.claim.name, true);
        if on_place || !self.has_place_lease() {
            return self.queued(&line, at, false).await.map(Some);
        }
        // The lease of the ttl would bar those behind for long if we died now (L8).
        self.secure(true).await?;
        let created = line.places[at].created;
        let Some((true, line)) = self.write(created, self.leases.place).await? else { return Ok(None) };
        members.revoke(self.leases.own, self.patience).await?;
        match line.find(self.claim.owner) {
            Some(at) if at < line.leading() => self.enter(created, true).await,
            Some(at) => self.queued(&line, at, false).await.map(Some),
            None => Ok(None),
        }
    }

    /// Its turn has come: puts the key on the lease of the ttl, which tells those behind as well. `None` if the place is
    /// gone. Only the read in the same step says that it holds (hazard 47, etcd #11456).
    async fn enter(&self, created: i64, had_place: bool) -> Result<Option<ClaimAnswer>, BackendError> {
        for _ in 0..ROUNDS {
            let secured = self.secure(false).await?;
            let Some((is_there, line)) = self.write(created, self.leases.own).await? else { continue };
            let at = line.find(self.claim.owner).filter(|&at| is_there && line.places[at].created == created);
            let Some(at) = at else { return Ok(None) };
            if at >= line.leading() {
                return self.queued(&line, at, false).await.map(Some);
            }
            if secured.is_proved_by(&line) {
                return Ok(Some(self.granted(created, line.revision, had_place)));
            }
        }
        Err(error::unsettled(&self.etcd.members.place()))
    }

    /// A lease that lasts from now: that of the ttl, or that of the place.
    async fn secure(&self, place: bool) -> Result<Secured, BackendError> {
        let members = &self.etcd.members;
        let (id, wanted) =
            if place { (self.leases.place, PLACE_SECONDS) } else { (self.leases.own, self.seconds) };
        for _ in 0..ROUNDS {
            let (seconds, secured) = match members.grant_lease(id, wanted, self.patience).await? {
                Leased::Granted { seconds } => (seconds, Secured { term: None }),
                Leased::WasThere => match members.keep_alive(id, self.patience).await? {
                    Some(Kept { seconds, term }) => (seconds, Secured { term: Some(term) }),
                    None => continue,
                },
            };
            if seconds < wanted {
                return Err(error::too_short(self.claim.ttl, seconds));
            }
            return Ok(secured);
        }
        Err(error::unsettled(&members.place()))
    }

    async fn write(&self, created: i64, lease: i64) -> Result<Option<(bool, Line)>, BackendError> {
        let waits = lease == self.leases.place;
        let value = Value::of(self.claim, self.etcd.members.host.now().wall, waits).write();
        let change = Change { folder: &self.folder, key: &self.key, created, value: &value, lease };
        self.etcd.members.change(&change, self.patience).await
    }

    /// A place has a lease of its own where that of the ttl lasts longer.
    fn has_place_lease(&self) -> bool {
        self.seconds > PLACE_SECONDS && self.claim.wait == Wait::Turn
    }

    fn granted(&self, created: i64, revision: i64, had_place: bool) -> ClaimAnswer {
        let Claim { name, owner, ttl, .. } = self.claim.clone();
        self.etcd.shared.seats.set(owner, Seat::Inside { had_place });
        self.etcd.watching.0.listen(owner, Awaited::end_of(self.key.clone()), revision + 1);
        ClaimAnswer::Granted(Grant { name, owner, token: token(created), block: 1, ttl })
    }

    async fn queued(&self, line: &Line, at: usize, again: bool) -> Result<ClaimAnswer, BackendError> {
        let place = &line.places[at];
        let on_place = place.lease == self.leases.place;
        let seat = Seat::Waiting { created: place.created, on_place };
        self.etcd.shared.seats.set(self.claim.owner, seat);
        if let Some(awaited) = Awaited::by(line, at) {
            self.etcd.watching.0.listen(self.claim.owner, awaited, line.revision + 1);
        }
        let seconds = if on_place { PLACE_SECONDS } else { self.seconds };
        let place_ttl = Duration::from_secs(seconds.unsigned_abs());
        // How long it still lasts is said to those who have waited for a while: it costs a request.
        let holder = self.first_holder(line, again).await;
        Ok(ClaimAnswer::Queued {
            ahead: at - line.leading(),
            retry_after: RETRY_MAX.min(place_ttl / 3),
            holder,
        })
    }

    async fn busy(&self, line: &Line) -> Result<ClaimAnswer, BackendError> {
        let holder = self.first_holder(line, true).await;
        let left = holder.as_ref().and_then(|holder| holder.expires_in).unwrap_or(RETRY_MAX);
        Ok(ClaimAnswer::Busy { retry_after: left.clamp(Duration::from_millis(100), RETRY_MAX), holder })
    }

    async fn first_holder(&self, line: &Line, with_time_left: bool) -> Option<HolderView> {
        let first = line.holders().first()?;
        // It is for people: who holds is worth knowing without it.
        let left = match with_time_left {
            true => self.etcd.members.time_left(first.lease, self.patience).await.ok().flatten(),
            false => None,
        };
        Some(crate::view::holder(first, left))
    }
}

pub(crate) fn token(created: i64) -> FencingToken {
    // OK because revisions are positive.
    FencingToken::new(u64::try_from(created).unwrap_or_default())
}

/// At least 1: etcd counts in seconds.
pub(crate) fn whole_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX).max(1)
}
