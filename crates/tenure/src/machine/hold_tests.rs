//! Every sequence of events that a `Hold` can meet, to a depth; and its timelines.

use std::time::Duration;

use tenure_core::{FencingToken, Moment, Renewal, Timing};

use crate::{
    error::{Loss, Lost},
    machine::hold::{Hold, Todo},
};

/// Validity 9.898 s, renewal after 3.333 s, its time-out 1.667 s, a look every second.
const TTL: Duration = Duration::from_secs(10);
const START: Moment = Moment { boot: Duration::from_secs(1_000), wall: Duration::from_secs(1_000_000) };
const TOKEN: FencingToken = FencingToken::new(7);

fn timing(ttl: Duration) -> Timing {
    Timing::new(ttl).unwrap()
}

fn step(now: Moment, seconds: i64) -> Moment {
    let by = Duration::from_secs(seconds.unsigned_abs());
    Moment { wall: if seconds < 0 { now.wall - by } else { now.wall + by }, ..now }
}

// ---- all sequences of events, to a depth ----

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// Both clocks go on; nobody polls meanwhile, as if the machine slept.
    Pass(Duration),
    /// The wall clock steps by so many seconds.
    Step(i64),
    /// Somebody looks: the holder checks, the watchdog polls.
    Look,
    /// The engine sends the renewal that was asked for.
    Send,
    /// The request that is on its way is answered, or fails.
    Answer(Option<Renewal>),
    Hint,
    Release,
}

/// A hold, and what an outsider knows of it without looking inside.
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
    /// When a renewal is to be sent; `None` if there is nothing to gain by one.
    due: Option<Moment>,
    stepped: bool,
    lost: Option<Lost>,
    released: bool,
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
        };
        world.due = world.next_after(START);
        world
    }

    /// The end of belief by the clock that does not step.
    fn end(&self) -> Duration {
        let last = self.allowed.iter().map(|until| until.boot).max().unwrap();
        self.cap.map_or(last, |cap| last.min(cap.boot))
    }

    fn next_after(&self, sent_at: Moment) -> Option<Moment> {
        let capped = self.cap.is_some_and(|cap| cap.boot <= self.end());
        (!capped).then(|| sent_at + timing(TTL).renewal_period())
    }

    /// What can happen next in a world that keeps the engine's side of the contract.
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
        ];
        if self.in_flight.is_some() {
            events.extend([Some(Renewal::Renewed), Some(Renewal::Gone), None].map(Event::Answer));
        } else if self.hold.clone().poll(self.now) == Todo::Renew {
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
        }
        // What somebody saw is remembered, and never taken back (H2.3, L5).
        if let (Event::Look, Err(lost)) = (event, self.hold.clone().check(self.now)) {
            assert_eq!(*self.lost.get_or_insert(lost), lost);
        }
        let gone = event == Event::Answer(Some(Renewal::Gone));
        assert!(gone || self.hold.remaining(self.now) >= before, "the end of belief moved back");
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
                assert_eq!((lost.cause(), lost.token()), (Loss::Taken, TOKEN));
                self.lost = Some(lost);
            }
            None => self.due = Some(self.now + timing(TTL).renewal_timeout() / 4),
        }
        self.hinted = false;
    }

    /// Everything that must be true of it now, whoever looked before.
    fn judge(&self) {
        let (check, todo) = (self.hold.clone().check(self.now), self.hold.clone().poll(self.now));
        if self.released {
            assert_eq!((check, todo), (Ok(()), Todo::Over), "after a release nothing is a loss");
            return;
        }
        let Ok(()) = check else {
            assert_eq!(todo, Todo::Over, "never renewed after loss");
            assert_eq!(self.hold.remaining(self.now), Duration::ZERO);
            let taken = self.lost.is_some_and(|lost| lost.cause() == Loss::Taken);
            assert!(taken || self.stepped || self.now.boot >= self.end(), "lost without a reason");
            return;
        };
        assert_eq!(self.lost, None, "resurrected (H2.3)");
        assert!(self.now.boot < self.end(), "believed for longer than allowed (H2.2), or beyond the cap");
        assert!(self.allowed.iter().any(|until| !until.is_over(self.now)), "a clock was not heard (H2.1)");
        let is_due = self.in_flight.is_none() && self.due.is_some_and(|due| due.is_over(self.now));
        match todo {
            Todo::Renew => assert!(is_due, "renewed though not due: due {:?}", self.due),
            Todo::Wait { until } => {
                assert!(!is_due, "a renewal was due at {:?}", self.due);
                assert!(!until.is_over(self.now), "would spin");
                let planned = self.due.filter(|_| self.in_flight.is_none()).map_or(Duration::MAX, |d| d.boot);
                assert!(until.boot <= (self.now.boot + timing(TTL).look()).min(self.end()).min(planned));
            }
            Todo::Over => panic!("over while held"),
        }
    }

    /// Plays every continuation, and counts the sequences.
    fn explore(&self, depth: usize, path: &mut Path) -> usize {
        self.judge();
        if depth == 0 {
            return 1;
        }
        let mut sequences = 0;
        for event in self.events() {
            path.0.push(event);
            let mut next = self.clone();
            next.apply(event);
            sequences += next.explore(depth - 1, path);
            path.0.pop();
        }
        sequences
    }
}

