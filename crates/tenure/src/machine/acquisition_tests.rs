//! Every sequence of events of an `Acquisition`, to a depth; and its waits, requests and patience: an example for
//! each accident.

use std::{collections::BTreeSet, time::Duration};

use tenure_core::{
    BackendError, ClaimAnswer, ErrorKind, FencingToken, Grant, HolderView, LockName, Mode, Moment, Outcome,
    OwnerId, ProcessId, Timing, WaitMode,
};

use crate::machine::{
    EventLog,
    acquisition::{AcquireAction, AcquireEnd, AcquireFailure, Acquisition},
};

/// Validity 988 ms.
const TTL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_millis(2500);
const START: Moment = Moment { boot: Duration::from_secs(1_000), wall: Duration::from_secs(1_000_000) };
const QUICK: Duration = Duration::from_millis(1);

fn timing() -> Timing {
    Timing::new(TTL).unwrap()
}

fn acquisition(budget: Option<Duration>) -> Acquisition {
    Acquisition::new(START, timing(), budget, PATIENCE, 7)
}

fn error(kind: ErrorKind, outcome: Outcome) -> BackendError {
    BackendError::new(kind, outcome, "a test says so")
}

fn queued() -> ClaimAnswer {
    ClaimAnswer::Queued { ahead: 1, retry_after: Duration::from_millis(600), holder: None }
}

fn granted(owner: u8) -> ClaimAnswer {
    let owner = OwnerId::from_random(ProcessId::from_random([0; 8]), [owner; 16]);
    let (name, token) = (LockName::new("x").unwrap(), FencingToken::new(1));
    ClaimAnswer::Granted(Grant::new(name, owner, token, TTL))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Granted,
    Queued,
    Busy,
    /// Granted in part; the store is releasing the partial grants.
    Split,
    Err(ErrorKind, Outcome),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The claim is answered this much after it was sent.
    Answered(Answer, Duration),
    /// Time passes until the machine wants to act again, or by this much.
    Waited(Option<Duration>),
    Woken,
    /// The requested release is done, this much later.
    Returned(Duration),
}

/// An acquisition, and the state that an outsider knows of it.
#[derive(Clone)]
struct World {
    machine: Acquisition,
    now: Moment,
    budget: Option<Duration>,
    owner: u8,
    /// Owners that may have a place or the lock at the server, by the answers so far.
    there: BTreeSet<u8>,
    asked: bool,
    /// A release was sent since the last claim.
    returned: bool,
    failing_since: Option<Moment>,
    last: Option<Answer>,
    /// Until when the last grant is valid.
    until: Option<Moment>,
    too_late: u32,
    /// Claims that were sent after the deadline.
    asked_late: u32,
}

impl World {
    fn new(budget: Option<Duration>) -> Self {
        Self {
            machine: acquisition(budget),
            now: START,
            budget,
            owner: 0,
            there: BTreeSet::new(),
            asked: false,
            returned: false,
            failing_since: None,
            last: None,
            until: None,
            too_late: 0,
            asked_late: 0,
        }
    }

    fn asks_once(&self) -> bool {
        self.budget == Some(Duration::ZERO)
    }

    fn is_late(&self) -> bool {
        self.budget.is_some_and(|budget| START.elapsed(self.now) >= budget)
    }

    /// The store failed for longer than the patience.
    fn is_fed_up(&self) -> bool {
        self.failing_since.is_some_and(|since| since.elapsed(self.now) >= PATIENCE)
    }

    fn failed_for_good(&self) -> bool {
        matches!(self.last, Some(Answer::Err(kind, _)) if !kind.is_transient() || self.asks_once())
    }

    fn is_hopeless(&self) -> bool {
        self.too_late >= 3
    }

