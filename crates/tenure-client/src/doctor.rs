//! The parts of `diagnose` in every store: tables of [`Check`]s, which judge the facts, and the [`Trial`] of a
//! lock.
//!
//! A store reads its facts first; a check sends nothing, so that a test of it needs no server.

use std::{error::Error, sync::Arc, time::Duration};

use tenure_core::{
    Backend, BackendError, Claim, ClaimAnswer, EndOfGrant, ErrorKind, FencingToken, Finding, Host, Label,
    LockName, LockView, Mode, Outcome, OwnerId, ProcessId, Severity, Sharing, WaitMode, shown,
};

/// One row of a table: its subject, and its judgement of the facts `F`.
pub struct Check<F: 'static> {
    /// The subject.
    pub name: &'static str,
    /// The finding, if there is one.
    pub judge: fn(&F) -> Option<Finding>,
}

impl<F> Check<F> {
    /// A row.
    pub const fn new(name: &'static str, judge: fn(&F) -> Option<Finding>) -> Self {
        Self { name, judge }
    }
}

/// The findings of a table, in its order.
pub fn judged<F>(checks: &[Check<F>], facts: &F) -> Vec<Finding> {
    checks.iter().filter_map(|check| (check.judge)(facts)).collect()
}

/// A finding, if the condition holds.
pub fn found(
    is_so: bool,
    severity: Severity,
    what: impl AsRef<str>,
    remedy: impl AsRef<str>,
) -> Option<Finding> {
    is_so.then(|| finding(severity, what, remedy))
}

/// A finding. Both texts may quote the server, or other clients.
pub fn finding(severity: Severity, what: impl AsRef<str>, remedy: impl AsRef<str>) -> Finding {
    let plain = |text: &str| shown(text).within(4096).to_string();
    Finding::new(severity, plain(what.as_ref()), plain(remedy.as_ref()))
}

/// How far the server's clock is from this machine's, if that is a second or more.
pub fn clocks(server: Duration, ours: Duration) -> Option<Finding> {
    let apart = server.abs_diff(ours);
    let what = format!("the clocks of the server and of this machine are {apart:.1?} apart");
    let remedy = "leases end by the server's clock alone; labels show times of both";
    found(apart > Duration::from_secs(1), Severity::Note, what, remedy)
}

/// A lock was tried in a row of a table, in a transaction that was rolled back, and this is why it was not acquired.
pub fn failed_trial(error: &BackendError, remedy: &str) -> Finding {
    let what = match (error.kind(), error.outcome()) {
        // The row was written, and has another content now.
        (ErrorKind::Corrupt, Outcome::Unknown) => {
            "a lock was tried, and the row is not what was written to it".to_owned()
        }
        _ => format!("a trial lock was not acquired: {}", described(error)),
    };
    finding(Severity::Problem, what, remedy)
}

/// An error with the server's own message.
pub fn described(error: &BackendError) -> String {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}

/// A lock of a name that no other client knows. It is acquired, renewed, read, waited for and released like every
/// lock, and shared where the store [promises](tenure_core::Promises::sharing) that.
pub struct Trial<'a> {
    /// The lock.
    pub name: LockName,
    /// The process of the owners, which is not the present one: no waiter of it is notified.
    pub process: ProcessId,
    /// After an error, the rest of a trial expires after this time.
    pub ttl: Duration,
    /// How the second owner waits.
    pub wait: WaitMode,
    host: &'a dyn Host,
}

/// The verb that ended a trial.
#[derive(Debug)]
pub struct TrialError {
    /// The step, as in `take a lock`.
    pub verb: &'static str,
    /// Why it failed.
    pub error: BackendError,
}

impl<'a> Trial<'a> {
    /// A trial, with a turn for the second owner.
    pub fn new(host: &'a dyn Host, ttl: Duration) -> Self {
        let process = ProcessId::from_random(random(host));
        let name = format!("tenure-doctor/{:016x}", u64::from_be_bytes(random(host)));
        let name = LockName::new(name).unwrap_or_else(|error| unreachable!("BUG: a name of ours: {error}"));
        Self { name, process, ttl, wait: WaitMode::Turn, host }
    }