/// The events so far; told when an assertion fails.
struct Path(Vec<Event>);

impl Drop for Path {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after {:?}", self.0);
        }
    }
}

/// L1, L5, H2.1, H2.2, H2.3, hazard 25: all sequences of 6 events, of which 8 to 11 are possible each time; from the
/// grant and from a renewal under way, for three settings of `max_hold`.
#[test]
fn whatever_happens_belief_ends_in_time_and_a_loss_is_final() {
    let mut sequences = 0;
    for max_hold in [None, Some(TTL / 2), Some(TTL + TTL / 4)] {
        let granted = World::new(max_hold);
        sequences += granted.explore(6, &mut Path(Vec::new()));
        let mut renewing = granted;
        renewing.apply(Event::Pass(timing(TTL).renewal_period()));
        if renewing.events().contains(&Event::Send) {
            renewing.apply(Event::Send);
            sequences += renewing.explore(6, &mut Path(Vec::new()));
        }
    }
    assert_eq!(sequences, 2_702_273);
}

// ---- timelines ----

/// Plays a timeline against a `Hold` that is polled as the watchdog does: whenever it asked for.
///
/// The first line gives settings: `ttl 9s max_hold 20s`. Every other line is a time since the request of the grant was
/// sent, what happens, and perhaps `until` when it is then believed. `→` is what the machine says: `→ renew`,
/// `→ lost: …`; it must say all of it at these times and nothing else. `asleep` is when polling stops until the next
/// line.
fn check(timeline: &str) {
    let mut lines =
        timeline.lines().map(|line| line.split('#').next().unwrap()).filter(|l| !l.trim().is_empty());
    let settings: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let setting = |name| settings.iter().position(|word| *word == name).map(|at| duration(settings[at + 1]));
    let timing = timing(setting("ttl").unwrap());
    let mut scene = Scene { timing, cap: setting("max_hold"), hold: None, now: START, asleep: false };
    for line in lines {
        let mut words = line.split_whitespace();
        scene.pass_until(START + duration(words.next().unwrap()), line);
        let rest = words.collect::<Vec<_>>().join(" ");
        let (event, until) = rest.split_once("until").unwrap_or((&rest, ""));
        scene.play(event.trim(), line);
        if !until.is_empty() {
            let left = scene.hold.as_ref().unwrap().remaining(scene.now);
            assert_eq!(scene.now.boot + left, START.boot + duration(until), "{line}");
        }
    }
}

fn duration(text: &str) -> Duration {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap());
    let scale = if unit == "ms" { 1e-3 } else { 1.0 };
    Duration::from_micros((number.parse::<f64>().unwrap() * scale * 1e6).round() as u64)
}

