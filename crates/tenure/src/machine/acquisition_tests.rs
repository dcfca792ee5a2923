//! Every sequence of events that an `Acquisition` can meet, to a depth.

use std::{collections::BTreeSet, time::Duration};

use tenure_core::{
    BackendError, ClaimAnswer, ErrorKind, FencingToken, Grant, LockName, Moment, Outcome, OwnerId, ProcessId,
    Timing, Wait,
};

use crate::machine::{
    acquisition::{Acquisition, Action, Verdict},
    trail::Trail,
};

/// Validity 988 ms.
pub(super) const TTL: Duration = Duration::from_secs(1);
pub(super) const PATIENCE: Duration = Duration::from_millis(2500);
pub(super) const START: Moment =
    Moment { boot: Duration::from_secs(1_000), wall: Duration::from_secs(1_000_000) };
const QUICK: Duration = Duration::from_millis(1);

pub(super) fn timing() -> Timing {
    Timing::new(TTL).unwrap()
}

pub(super) fn acquisition(budget: Option<Duration>) -> Acquisition {
    Acquisition::new(START, timing(), budget, PATIENCE, 7)
}

pub(super) fn error(kind: ErrorKind, outcome: Outcome) -> BackendError {
    BackendError::new(kind, outcome, "a test says so")
}

pub(super) fn queued() -> ClaimAnswer {
    ClaimAnswer::Queued { ahead: 1, retry_after: Duration::from_millis(600), holder: None }
}

fn granted(owner: u8) -> ClaimAnswer {
    let owner = OwnerId::from_random(ProcessId::from_random([0; 8]), [owner; 16]);
    let (name, token) = (LockName::new("x").unwrap(), FencingToken::new(1));
    ClaimAnswer::Granted(Grant { name, owner, token, block: 1, ttl: TTL })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Granted,
    Queued,
    Busy,
    /// Got in part, and being given back by the store.
    Split,
    Err(ErrorKind, Outcome),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The claim is answered this much after it was sent.
    Answered(Answer, Duration),
    /// Time goes on to when the machine wants to look again, or by so much.
    Waited(Option<Duration>),
    Woken,
    /// The release that it wanted is done with, this much later.
    Returned(Duration),
}

/// An acquisition, and what an outsider knows of it without looking inside.
#[derive(Clone)]
struct World {
    machine: Acquisition,
    now: Moment,
    budget: Option<Duration>,
    owner: u8,
    /// Owners that may have a place or the lock at the server, as far as the answers tell.
    there: BTreeSet<u8>,
    asked: bool,
    /// A release was sent since the last claim.
    returned: bool,
    failing_since: Option<Moment>,
    last: Option<Answer>,
    /// Until when the last grant may be believed.
    until: Option<Moment>,
    too_late: u32,
    /// Claims that were sent though the time was over.
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

    /// The store failed for longer than we bear.
    fn is_fed_up(&self) -> bool {
        self.failing_since.is_some_and(|since| since.elapsed(self.now) >= PATIENCE)
    }

    fn failed_for_good(&self) -> bool {
        matches!(self.last, Some(Answer::Err(kind, _)) if !kind.is_transient() || self.asks_once())
    }

    fn is_hopeless(&self) -> bool {
        self.too_late >= 3
    }

    fn events(&self, action: &Action) -> Vec<Event> {
        match action {
            Action::Ask { .. } => {
                let busy = if self.asks_once() { Answer::Busy } else { Answer::Queued };
                let mut answers = vec![Answer::Granted, busy, Answer::Split];
                for kind in [ErrorKind::Unavailable, ErrorKind::Denied] {
                    answers.extend([Outcome::NotApplied, Outcome::Unknown].map(|o| Answer::Err(kind, o)));
                }
                let after = |delay| answers.clone().into_iter().map(move |a| Event::Answered(a, delay));
                after(QUICK).chain(after(TTL)).collect()
            }
            Action::Wait { .. } => vec![Event::Waited(None), Event::Waited(Some(PATIENCE)), Event::Woken],
            Action::Return => vec![Event::Returned(QUICK), Event::Returned(TTL)],
            Action::Finish(_) => Vec::new(),
        }
    }

    fn apply(&mut self, action: &Action, event: Event) {
        match (event, action) {
            (Event::Answered(answer, delay), Action::Ask { fresh_owner }) => {
                self.owner += u8::from(*fresh_owner);
                self.asked_late += u32::from(self.is_late());
                self.machine.on_sent(self.now);
                self.answered(answer, delay);
            }
            (Event::Waited(by), Action::Wait { until }) => {
                self.now = self.now + by.unwrap_or_else(|| until.boot.saturating_sub(self.now.boot));
            }
            (Event::Woken, _) => self.machine.on_wake(),
            (Event::Returned(delay), _) => {
                self.now = self.now + delay;
                self.there.remove(&self.owner);
                self.returned = true;
                self.machine.on_returned();
            }
            _ => unreachable!("{event:?} does not follow {action:?}"),
        }
    }

