//! How long an `Acquisition` waits, asks and has patience: an example for each accident.

use std::time::Duration;

use tenure_core::{BackendError, ClaimAnswer, ErrorKind, Moment, Outcome};

use crate::machine::{
    acquisition::{Acquisition, Action, Failure, Verdict},
    acquisition_tests::{PATIENCE, START, TTL, acquisition, error, queued, timing},
};

/// Waiting is measured in time that passed. On a machine that starts with a wrong clock the wall clock steps far, and
/// everybody who waited would have been told that the lock is taken.
#[test]
fn a_wall_clock_that_steps_does_not_end_the_waiting() {
    let mut waiting = acquisition(Some(Duration::from_secs(60)));
    waiting.on_sent(START);
    waiting.on_answer(START, Ok(queued()));
    let stepped = Moment { wall: START.wall + Duration::from_secs(3600), ..START };
    assert_eq!(waiting.poll(stepped), Action::Ask { fresh_owner: false }, "asking early does no harm");
    assert_eq!(waiting.request_timeout(stepped), timing().request_timeout());
    waiting.on_sent(stepped);
    waiting.on_answer(stepped, Ok(queued()));
    assert!(matches!(waiting.poll(stepped), Action::Wait { .. }));
}

/// L6: between our own delay and 2 s.
#[test]
fn a_store_that_says_when_to_ask_again_is_asked_then() {
    for (hint, expected) in [(1, None), (700, Some(700)), (60_000, Some(2_000))] {
        let mut waiting = acquisition(None);
        waiting.on_sent(START);
        let hint = Duration::from_millis(hint);
        waiting.on_answer(START, Err(error(ErrorKind::Unavailable, Outcome::NotApplied).retry_after(hint)));
        let Action::Wait { until } = waiting.poll(START) else { panic!("does not wait") };
        let wait = until.boot - START.boot;
        match expected {
            Some(ms) => assert_eq!(wait, Duration::from_millis(ms)),
            None => assert!(wait >= Duration::from_millis(10), "a hint does not overrule the back-off"),
        }
    }
}

/// A server that waits for the end of the leases that it may have forgotten says when it is over: that is no failure, and
/// our patience begins then.
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
    assert!(matches!(ask(&mut waiting, Duration::ZERO, hinted(32)), Action::Wait { .. }));
    assert!(matches!(ask(&mut waiting, Duration::from_secs(30), hinted(2)), Action::Wait { .. }));
    assert!(matches!(ask(&mut waiting, Duration::from_secs(34), refusal()), Action::Wait { .. }));
    let over = Duration::from_secs(32) + PATIENCE;
    assert!(matches!(ask(&mut waiting, over, refusal()), Action::Finish(Verdict::Failed(_))));
}

/// A store that hangs must not hold a caller back who wanted to wait for less.
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

/// Who had waited behind another one for all of its time was told that the store had failed, if that took longer than
/// the rest of the time to say so once more.
#[test]
fn a_store_that_is_slow_at_the_very_end_has_not_failed() {
    let (at, silence) =
        (|ms| START + Duration::from_millis(ms), error(ErrorKind::TimedOut, Outcome::Unknown));
    let ends = |answers: &[(u64, Result<ClaimAnswer, BackendError>)]| {
        let mut machine = acquisition(Some(Duration::from_secs(1)));
        for (ms, answer) in answers {
            machine.on_wake();
            assert!(matches!(machine.poll(at(ms - 100)), Action::Ask { .. }), "at {ms}");
            machine.on_sent(at(ms - 100));
            machine.on_answer(at(*ms), answer.clone());
        }
        assert_eq!(machine.poll(at(1000)), Action::Return);
        machine.on_returned();
        let Action::Finish(verdict) = machine.poll(at(1000)) else { panic!("it is not over") };
        verdict
    };
    let (asked, cut) = ((500, Ok(queued())), (1000, Err(silence.clone())));
    let held = ends(&[asked.clone(), cut.clone()]);
    assert!(matches!(held, Verdict::TimedOut { ahead: Some(1), .. }), "{held:?}");
    // Why it cannot serve says more than that it was slow in the end.
    let refused = (700, Err(error(ErrorKind::Unavailable, Outcome::NotApplied)));
    let Verdict::Failed(Failure(why)) = ends(&[refused, cut.clone()]) else { panic!("it has failed") };
    assert_eq!(why.kind(), ErrorKind::Unavailable);
    for failed in [vec![cut.clone()], vec![asked, (700, Err(silence)), cut]] {
        let failed = ends(&failed);
        assert!(matches!(failed, Verdict::Failed(_)), "{failed:?}");
    }
}
