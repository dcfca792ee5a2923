//! `Health`: whether a server is fit to grant and to renew, as far as one connection knows. Each claim and renewal first
//! calls [`Health::ensure_fit`]; what that takes is done by one task for all callers.
//!
//! A server is *checked* over each new connection before its first claim (H4.3), and again when it may have changed: its
//! facts and its record are read in one step, and what was decided is written if they are still the same. A smaller check
//! of its replicas runs from time to time.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_client::SingleFlight;
use tenure_core::{BackendError, ErrorKind, Moment, Outcome, locked};

use crate::{
    config::GuardMode,
    connection::Connection,
    error,
    gate::{Gate, GateName},
    guard::{self, LOOK, Why, is_recent},
    record::{self, Fitness, described},
    script::Reply,
    shared::RedisShared,
};

/// How often a server may turn out not to be as this client knew it, before a caller is refused.
pub(crate) const TRIES: usize = 3;

/// What a server has to be fit for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FitFor {
    Claim,
    Renewal,
    /// To hand a lock on; a server that is not fit hands nothing on, which is no error.
    HandOff,
}

/// What one connection knows of its server.
pub(crate) struct Health {
    shared: Arc<RedisShared>,
    connection: Arc<Connection>,
    state: Mutex<HealthState>,
    /// Two, because a caller that waits for a check has not checked the replicas: a server without its replicas renews
    /// nothing.
    checking: SingleFlight<Result<(), BackendError>>,
    looking: SingleFlight<Result<(), BackendError>>,
}

struct HealthState {
    fitness: Fitness,
    /// The longest lease that the server grants to this client.
    max_ttl: Duration,
    /// When the last check of its replicas that passed was sent: see [`guard::is_alone`] and [`is_recent`].
    looked: Option<Moment>,
}

/// The next step for a caller.
#[derive(Debug, PartialEq, Eq)]
enum NextStep {
    /// With this gate.
    GoOn(Gate),
    Refresh(Refresh),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refresh {
    /// Decide again whether it is fit.
    Check,
    /// Check that it still has its replicas, and the history for which it was found fit.
    LookAtReplicas,
}

impl Health {
    /// Checks the server.
    pub(crate) async fn check(
        connection: Arc<Connection>,
        shared: Arc<RedisShared>,
    ) -> Result<Self, BackendError> {
        let state = HealthState::checked(&shared, &connection).await?;
        let flight = || SingleFlight::new(shared.host.clone());
        let checking = flight();
        let looking = flight();
        Ok(Self { shared, connection, state: Mutex::new(state), checking, looking })
    }

    pub(crate) fn fitness(&self) -> Fitness {
        locked(&self.state).fitness.clone()
    }

    /// The gate for scripts that hand on. A wrong one only keeps them from handing on.
    pub(crate) fn gate(&self) -> Gate {
        let state = locked(&self.state);
        match &state.fitness {
            Fitness::Fit(name) => state.gate(Some(name.clone())),
            _ => state.gate(None),
        }
    }

    /// The gate to ask with, once the server is known to be fit.
    ///
    /// # Errors
    /// Why it is not fit, and for how long if that is known.
    pub(crate) async fn ensure_fit(
        self: &Arc<Self>,
        purpose: FitFor,
        began: Moment,
    ) -> Result<Gate, BackendError> {
        let (mut tries, mut now) = (0..=TRIES, began);
        loop {
            let refresh = match self.next_step(purpose, (began, now))? {
                NextStep::GoOn(gate) => return Ok(gate),
                NextStep::Refresh(refresh) => refresh,
            };
            if tries.next().is_none() {
                return Err(Fitness::Unknown.refusal(&self.connection.place, now));
            }
            // Rare cases are in a box, so that the futures of most requests stay small. The result of a check for other
            // callers is used if it is recent for this request.
            let flight = if refresh == Refresh::Check { &self.checking } else { &self.looking };
            Box::pin(flight.join(|| Box::pin(self.clone().refresh(refresh)))).await?;
            now = self.shared.host.now();
        }
    }

    fn next_step(&self, purpose: FitFor, (began, now): (Moment, Moment)) -> Result<NextStep, BackendError> {
        let (state, config) = (locked(&self.state), &self.shared.config);
        let has_looked = purpose == FitFor::HandOff
            || config.is_cluster()
            || config.guard == GuardMode::Off
            // One request more in each `LOOK`, even on a server that never had a replica: only the server knows
            // whether it had one.
            || state.looked.is_some_and(|asked| is_recent(asked, began));
        state.next_step(purpose, now, has_looked, &self.connection.place)
    }

    /// The server does not know this gate: what this client knew of it is wrong.
    pub(crate) fn refute(&self, gate: &Gate) {
        let mut state = locked(&self.state);
        // Unless another one was learnt since.
        if let (Fitness::Fit(known), Some(name)) = (&state.fitness, &gate.name)
            && Arc::ptr_eq(known, name)
        {
            state.fitness = Fitness::Unknown;
        }
    }

    /// Its settings may have changed.
    pub(crate) fn doubt(&self) {
        locked(&self.state).fitness = Fitness::Unknown;
    }

    /// Checks the server, whatever is known of it.
    pub(crate) async fn check_again(self: &Arc<Self>) -> Result<(), BackendError> {
        self.doubt();
        self.ensure_fit(FitFor::HandOff, self.shared.host.now()).await.map(drop)
    }

    /// Checks the server, or only that it has its replicas and the history for which it was found fit.
    async fn refresh(self: Arc<Self>, refresh: Refresh) -> Result<(), BackendError> {
        if let Refresh::LookAtReplicas = refresh
            && self.look_at_replicas().await?
        {
            return Ok(());
        }
        let checked = HealthState::checked(&self.shared, &self.connection).await;
        // It may be no master any more, for example: the next request looks for another server.
        if checked.as_ref().is_err_and(|error| error.kind().is_transient()) {
            self.connection.on_left();
        }
        *locked(&self.state) = checked?;
        Ok(())
    }