    fn events(&self, action: &AcquireAction) -> Vec<Event> {
        match action {
            AcquireAction::Ask { .. } => {
                let busy = if self.asks_once() { Answer::Busy } else { Answer::Queued };
                let mut answers = vec![Answer::Granted, busy, Answer::Split];
                for kind in [ErrorKind::Unavailable, ErrorKind::Denied] {
                    answers.extend([Outcome::NotApplied, Outcome::Unknown].map(|o| Answer::Err(kind, o)));
                }
                let after = |delay| answers.clone().into_iter().map(move |a| Event::Answered(a, delay));
                after(QUICK).chain(after(TTL)).collect()
            }
            AcquireAction::Wait { .. } => {
                vec![Event::Waited(None), Event::Waited(Some(PATIENCE)), Event::Woken]
            }
            AcquireAction::Release => vec![Event::Returned(QUICK), Event::Returned(TTL)],
            AcquireAction::Finish(_) => Vec::new(),
        }
    }

    fn apply(&mut self, action: &AcquireAction, event: Event) {
        match (event, action) {
            (Event::Answered(answer, delay), AcquireAction::Ask { fresh_owner }) => {
                self.owner += u8::from(*fresh_owner);
                self.asked_late += u32::from(self.is_late());
                self.machine.on_sent(self.now);
                self.answered(answer, delay);
            }
            (Event::Waited(by), AcquireAction::Wait { until }) => {
                self.now = self.now + by.unwrap_or_else(|| until.boot.saturating_sub(self.now.boot));
            }
            (Event::Woken, _) => self.machine.on_wake(),
            (Event::Returned(delay), _) => {
                self.now = self.now + delay;
                self.there.remove(&self.owner);
                self.returned = true;
                self.machine.on_released();
            }
            _ => unreachable!("{event:?} does not follow {action:?}"),
        }
    }

    fn answered(&mut self, answer: Answer, delay: Duration) {
        let sent_at = self.now;
        let was_there = !self.there.insert(self.owner);
        assert!(self.machine.may_be_there(), "it may be there from when the claim is sent");
        self.now = self.now + delay;
        // A late release must not take the grant of the next attempt.
        (self.asked, self.returned, self.last) = (true, answer == Answer::Split, Some(answer));
        match answer {
            Answer::Err(_, outcome) => {
                self.failing_since = self.failing_since.or(Some(self.now));
                if outcome == Outcome::NotApplied && !was_there {
                    self.there.remove(&self.owner);
                }
            }
            _ => self.failing_since = None,
        }
        if matches!(answer, Answer::Busy | Answer::Split) {
            self.there.remove(&self.owner);
        }
        if answer == Answer::Granted {
            let until = timing().believed_until(sent_at, TTL);
            self.until = Some(until);
            self.too_late += u32::from(until.is_over(self.now));
        }
        self.machine.on_answer(
            self.now,
            match answer {
                Answer::Granted => Ok(granted(self.owner)),
                Answer::Queued => Ok(queued()),
                Answer::Busy => Ok(ClaimAnswer::Busy { retry_after: QUICK, holder: None }),
                Answer::Split => Ok(ClaimAnswer::Split { retry_after: QUICK, holder: None }),
                Answer::Err(kind, outcome) => Err(error(kind, outcome)),
            },
        );
    }

    /// Checks all invariants of the next action.
    fn judge(&self, action: &AcquireAction) {
        assert_eq!(self.machine.may_be_there(), self.there.contains(&self.owner), "at {action:?}");
        assert!(self.there.range(..self.owner).next().is_none(), "an earlier owner was left behind (L8)");
        let wait = if self.asks_once() { WaitMode::No } else { WaitMode::Turn };
        assert_eq!(self.machine.wait(), wait);
        self.judge_noise(action);
        let is_good = self.last == Some(Answer::Granted) && self.until.is_some_and(|u| !u.is_over(self.now));
        match action {
            AcquireAction::Ask { fresh_owner } => {
                assert_eq!(
                    *fresh_owner, self.returned,
                    "a new owner after every release, ours or the store's, and only then (H3.4)"
                );
                assert!(!self.failed_for_good() && !self.is_hopeless() && (!is_good || self.returned));
                // Notified at the last moment, or a grant that was too late: asked once more each time.
                assert!(self.asks_once() || self.asked_late <= 1 + self.too_late, "the deadline is not kept");
            }
            AcquireAction::Wait { until } => {
                assert!(!self.asks_once() && !self.is_late() && !self.is_fed_up() && !self.failed_for_good());
                assert!(until.boot > self.now.boot, "would spin");
                let deadline = self.budget.map(|budget| START.boot + budget);
                assert!(deadline.is_none_or(|deadline| until.boot <= deadline));
            }
            AcquireAction::Release => {
                assert!(self.machine.may_be_there() && !is_good, "gave back what was ours")
            }
            AcquireAction::Finish(verdict) => self.judge_verdict(verdict),
        }
    }

