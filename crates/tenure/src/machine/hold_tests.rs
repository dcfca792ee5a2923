//! Every sequence of events of a `Hold`, to a depth.

use std::time::Duration;

use tenure_core::{FencingToken, Moment, Renewal, Timing};

use crate::{
    error::{Loss, Lost},
    machine::{
        EventLog,
        hold::{Hold, HoldAction},
    },
};

/// Validity 9.898 s, renewal after 3.333 s, its timeout 1.667 s, a check every second.
const TTL: Duration = Duration::from_secs(10);
pub(super) const START: Moment =
    Moment { boot: Duration::from_secs(1_000), wall: Duration::from_secs(1_000_000) };
pub(super) const TOKEN: FencingToken = FencingToken::new(7);

pub(super) fn timing(ttl: Duration) -> Timing {
    Timing::new(ttl).unwrap()
}

pub(super) fn step(now: Moment, seconds: i64) -> Moment {
    let by = Duration::from_secs(seconds.unsigned_abs());
    Moment { wall: if seconds < 0 { now.wall - by } else { now.wall + by }, ..now }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// Both clocks advance and no task polls, as if the machine slept.
    Pass(Duration),
    /// The wall clock steps by this many seconds.
    Step(i64),
    /// A check: by the holder, or a poll by the watchdog.
    Look,
    /// The engine sends the requested renewal.
    Send,
    /// The request that is on its way is answered, or fails.
    Answer(Option<Renewal>),
    Hint,
    Release,
    /// The holder leaves it to the next one of its process.
    PassOn,
}

/// A hold, and the state that an outsider knows of it.
#[derive(Clone)]
struct World {
    hold: Hold,
    now: Moment,
    cap: Option<Moment>,
    /// Until when each grant and each renewal answered `Renewed` allows belief, counted from before it was sent.
    allowed: Vec<Moment>,
    /// When the request on its way was sent.
    in_flight: Option<Moment>,
    /// A hint came while a request was on its way.
    hinted: bool,
    /// When a renewal is due; `None` if it would gain nothing.
    due: Option<Moment>,
    stepped: bool,
    lost: Option<Lost>,
    released: bool,
    token: FencingToken,
}

impl World {
    fn new(max_hold: Option<Duration>) -> Self {
        let cap = max_hold.map(|max| START + max);
        let until = timing(TTL).believed_until(START, TTL);
        let mut world = Self {
            hold: Hold::new(until, TTL, timing(TTL), cap, TOKEN),
            now: START,
            cap,
            allowed: vec![until],
            in_flight: None,
            hinted: false,
            due: None,
            stepped: false,
            lost: None,
            released: false,
            token: TOKEN,
        };
        world.due = world.next_after(START);
        world
    }

    /// The end of validity by the clock that does not step.
    fn end(&self) -> Duration {
        let last = self.allowed.iter().map(|until| until.boot).max().unwrap();
        self.cap.map_or(last, |cap| last.min(cap.boot))
    }

    fn next_after(&self, sent_at: Moment) -> Option<Moment> {
        let capped = self.cap.is_some_and(|cap| cap.boot <= self.end());
        (!capped).then(|| sent_at + timing(TTL).renewal_period())
    }

    /// The next possible events, in a world that keeps the engine's side of the contract.
    fn events(&self) -> Vec<Event> {
        let mut events = vec![
            Event::Pass(Duration::from_millis(500)),
            Event::Pass(timing(TTL).renewal_period()),
            Event::Pass(TTL),
            Event::Step(10),
            Event::Step(-10),
            Event::Look,
            Event::Hint,
            Event::Release,
            Event::PassOn,
        ];
        if self.in_flight.is_some() {
            events.extend([Some(Renewal::Renewed), Some(Renewal::Gone), None].map(Event::Answer));
        } else if self.hold.clone().poll(self.now) == HoldAction::Renew {
            events.push(Event::Send);
        }
        events
    }