    /// Tries the verbs, up to the first that fails.
    ///
    /// # Errors
    /// The first error of the store; `Corrupt` if the store does not show what it granted or released.
    pub async fn run(&self, store: &dyn Backend) -> Result<(), TrialError> {
        let promises = store.promises();
        let tried = |verb: &'static str| move |error: BackendError| TrialError { verb, error };
        let mut holder = self.claim(Mode::Exclusive, WaitMode::No);
        if promises.end == EndOfGrant::Ttl {
            // So that a renewal changes something.
            holder.ttl = self.ttl * 9 / 10;
        }
        let began = self.host.now();
        let answer = store.claim(&holder).await.map_err(tried("take a lock"))?;
        let mut token = None;
        if let ClaimAnswer::Granted(grant) = answer {
            token = Some(grant.token);
            let renewed = store.renew(&[grant.with_ttl(self.ttl)]).await.pop().transpose();
            renewed.map_err(tried("renew a lock"))?;
        }
        let view = store.inspect(&self.name).await.map_err(tried("inspect a lock"))?;
        let elapsed = began.elapsed(self.host.now());
        // Later the lease may have expired.
        if elapsed < holder.ttl && !is_as_granted(&view, &holder, token) {
            return Err(tried("take a lock")(self.altered(store)));
        }
        // A renewed lease lasts longer than the claimed one, unless the difference has passed.
        let left = view.holders.first().and_then(|holder| holder.expires_in);
        let half = (self.ttl - holder.ttl) / 2;
        if elapsed + promises.ttl_grain < half && left.is_some_and(|left| left < holder.ttl + half) {
            return Err(tried("renew a lock")(self.altered(store)));
        }
        let waiter = self.claim(Mode::Exclusive, self.wait);
        store.claim(&waiter).await.map_err(tried("wait for a lock"))?;
        for owner in [holder.owner, waiter.owner] {
            store.release(&self.name, owner).await.map_err(tried("release a lock"))?;
        }
        let LockView { holders, queue, .. } =
            store.inspect(&self.name).await.map_err(tried("inspect a lock"))?;
        if !(holders.is_empty() && queue.is_empty()) {
            return Err(tried("release a lock")(self.altered(store)));
        }
        if promises.sharing == Sharing::Counted {
            let reader = self.claim(Mode::READ, WaitMode::No);
            store.claim(&reader).await.map_err(tried("take a shared lock"))?;
            let released = store.release(&self.name, reader.owner).await;
            released.map_err(tried("release a shared lock"))?;
        }
        Ok(())
    }

    fn claim(&self, mode: Mode, wait: WaitMode) -> Claim {
        Claim::new(self.name.clone(), OwnerId::from_random(self.process, random(self.host)), mode, self.ttl)
            .with_label(Arc::new(Label::new("", 0, "", "tenure doctor")))
            .with_wait(wait)
    }

    /// The store answered, but does not show its answer.
    fn altered(&self, store: &dyn Backend) -> BackendError {
        let message = "the store does not show what it granted or released";
        BackendError::new(ErrorKind::Corrupt, Outcome::Unknown, message)
            .with("backend", store.promises().backend)
    }
}

fn random<const N: usize>(host: &dyn Host) -> [u8; N] {
    let mut bytes = [0; N];
    host.random(&mut bytes);
    bytes
}