    fn judge_verdict(&self, verdict: &AcquireEnd) {
        match verdict {
            AcquireEnd::Granted { until, .. } => {
                assert_eq!(
                    (self.last, self.until),
                    (Some(Answer::Granted), Some(*until)),
                    "from on_sent (H1.1)"
                );
                assert!(!until.is_over(self.now), "entered too late (hazards 12, 47)");
                return assert_eq!(self.there, BTreeSet::from([self.owner]));
            }
            AcquireEnd::TimedOut { waited, .. } => {
                assert!(self.is_late() && self.failing_since.is_none());
                assert!(self.asked && *waited <= START.elapsed(self.now));
            }
            AcquireEnd::Failed(failure) if self.is_hopeless() => {
                assert_eq!(failure.0.kind(), ErrorKind::Invalid, "hazard 41");
            }
            AcquireEnd::Failed(failure) => {
                assert!(self.failed_for_good() || self.is_fed_up() || (self.is_late() && self.asked));
                let Some(Answer::Err(kind, outcome)) = self.last else { panic!("failed without an error") };
                assert_eq!((failure.0.kind(), failure.0.outcome()), (kind, outcome));
            }
        }
        assert!(self.there.is_empty(), "left behind (L8)");
    }

    /// An event at the wrong time changes nothing.
    fn judge_noise(&self, action: &AcquireAction) {
        let mut machine = self.machine.clone();
        assert_eq!(machine.poll(self.now), *action, "two answers to one question");
        if !matches!(action, AcquireAction::Release) {
            machine.on_released();
        }
        if !matches!(action, AcquireAction::Ask { .. }) {
            machine.on_sent(self.now);
        }
        machine.on_answer(self.now, Ok(granted(99)));
        if !matches!(action, AcquireAction::Wait { .. }) {
            machine.on_wake();
        }
        assert_eq!(machine.poll(self.now), *action, "a stray event was heard");
    }

    /// Plays every continuation, and counts the sequences.
    fn explore(&self, depth: usize, trail: &mut EventLog<Event>) -> usize {
        let mut here = self.clone();
        let action = here.machine.poll(here.now);
        here.judge(&action);
        let events = if depth == 0 { Vec::new() } else { here.events(&action) };
        if events.is_empty() {
            return 1;
        }
        let mut sequences = 0;
        for event in events {
            trail.0.push(event);
            let mut next = here.clone();
            next.apply(&action, event);
            sequences += next.explore(depth - 1, trail);
            trail.0.pop();
        }
        sequences
    }
}

/// L1, L6, L8, H1.1, H3.4, hazards 12, 41, 47: all sequences of 7 events, of which 2 to 14 are possible each time;
/// with an unlimited wait, a limited one, and none.
#[test]
fn whatever_happens_it_enters_in_time_or_leaves_nothing_behind() {
    let budgets = [None, Some(Duration::from_millis(1500)), Some(Duration::ZERO)];
    let sequences: usize =
        budgets.map(|budget| World::new(budget).explore(7, &mut EventLog(Vec::new()))).iter().sum();
    assert_eq!(sequences, 253_303);
}