struct Scene {
    timing: Timing,
    cap: Option<Duration>,
    hold: Option<Hold>,
    /// The wall clock may have stepped away from the other one.
    now: Moment,
    asleep: bool,
}

impl Scene {
    /// Lets time pass, polling as the machine asks; it must have nothing to say before the line.
    fn pass_until(&mut self, then: Moment, line: &str) {
        while let Some(hold) = self.hold.as_mut().filter(|_| !self.asleep) {
            let next = match hold.poll(self.now) {
                Todo::Wait { until } => until.boot,
                Todo::Over => break,
                Todo::Renew => {
                    assert!(self.now.boot == then.boot && line.contains("→ renew"), "renew before: {line}");
                    break;
                }
            };
            if next >= then.boot {
                break;
            }
            self.now = self.now + next.saturating_sub(self.now.boot);
            let said = hold.poll(self.now);
            assert!(
                matches!(said, Todo::Wait { .. }),
                "{said:?} at {:?}, before: {line}",
                self.now.boot - START.boot
            );
        }
        self.now = self.now + then.boot.saturating_sub(self.now.boot);
        self.asleep = false;
    }

    fn play(&mut self, event: &str, line: &str) {
        let now = self.now;
        if event == "granted" {
            let until = self.timing.believed_until(START, self.timing.ttl());
            let cap = self.cap.map(|max_hold| now + max_hold);
            self.hold = Some(Hold::new(until, self.timing.ttl(), self.timing, cap, TOKEN));
            return;
        }
        let hold = self.hold.as_mut().unwrap();
        match event {
            "→ renew" => {
                assert_eq!(hold.poll(now), Todo::Renew, "{line}");
                hold.on_sent(now);
            }
            "renewed" => hold.on_renewal(now, Some(Renewal::Renewed)),
            "gone" => hold.on_renewal(now, Some(Renewal::Gone)),
            "failed" => hold.on_renewal(now, None),
            "hint" => hold.on_wake(now),
            "released" => assert_eq!(hold.release(now), Ok(()), "{line}"),
            "asleep" => self.asleep = true,
            "→ held" => assert_eq!(hold.check(now), Ok(()), "{line}"),
            "→ at risk" => assert!(hold.is_at_risk(), "{line}"),
            "→ over" => assert_eq!(hold.poll(now), Todo::Over, "{line}"),
            _ if event.starts_with("wall") => {
                self.now = step(now, event.trim_start_matches("wall").trim().parse().unwrap());
            }
            _ => {
                let loss = match event {
                    "→ lost: expired" => Loss::Expired,
                    "→ lost: taken" => Loss::Taken,
                    "→ lost: max hold" => Loss::MaxHold,
                    _ => panic!("what is {event:?}?"),
                };
                assert_eq!(hold.check(now).map_err(|lost| lost.cause()), Err(loss), "{line}");
                assert_eq!(hold.poll(now), Todo::Over, "{line}");
            }
        }
    }
}

/// L1: a third of the ttl after each renewal that succeeded the next one is due.
#[test]
fn renewals_follow_one_another() {
    check(
        "ttl 9s
         0s     granted      until 8.908s
         3s     → renew
         3.01s  renewed      until 11.908s
         6s     → renew
         6.01s  renewed      until 14.908s
         9s     → renew",
    );
}

/// H2.2.
#[test]
fn a_late_answer_counts_from_when_the_question_was_sent() {
    check(
        "ttl 9s
          0s      granted
          3s      → renew
          5s      renewed     until 11.908s   # 3 s + 9 s - 92 ms, not 5 s + 9 s
          6s      → renew
         11.908s  → lost: expired",
    );
}

/// H1.1, hazard 12: a grant counts from when it was asked for, and so does its first renewal.
#[test]
fn a_grant_that_came_late_is_renewed_at_once() {
    check(
        "ttl 9s
         4s     granted      until 8.908s
         4s     → renew
         4.1s   renewed      until 12.908s",
    );
}

