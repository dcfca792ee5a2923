//! Timelines of a `Hold`: times, events, and the expected actions of the machine.

use std::time::Duration;

use tenure_core::{Moment, Renewal, Timing};

use crate::{
    error::Loss,
    machine::{
        hold::{Hold, HoldAction},
        hold_tests::{START, TOKEN, step, timing},
    },
};

/// Plays a timeline against a `Hold` that is polled as the watchdog does: when it asked for it.
///
/// The first line has settings: `ttl 9s max_hold 20s`. Every other line is a time since the request of the grant
/// was sent, an event, and perhaps `until` when it is then believed. `→` is the expected action: `→ renew`,
/// `→ lost: …`. All actions must appear at these times, and no others. `asleep` means that polling stops until the
/// next line.
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
    /// Lets time pass, polling as the machine asks; it must not act before the line.
    fn pass_until(&mut self, then: Moment, line: &str) {
        while let Some(hold) = self.hold.as_mut().filter(|_| !self.asleep) {
            let next = match hold.poll(self.now) {
                HoldAction::Wait { until } => until.boot,
                HoldAction::Done => break,
                HoldAction::Release => panic!("nobody passed it on"),
                HoldAction::Renew => {
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
                matches!(said, HoldAction::Wait { .. }),
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
                assert_eq!(hold.poll(now), HoldAction::Renew, "{line}");
                hold.on_sent(now);
            }
            "renewed" => hold.on_renewal(now, Some(Renewal::Renewed)),
            "gone" => hold.on_renewal(now, Some(Renewal::Gone)),
            "failed" => hold.on_renewal(now, None),
            "hint" => hold.on_wake(now),
            "released" => assert_eq!(hold.release(now), Ok(()), "{line}"),
            "asleep" => self.asleep = true,
            "→ held" => assert_eq!(hold.check(now), Ok(()), "{line}"),
            "→ given back" => {
                assert_eq!(hold.check(now).map_err(|lost| lost.cause()), Err(Loss::Released), "{line}");
            }
            "→ at risk" => assert!(hold.is_at_risk(), "{line}"),
            "→ over" => assert_eq!(hold.poll(now), HoldAction::Done, "{line}"),
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
                assert_eq!(hold.poll(now), HoldAction::Done, "{line}");
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

/// H1.1, hazard 12: a grant counts from its request, and so does its first renewal.
#[test]
fn a_grant_that_came_late_is_renewed_at_once() {
    check(
        "ttl 9s
         4s     granted      until 8.908s
         4s     → renew
         4.1s   renewed      until 12.908s",
    );
}

/// Hazard 16: the server extended the lease without a known answer: belief stays as it was.
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
             3.1s   → given back
             3.2s   {answer}
             3.2s   → given back
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

/// A holder whose lock was broken detects it immediately, even if a renewal could gain nothing.
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