    fn apply(&mut self, event: Event) {
        let before = self.hold.remaining(self.now);
        match event {
            Event::Pass(d) => return self.now = self.now + d,
            Event::Step(seconds) => {
                self.stepped = true;
                return self.now = step(self.now, seconds);
            }
            Event::Look => drop(self.hold.check(self.now)),
            Event::Send => {
                self.hold.on_sent(self.now);
                self.in_flight = Some(self.now);
            }
            Event::Answer(answer) => self.answer(answer),
            Event::Hint => {
                self.hold.on_wake(self.now);
                self.hinted |= self.in_flight.is_some();
                self.due = Some(self.now);
            }
            Event::Release => {
                let answer = self.hold.release(self.now);
                self.released |= answer.is_ok();
                assert!(self.lost.is_none() || answer.is_err(), "released what was lost");
            }
            Event::PassOn => {}
        }
        if event == Event::PassOn {
            self.pass_on(before);
        }
        // A reported loss is final, and never withdrawn (H2.3, L5).
        if let (Event::Look, false, Err(lost)) = (event, self.released, self.hold.clone().check(self.now)) {
            assert_eq!(*self.lost.get_or_insert(lost), lost);
        }
        let gone = event == Event::Answer(Some(Renewal::Gone));
        assert!(
            gone || self.released || self.hold.remaining(self.now) >= before,
            "the end of belief moved back"
        );
    }

    /// H5.1, H5.3: it ends for the next holder as it would have ended, and only a held and fresh lease is passed
    /// on.
    fn pass_on(&mut self, left: Duration) {
        let (mut before, next) = (self.hold.clone(), FencingToken::new(self.token.get() + 1));
        let is_held = before.check(self.now).is_ok();
        let Some(passed) = self.hold.pass_on(self.now, next) else {
            assert_eq!(self.hold.clone().check(self.now), before.check(self.now), "refused, and changed");
            return;
        };
        assert!(is_held && !self.released && self.lost.is_none(), "passed on what is over");
        assert!(
            left * 3 >= TTL * 2 && self.cap.is_none() && self.in_flight.is_none() && !before.is_at_risk()
        );
        let over = self.hold.check(self.now).unwrap_err();
        assert_eq!((over.cause(), over.token()), (Loss::Released, self.token), "two hold it");
        let mut untaken = passed.clone();
        let take_by = self.now + Timing::CLAIM_TTL;
        assert!(
            !untaken.abandon(self.now) && untaken.poll(take_by) == HoldAction::Release,
            "in vain for the claim ttl"
        );
        assert!(untaken.abandon(take_by) && untaken.take(take_by).is_err(), "given back and taken");
        let mut passed = passed;
        assert_eq!((passed.take(self.now), passed.remaining(self.now)), (Ok(()), left));
        (self.hold, self.token) = (passed, next);
    }

    fn answer(&mut self, answer: Option<Renewal>) {
        let sent_at = self.in_flight.take().unwrap();
        let was_held = self.hold.clone().check(self.now).is_ok() && !self.released;
        self.hold.on_renewal(self.now, answer);
        if !was_held {
            return;
        }
        match answer {
            Some(Renewal::Renewed) => {
                self.allowed.push(timing(TTL).believed_until(sent_at, TTL));
                self.due = if self.hinted { Some(self.now) } else { self.next_after(sent_at) };
            }
            Some(Renewal::Gone) => {
                let lost = self.hold.clone().check(self.now).unwrap_err();
                assert_eq!((lost.cause(), lost.token()), (Loss::Taken, self.token));
                self.lost = Some(lost);
            }
            None => self.due = Some(self.now + timing(TTL).renewal_timeout() / 4),
        }
        self.hinted = false;
    }

    /// Checks all invariants of its present state, even if it was checked before.
    fn judge(&self) {
        let (check, action) = (self.hold.clone().check(self.now), self.hold.clone().poll(self.now));
        if self.released {
            assert_eq!(
                check.map_err(|lost| lost.cause()),
                Err(Loss::Released),
                "a clone of the lease goes on"
            );
            assert_eq!(action, HoldAction::Done, "never renewed after a release");
            assert_eq!(
                self.hold.remaining(self.now),
                Duration::ZERO,
                "nothing is left of what was given back"
            );
            return;
        }
        let Ok(()) = check else {
            assert_eq!(action, HoldAction::Done, "never renewed after loss");
            assert_eq!(self.hold.remaining(self.now), Duration::ZERO);
            let taken = self.lost.is_some_and(|lost| lost.cause() == Loss::Taken);
            assert!(taken || self.stepped || self.now.boot >= self.end(), "lost without a reason");
            return;
        };
        assert_eq!(self.lost, None, "resurrected (H2.3)");
        assert!(self.now.boot < self.end(), "believed for longer than allowed (H2.2), or beyond the cap");
        assert!(self.allowed.iter().any(|until| !until.is_over(self.now)), "a clock was not heard (H2.1)");
        let is_due = self.in_flight.is_none() && self.due.is_some_and(|due| due.is_over(self.now));
        match action {
            HoldAction::Renew => assert!(is_due, "renewed though not due: due {:?}", self.due),
            HoldAction::Wait { until } => {
                assert!(!is_due, "a renewal was due at {:?}", self.due);
                assert!(!until.is_over(self.now), "would spin");
                let planned = self.due.filter(|_| self.in_flight.is_none()).map_or(Duration::MAX, |d| d.boot);
                assert!(until.boot <= self.end().min(planned));
            }
            HoldAction::Done | HoldAction::Release => panic!("{action:?} while held"),
        }
        let soon = self.now + timing(TTL).renewal_period() / 32;
        let is_nearly_due = self.in_flight.is_none() && self.due.is_some_and(|due| due.is_over(soon));
        match self.hold.clone().poll_beside(self.now) {
            HoldAction::Renew => assert!(is_nearly_due, "renewed beside others: due {:?}", self.due),
            beside => assert_eq!(beside, action),
        }
    }