/// The lock is held by this owner with its token, and no later token is smaller.
fn is_as_granted(view: &LockView, claim: &Claim, token: Option<FencingToken>) -> bool {
    let Some(holder) = view.holders.first() else { return false };
    let is_its = holder.token.is_none() || holder.token == token;
    let is_counted = holder.token.is_none() || token.is_none_or(|token| view.fence >= token);
    holder.owner == claim.owner.to_string() && is_its && is_counted
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tenure_core::{
        Audience, BackendHandle, BreakScope, Grant, HolderView, Promises, Released, Renewal,
        Severity::{Note, Problem},
        WakeStream, locked,
    };
    use tenure_testkit::host::PausedHost;

    use super::*;

    #[test]
    fn a_table_gives_the_findings_of_its_rows_in_order() {
        const CHECKS: [Check<u32>; 3] = [
            Check::new("one", |n| found(*n >= 1, Note, format!("{n}\x1b[31m"), "do")),
            Check::new("nine", |n| found(*n >= 9, Note, "nine", "do")),
            Check::new("two", |n| found(*n >= 2, Problem, "two", "do\nit")),
        ];
        assert_eq!(judged(&CHECKS, &0), []);
        let [one, two] = &judged(&CHECKS, &2)[..] else { panic!("two rows are so") };
        assert_eq!((one.severity, &one.what[..]), (Note, "2?[31m"));
        assert_eq!((two.severity, &two.remedy[..]), (Problem, "do?it"));
    }

    /// Grants, and fails at one call; its views may be wrong.
    #[derive(Default)]
    struct Script {
        calls: Mutex<Vec<&'static str>>,
        fails_at: Option<usize>,
        holders: Mutex<Vec<OwnerId>>,
        shows: Option<&'static [&'static str]>,
        /// Releases change nothing.
        keeps: bool,
        /// How long every lease lasts.
        expires_in: Option<Duration>,
    }

    impl Script {
        fn call(&self, verb: &'static str) -> Result<(), BackendError> {
            let mut calls = locked(&self.calls);
            calls.push(verb);
            let fails = self.fails_at == Some(calls.len());
            let error = || BackendError::new(ErrorKind::Denied, Outcome::NotApplied, "no right");
            if fails { Err(error()) } else { Ok(()) }
        }
    }

    #[async_trait]
    impl Backend for Script {
        fn promises(&self) -> Promises {
            let mut promises = Promises::least("script");
            promises.sharing = Sharing::Counted;
            promises.end = EndOfGrant::Ttl;
            promises.ttl_grain = Duration::from_millis(1);
            promises
        }

        async fn handle(&self) -> Result<BackendHandle, BackendError> {
            unreachable!("BUG: one handle is enough")
        }

        async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
            self.call("claim")?;
            locked(&self.holders).push(claim.owner);
            let (name, owner, token) = (claim.name.clone(), claim.owner, FencingToken::new(1));
            Ok(ClaimAnswer::Granted(Grant::new(name, owner, token, claim.ttl)))
        }

        async fn renew(&self, _: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
            vec![self.call("renew").map(|()| Renewal::Renewed)]
        }

        async fn release(&self, _: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
            self.call("release")?;
            locked(&self.holders).retain(|holder| self.keeps || *holder != owner);
            Ok(Released::Released)
        }

        fn wakes(&self, _: ProcessId, _: Audience) -> Box<dyn WakeStream> {
            unreachable!("BUG: no hint is awaited")
        }

        async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
            self.call("inspect")?;
            let owners = locked(&self.holders).iter().map(ToString::to_string).collect::<Vec<_>>();
            let shown = self.shows.map(|shown| shown.iter().map(|owner| (*owner).to_owned()).collect());
            let holders = shown.unwrap_or(owners);
            let mut holders: Vec<HolderView> =
                holders.into_iter().map(|owner| HolderView::new(owner, Mode::Exclusive)).collect();
            holders.iter_mut().for_each(|holder| holder.expires_in = self.expires_in);
            Ok(LockView::new(name.clone(), holders, Vec::new(), FencingToken::new(1)))
        }

        async fn list(&self, _: &str) -> Result<Vec<LockView>, BackendError> {
            unreachable!("BUG: nothing is listed")
        }

        async fn break_lock(&self, _: &LockName, _: BreakScope) -> Result<Vec<HolderView>, BackendError> {
            unreachable!("BUG: nothing is broken")
        }

        async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
            unreachable!("BUG: the trial is a part of it")
        }
    }

    async fn run(script: &Script) -> Result<(), TrialError> {
        Trial::new(&*PausedHost::new(1), Duration::from_secs(1)).run(script).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_ends_with_the_first_verb_that_fails_and_names_it() {
        let verbs = [
            ("claim", "take a lock"),
            ("renew", "renew a lock"),
            ("inspect", "inspect a lock"),
            ("claim", "wait for a lock"),
            ("release", "release a lock"),
            ("release", "release a lock"),
            ("inspect", "inspect a lock"),
            ("claim", "take a shared lock"),
            ("release", "release a shared lock"),
        ];
        let calls = |script: &Script| locked(&script.calls).clone();
        let script = Script::default();
        run(&script).await.unwrap();
        assert_eq!(calls(&script), verbs.map(|(call, _)| call));
        assert_eq!(locked(&script.holders).len(), 0, "it leaves nothing behind");
        for (at, (_, verb)) in (1..).zip(verbs) {
            let script = Script { fails_at: Some(at), ..Script::default() };
            let failed = run(&script).await.unwrap_err();
            assert_eq!((failed.verb, failed.error.kind()), (verb, ErrorKind::Denied));
            assert_eq!(calls(&script).len(), at);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_must_show_what_it_granted_and_released() {
        let shows = |owners| Script { shows: Some(owners), ..Script::default() };
        let keeps = Script { keeps: true, ..Script::default() };
        for (script, verb) in
            [(shows(&[]), "take a lock"), (shows(&["another"]), "take a lock"), (keeps, "release a lock")]
        {
            let failed = run(&script).await.unwrap_err();
            assert_eq!(failed.verb, verb);
            assert_eq!((failed.error.kind(), failed.error.outcome()), (ErrorKind::Corrupt, Outcome::Unknown));
        }
    }

    /// A trigger may undo a renewal.
    #[tokio::test(start_paused = true)]
    async fn a_store_must_show_what_it_renewed() {
        let lasting =
            |millis| Script { expires_in: Some(Duration::from_millis(millis)), ..Script::default() };
        assert!(run(&lasting(960)).await.is_ok());
        let failed = run(&lasting(940)).await.unwrap_err();
        assert_eq!((failed.verb, failed.error.kind()), ("renew a lock", ErrorKind::Corrupt));
    }
}