/// A wait is measured in elapsed time. On a machine that starts with a wrong clock the wall clock steps far, and
/// every waiter would report that the lock is taken.
#[test]
fn a_wall_clock_that_steps_does_not_end_the_waiting() {
    let mut waiting = acquisition(Some(Duration::from_secs(60)));
    waiting.on_sent(START);
    waiting.on_answer(START, Ok(queued()));
    let stepped = Moment { wall: START.wall + Duration::from_secs(3600), ..START };
    assert_eq!(waiting.poll(stepped), AcquireAction::Ask { fresh_owner: false }, "asking early does no harm");
    assert_eq!(waiting.request_timeout(stepped), timing().request_timeout());
    waiting.on_sent(stepped);
    waiting.on_answer(stepped, Ok(queued()));
    assert!(matches!(waiting.poll(stepped), AcquireAction::Wait { .. }));
}

/// L6: between the client's own delay and 2 s.
#[test]
fn a_store_that_says_when_to_ask_again_is_asked_then() {
    for (hint, expected) in [(1, None), (700, Some(700)), (60_000, Some(2_000))] {
        let mut waiting = acquisition(None);
        waiting.on_sent(START);
        let hint = Duration::from_millis(hint);
        waiting.on_answer(START, Err(error(ErrorKind::Unavailable, Outcome::NotApplied).retry_after(hint)));
        let AcquireAction::Wait { until } = waiting.poll(START) else { panic!("does not wait") };
        let wait = until.boot - START.boot;
        match expected {
            Some(ms) => assert_eq!(wait, Duration::from_millis(ms)),
            None => assert!(wait >= Duration::from_millis(10), "a hint does not overrule the back-off"),
        }
    }
}

/// A server that waits for the end of leases that it may have forgotten announces when it will serve: that is not a
/// failure, and the patience begins then.
#[test]
fn a_store_that_says_when_it_will_serve_is_not_failing_until_then() {
    let refusal = || error(ErrorKind::Unavailable, Outcome::NotApplied);
    let mut waiting = acquisition(None);
    let ask = |waiting: &mut Acquisition, at: Duration, answer: BackendError| {
        waiting.poll(START + at);
        waiting.on_sent(START + at);
        waiting.on_answer(START + at, Err(answer));
        waiting.poll(START + at)
    };
    let hinted = |left: u64| refusal().retry_after(Duration::from_secs(left));
    assert!(matches!(ask(&mut waiting, Duration::ZERO, hinted(32)), AcquireAction::Wait { .. }));
    assert!(matches!(ask(&mut waiting, Duration::from_secs(30), hinted(2)), AcquireAction::Wait { .. }));
    assert!(matches!(ask(&mut waiting, Duration::from_secs(34), refusal()), AcquireAction::Wait { .. }));
    let over = Duration::from_secs(32) + PATIENCE;
    assert!(matches!(ask(&mut waiting, over, refusal()), AcquireAction::Finish(AcquireEnd::Failed(_))));
}

/// A store that hangs must not delay a caller that wanted a shorter wait.
#[test]
fn a_request_takes_no_longer_than_the_caller_wants_to_wait() {
    let waiting = acquisition(Some(Duration::from_millis(200)));
    assert_eq!(waiting.request_timeout(START), Duration::from_millis(200));
    let late = START + Duration::from_millis(180);
    assert_eq!(
        waiting.request_timeout(late),
        Duration::from_millis(50),
        "but no less than a slow round trip"
    );
    for patient in [acquisition(None), acquisition(Some(TTL)), acquisition(Some(Duration::ZERO))] {
        assert_eq!(patient.request_timeout(START), timing().request_timeout());
    }
}