    /// Plays every continuation, and counts the sequences.
    fn explore(&self, depth: usize, trail: &mut EventLog<Event>) -> usize {
        self.judge();
        if depth == 0 {
            return 1;
        }
        let mut sequences = 0;
        for event in self.events() {
            trail.0.push(event);
            let mut next = self.clone();
            next.apply(event);
            sequences += next.explore(depth - 1, trail);
            trail.0.pop();
        }
        sequences
    }
}

/// L1, L5, H2.1, H2.2, H2.3, hazard 25: H5.1, H5.3: all sequences of 6 events, of which 9 to 12 are possible each
/// time; from the grant and from a renewal under way, for three settings of `max_hold`.
#[test]
fn whatever_happens_belief_ends_in_time_and_a_loss_is_final() {
    let mut sequences = 0;
    for max_hold in [None, Some(TTL / 2), Some(TTL + TTL / 4)] {
        let granted = World::new(max_hold);
        sequences += granted.explore(6, &mut EventLog(Vec::new()));
        let mut renewing = granted;
        renewing.apply(Event::Pass(timing(TTL).renewal_period()));
        if renewing.events().contains(&Event::Send) {
            renewing.apply(Event::Send);
            sequences += renewing.explore(6, &mut EventLog(Vec::new()));
        }
    }
    assert_eq!(sequences, 5_134_920);
}

/// H5.1, H5.3: only a held lease is passed on, with two thirds of it left and no failure.
#[test]
fn what_was_released_or_lost_is_not_passed_on() {
    let held = |cap| Hold::new(timing(TTL).believed_until(START, TTL), TTL, timing(TTL), cap, TOKEN);
    let next = FencingToken::new(8);
    let after = |millis| START + Duration::from_millis(millis);
    assert!(held(None).pass_on(after(3_230), next).is_some());
    assert!(held(None).pass_on(after(3_240), next).is_none(), "less than two thirds are left");
    assert!(
        held(Some(after(60_000))).pass_on(START, next).is_none(),
        "a cap counts from the entry of one holder"
    );
    let mut released = held(None);
    released.release(START).unwrap();
    assert!(released.pass_on(START, next).is_none());
    let mut passed = held(None);
    assert!(passed.pass_on(START, next).is_some() && passed.pass_on(START, next).is_none(), "twice");
    let mut renewing = held(None);
    renewing.on_sent(START);
    assert!(renewing.pass_on(START, next).is_none(), "a renewal is under way");
    renewing.on_renewal(START, None);
    assert!(renewing.pass_on(START, next).is_none(), "the last renewal has failed");
    assert!(held(None).pass_on(step(START, 20), next).is_none(), "lost by the other clock");
}

/// L1: a lease that was kept idle is ended for a waiter, but not if a task has taken it at this moment.
#[test]
fn a_lease_that_was_taken_is_not_ended_for_others() {
    let at = |ms| START + Duration::from_millis(ms);
    let kept = || {
        let mut hold = Hold::new(START + Duration::from_secs(9), TTL, timing(TTL), None, TOKEN);
        hold.keep_idle(at(1), FencingToken::new(8), Duration::from_secs(60)).unwrap()
    };
    let (mut idle, mut taken) = (kept(), kept());
    assert!(idle.end_idle(at(2)) && idle.check(at(2)).is_err() && !idle.end_idle(at(3)));
    taken.take(at(2)).unwrap();
    assert!(!taken.end_idle(at(2)) && taken.check(at(3)).is_ok());
}