/// Hazard 16: the server extended, we do not know: belief stays where it was.
#[test]
fn a_lost_reply_gains_nothing_and_the_next_one_does() {
    check(
        "ttl 9s
         0s      granted      until 8.908s
         3s      → renew
         4.5s    failed       until 8.908s
         4.5s    → at risk
         4.5s    → held
         4.875s  → renew
         4.9s    renewed      until 13.783s
         7.875s  → renew",
    );
}

#[test]
fn a_lease_that_is_gone_is_lost_at_once_and_for_ever() {
    check(
        "ttl 9s
         0s     granted
         3s     → renew
         3.1s   gone
         3.1s   → lost: taken
         3.2s   renewed
         4s     → lost: taken",
    );
}

/// L1: the end of belief needs no answer.
#[test]
fn a_server_that_hangs_costs_the_lease_when_it_ends() {
    check(
        "ttl 9s
         0s      granted
         3s      → renew
         8.908s  → lost: expired
         9s      renewed
         9s      → lost: expired   # L5, H2.3
         20s     → over",
    );
}

#[test]
fn four_renewals_are_tried_before_the_lease_ends() {
    check(
        "ttl 9s
         0s      granted
         3s      → renew
         4.5s    failed
         4.875s  → renew
         6.375s  failed
         6.75s   → renew
         8.25s   failed
         8.625s  → renew
         8.908s  → lost: expired",
    );
}

/// H2.1, hazard 26.
#[test]
fn a_machine_that_slept_learns_of_the_loss_at_its_first_look() {
    check(
        "ttl 9s
         0s     granted
         1s     asleep
         30s    → lost: expired",
    );
    check(
        "ttl 9s
         0s     granted
         3s     → renew
         3.1s   asleep
         30s    renewed          # sent before the sleep: it is no use
         30s    → lost: expired",
    );
    check(
        "ttl 9s
         0s     granted
         1s     asleep
         8s     → held
         8s     → renew",
    );
}

/// H2.1, hazard 26, hazard 49.
#[test]
fn a_wall_clock_that_steps_forward_ends_the_lease_and_one_that_steps_back_does_not_lengthen_it() {
    check(
        "ttl 9s
         0s     granted
         1s     wall +9
         1s     → lost: expired
         1s     wall -9
         2s     → lost: expired",
    );
    check(
        "ttl 9s
         0s     granted
         1s     wall -3600     until 8.908s
         3s     → renew
         8.908s → lost: expired",
    );
    check(
        "ttl 9s
         0s     granted
         1s     wall +4        until 4.908s
         1s     → renew        # 3 s have passed, says one of them
         1.1s   renewed        until 9.908s",
    );
}

#[test]
fn after_a_release_an_answer_changes_nothing() {
    for answer in ["renewed", "gone", "failed"] {
        check(&format!(
            "ttl 9s
             0s     granted
             3s     → renew
             3.1s   released
             3.2s   {answer}
             3.2s   → held
             30s    → over"
        ));
    }
}

/// Hazard 25.
#[test]
fn no_renewal_reaches_beyond_max_hold() {
    check(
        "ttl 9s max_hold 13s
          0s     granted       until 8.908s
          3s     → renew
          3.01s  renewed       until 11.908s
          6s     → renew
          6.01s  renewed       until 13s
         13s     → lost: max hold",
    );
    check(
        "ttl 9s max_hold 2s
         0s     granted        until 2s
         2s     → lost: max hold",
    );
}

/// A robbed holder is told at once: also if it could not gain anything by a renewal.
#[test]
fn a_hint_asks_at_once_in_the_last_lease_too() {
    for max_hold in ["", "max_hold 2s"] {
        check(&format!(
            "ttl 9s {max_hold}
             0s     granted
             1s     hint
             1s     → renew
             1.1s   gone
             1.1s   → lost: taken"
        ));
    }
}

/// The server may have renewed first and been broken afterwards.
#[test]
fn a_hint_is_not_answered_by_a_renewal_that_was_sent_before_it() {
    check(
        "ttl 9s
         0s     granted
         3s     → renew
         3.1s   hint
         3.2s   renewed
         3.2s   → renew
         3.3s   gone
         3.3s   → lost: taken",
    );
}