/// A waiter that had waited behind a holder for all of its time reported a failed store, if the last request took
/// longer than the rest of the time.
#[test]
fn a_store_that_is_slow_at_the_very_end_has_not_failed() {
    let (at, silence) =
        (|ms| START + Duration::from_millis(ms), error(ErrorKind::TimedOut, Outcome::Unknown));
    let ends = |answers: &[(u64, Result<ClaimAnswer, BackendError>)]| {
        let mut machine = acquisition(Some(Duration::from_secs(1)));
        for (ms, answer) in answers {
            machine.on_wake();
            assert!(matches!(machine.poll(at(ms - 100)), AcquireAction::Ask { .. }), "at {ms}");
            machine.on_sent(at(ms - 100));
            machine.on_answer(at(*ms), answer.clone());
        }
        assert_eq!(machine.poll(at(1000)), AcquireAction::Release);
        machine.on_released();
        let AcquireAction::Finish(verdict) = machine.poll(at(1000)) else { panic!("it is not over") };
        verdict
    };
    let (asked, cut) = ((500, Ok(queued())), (1000, Err(silence.clone())));
    let held = ends(&[asked.clone(), cut.clone()]);
    assert!(matches!(held, AcquireEnd::TimedOut { ahead: Some(1), .. }), "{held:?}");
    let cut_off = ends(&[asked.clone(), (1000, Err(error(ErrorKind::Throttled, Outcome::NotApplied)))]);
    assert!(matches!(cut_off, AcquireEnd::TimedOut { ahead: Some(1), .. }), "{cut_off:?}");
    // Why the store cannot serve explains more than that its last answer was slow.
    let refused = (700, Err(error(ErrorKind::Unavailable, Outcome::NotApplied)));
    let AcquireEnd::Failed(AcquireFailure(why)) = ends(&[refused, cut.clone()]) else {
        panic!("it has failed")
    };
    assert_eq!(why.kind(), ErrorKind::Unavailable);
    for failed in [vec![cut.clone()], vec![asked, (700, Err(silence.clone())), cut.clone()]] {
        let failed = ends(&failed);
        assert!(matches!(failed, AcquireEnd::Failed(_)), "{failed:?}");
    }
    // One request without an answer, with a known holder: busy. Two in a row: failed.
    let holder = HolderView::new("1".repeat(48), Mode::Exclusive);
    let held = ClaimAnswer::Queued { ahead: 1, retry_after: QUICK, holder: Some(holder.clone()) };
    let (asked, missed) = ((300, Ok(held)), (600, Err(silence)));
    let busy = ends(&[asked.clone(), missed.clone()]);
    assert!(
        matches!(&busy, AcquireEnd::TimedOut { holder: Some(named), .. } if *named == holder),
        "{busy:?}"
    );
    for failed in [
        vec![missed.clone()],
        vec![asked.clone(), missed.clone(), (800, missed.1.clone())],
        vec![asked, missed, cut],
    ] {
        let failed = ends(&failed);
        assert!(matches!(failed, AcquireEnd::Failed(_)), "{failed:?}");
    }
}

/// One who waited behind another task of its process knows of no answer; that the store did not make it in the rest of
/// the time says nothing of it. Without that, nothing is known.
#[test]
fn one_whose_turn_came_too_late_for_a_request_is_busy() {
    for was_busy in [true, false] {
        let mut machine = acquisition(Some(Duration::from_millis(20)));
        if was_busy {
            machine.on_busy();
        }
        machine.poll(START);
        machine.on_sent(START);
        let late = START + Duration::from_millis(50);
        machine.on_answer(late, Err(error(ErrorKind::TimedOut, Outcome::Unknown)));
        let mut end = machine.poll(late);
        while let AcquireAction::Wait { until } = end {
            end = machine.poll(until);
        }
        assert_eq!(end, AcquireAction::Release, "it may be granted yet");
        machine.on_released();
        let AcquireAction::Finish(end) = machine.poll(late) else { panic!("it is not over") };
        assert_eq!(matches!(end, AcquireEnd::TimedOut { .. }), was_busy, "{end:?}");
        assert_eq!(matches!(end, AcquireEnd::Failed(_)), !was_busy, "{end:?}");
    }
}