    /// Checks the replicas. False if the history is not the one for which the server was found fit. Fails on a master that
    /// lost its replicas.
    async fn look_at_replicas(&self) -> Result<bool, BackendError> {
        let (connection, asked) = (&self.connection, self.shared.host.now());
        let script = &self.shared.scripts.look;
        let answer = connection.ask(script, &script.call(&[self.shared.config.record()])).await?;
        let read = |mut reply: Reply| {
            let mut millis = || Some(reply.text()?.parse().ok().map(Duration::from_millis));
            let (acked, before, now) = (millis()?, millis()?, millis()??);
            Some((guard::is_alone(now, acked, before), reply.text()?))
        };
        let seen = Reply::new(answer).and_then(read);
        let (is_alone, replid) = seen.ok_or_else(|| error::unreadable(&connection.place, "a look"))?;
        let mut state = locked(&self.state);
        if state.fitness.is_of_another_history(&replid) {
            return Ok(false);
        }
        if is_alone {
            let alone = Fitness::Unfit { why: Why::Alone, until: asked + LOOK, renews: None };
            return Err(alone.refusal(&connection.place, asked));
        }
        state.looked = Some(asked);
        Ok(true)
    }
}

impl HealthState {
    fn gate(&self, name: Option<Arc<GateName>>) -> Gate {
        Gate { name, max_ttl: self.max_ttl }
    }

    fn next_step(
        &self,
        purpose: FitFor,
        now: Moment,
        has_looked: bool,
        place: &str,
    ) -> Result<NextStep, BackendError> {
        let check = || Ok(NextStep::Refresh(Refresh::Check));
        match (&self.fitness, purpose) {
            (Fitness::Unknown, _) => check(),
            (Fitness::Unfit { until, .. }, FitFor::Claim | FitFor::HandOff) if until.is_over(now) => check(),
            (Fitness::Unfit { .. }, FitFor::Claim) => Err(self.fitness.refusal(place, now)),
            _ if !has_looked => Ok(NextStep::Refresh(Refresh::LookAtReplicas)),
            (Fitness::Unfit { renews: Some(at), .. }, FitFor::Renewal) if at.is_over(now) => check(),
            (Fitness::Unfit { renews: Some(at), .. }, FitFor::Renewal) => {
                Err(no_renewal(place, at.remaining(now)))
            }
            (Fitness::Unfit { .. }, _) => Ok(NextStep::GoOn(self.gate(None))),
            (Fitness::Fit(name), _) => Ok(NextStep::GoOn(self.gate(Some(name.clone())))),
        }
    }

    async fn checked(shared: &RedisShared, connection: &Connection) -> Result<Self, BackendError> {
        let asked = shared.host.now();
        let (fitness, max_ttl) = if shared.config.is_cluster() {
            (Fitness::always(), shared.config.max_ttl())
        } else {
            let judged = record::judge_by(shared, &connection.wire, &connection.place, guard::decide).await?;
            (judged.fitness, judged.max_ttl)
        };
        let is_fit = matches!(fitness, Fitness::Fit(_));
        Ok(Self { fitness, max_ttl, looked: is_fit.then_some(asked) })
    }
}

/// Nothing is renewed yet.
fn no_renewal(place: &str, left: Duration) -> BackendError {
    let message = format!(
        "the Redis server was promoted; it renews nothing for another {}, while the former master may still grant locks",
        described(left)
    );
    BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message).with("redis", place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment { boot: Duration::from_secs(seconds), wall: Duration::from_secs(seconds) }
    }

    /// What comes next at 10 s for a claim, a renewal and a hand-off.
    fn next(fitness: &Fitness, has_looked: bool) -> [&'static str; 3] {
        [FitFor::Claim, FitFor::Renewal, FitFor::HandOff].map(|purpose| {
            let state = HealthState { fitness: fitness.clone(), max_ttl: Duration::MAX, looked: None };
            match state.next_step(purpose, at(10), has_looked || purpose == FitFor::HandOff, "here") {
                Ok(NextStep::GoOn(gate)) if gate.is_closed() => "closed",
                Ok(NextStep::GoOn(_)) => "go on",
                Ok(NextStep::Refresh(Refresh::Check)) => "check",
                Ok(NextStep::Refresh(Refresh::LookAtReplicas)) => "look",
                Err(_) => "refused",
            }
        })
    }

    /// L1, H4.3: nothing is granted before the wait has ended, and a renewal is refused only until `renews`.
    #[test]
    fn each_purpose_waits_for_what_it_needs() {
        let unfit = |until, renews: Option<u64>| Fitness::Unfit {
            why: Why::Promoted,
            until: at(until),
            renews: renews.map(at),
        };
        for (fitness, has_looked, expected) in [
            (Fitness::always(), true, ["go on", "go on", "go on"]),
            (Fitness::always(), false, ["look", "look", "go on"]),
            (Fitness::Unknown, true, ["check", "check", "check"]),
            (unfit(11, None), true, ["refused", "closed", "closed"]),
            (unfit(11, None), false, ["refused", "look", "closed"]),
            (unfit(9, None), true, ["check", "closed", "check"]),
            (unfit(30, Some(20)), true, ["refused", "refused", "closed"]),
            (unfit(30, Some(9)), true, ["refused", "check", "closed"]),
        ] {
            assert_eq!(next(&fitness, has_looked), expected, "{fitness:?}");
        }
    }
}