    fn answered(&mut self, answer: Answer, delay: Duration) {
        let sent_at = self.now;
        let was_there = !self.there.insert(self.owner);
        assert!(self.machine.may_be_there(), "it may be there from when the claim is sent");
        self.now = self.now + delay;
        // What is given back late must not be taken from the next attempt.
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

    /// Everything that must be true of what it wants now.
    fn judge(&self, action: &Action) {
        assert_eq!(self.machine.may_be_there(), self.there.contains(&self.owner), "at {action:?}");
        assert!(self.there.range(..self.owner).next().is_none(), "an earlier owner was left behind (L8)");
        let wait = if self.asks_once() { Wait::No } else { Wait::Turn };
        assert_eq!(self.machine.wait(), wait);
        self.judge_noise(action);
        let is_good = self.last == Some(Answer::Granted) && self.until.is_some_and(|u| !u.is_over(self.now));
        match action {
            Action::Ask { fresh_owner } => {
                assert_eq!(
                    *fresh_owner, self.returned,
                    "a new owner after every release, ours or the store's, and only then (H3.4)"
                );
                assert!(!self.failed_for_good() && !self.is_hopeless() && (!is_good || self.returned));
                // Woken at the last moment, or a grant that was too late: asked once more each time.
                assert!(self.asks_once() || self.asked_late <= 1 + self.too_late, "the deadline is not kept");
            }
            Action::Wait { until } => {
                assert!(!self.asks_once() && !self.is_late() && !self.is_fed_up() && !self.failed_for_good());
                assert!(until.boot > self.now.boot, "would spin");
                let deadline = self.budget.map(|budget| START.boot + budget);
                assert!(deadline.is_none_or(|deadline| until.boot <= deadline));
            }
            Action::Return => assert!(self.machine.may_be_there() && !is_good, "gave back what was ours"),
            Action::Finish(verdict) => self.judge_verdict(verdict),
        }
    }

    fn judge_verdict(&self, verdict: &Verdict) {
        match verdict {
            Verdict::Granted { until, .. } => {
                assert_eq!(
                    (self.last, self.until),
                    (Some(Answer::Granted), Some(*until)),
                    "from on_sent (H1.1)"
                );
                assert!(!until.is_over(self.now), "entered too late (hazards 12, 47)");
                return assert_eq!(self.there, BTreeSet::from([self.owner]));
            }
            Verdict::TimedOut { waited, .. } => {
                assert!(self.is_late() && self.failing_since.is_none());
                assert!(self.asked && *waited <= START.elapsed(self.now));
            }
            Verdict::Failed(failure) if self.is_hopeless() => {
                assert_eq!(failure.0.kind(), ErrorKind::Invalid, "hazard 41");
            }
            Verdict::Failed(failure) => {
                assert!(self.failed_for_good() || self.is_fed_up() || (self.is_late() && self.asked));
                let Some(Answer::Err(kind, outcome)) = self.last else { panic!("failed without an error") };
                assert_eq!((failure.0.kind(), failure.0.outcome()), (kind, outcome));
            }
        }
        assert!(self.there.is_empty(), "left behind (L8)");
    }

    /// What comes at the wrong time changes nothing.
    fn judge_noise(&self, action: &Action) {
        let mut machine = self.machine.clone();
        assert_eq!(machine.poll(self.now), *action, "two answers to one question");
        if !matches!(action, Action::Return) {
            machine.on_returned();
        }
        if !matches!(action, Action::Ask { .. }) {
            machine.on_sent(self.now);
        }
        machine.on_answer(self.now, Ok(granted(99)));
        if !matches!(action, Action::Wait { .. }) {
            machine.on_wake();
        }
        assert_eq!(machine.poll(self.now), *action, "a stray event was heard");
    }

    /// Plays every continuation, and counts the sequences.
    fn explore(&self, depth: usize, trail: &mut Trail<Event>) -> usize {
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

/// L1, L6, L8, H1.1, H3.4, hazards 12, 41, 47: all sequences of 7 events, of which 2 to 14 are possible each time; waiting
/// for ever, for a while, and not at all.
#[test]
fn whatever_happens_it_enters_in_time_or_leaves_nothing_behind() {
    let budgets = [None, Some(Duration::from_millis(1500)), Some(Duration::ZERO)];
    let sequences: usize =
        budgets.map(|budget| World::new(budget).explore(7, &mut Trail(Vec::new()))).iter().sum();
    assert_eq!(sequences, 253_303);
}
