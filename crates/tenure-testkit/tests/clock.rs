//! A server sees the wall clock that the test shows it, and sees it at once.

#![allow(clippy::disallowed_methods, reason = "the machine's time is what a clock is compared with")]

use std::time::{Duration, Instant, SystemTime};

use tenure_testkit::{
    clock::Clock,
    redis::{Recipe, RedisServer, Reply},
};

const SECOND: Duration = Duration::from_secs(1);

fn clocked() -> (Clock, RedisServer) {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    (clock, server)
}

/// What the server believes the time is, since the Unix epoch.
fn time(server: &RedisServer) -> Duration {
    let words = server.command(&["TIME"]).list();
    let [secs, micros] = [0, 1].map(|index: usize| words[index].clone().text().parse().ok());
    let parts = secs.zip(micros).expect("two numbers");
    Duration::from_secs(parts.0) + Duration::from_micros(parts.1)
}

fn exists(server: &RedisServer, key: &str) -> bool {
    server.command(&["EXISTS", key]) == Reply::Int(1)
}

#[test]
fn a_new_clock_is_right() {
    let (_clock, server) = clocked();
    let before = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seen = time(&server);
    let after = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    // The clock has µs, the machine's has ns.
    assert!(seen + Duration::from_micros(1) > before && seen <= after, "{before:?} {seen:?} {after:?}");
}

#[test]
fn a_frozen_clock_shows_the_time_to_the_microsecond() {
    let (clock, server) = clocked();
    for time_of_test in [1_700_000_000_123_456, 4_102_444_800_000_001, 1_000_000_000_999_999] {
        let at = Duration::from_micros(time_of_test);
        clock.freeze_at(at);
        assert_eq!(time(&server), at);
        assert_eq!(clock.shows(), at);
        clock.advance(Duration::from_micros(1));
        assert_eq!(time(&server), at + Duration::from_micros(1));
    }
}

#[test]
fn a_script_sees_the_frozen_time() {
    let (clock, server) = clocked();
    clock.freeze_at(Duration::from_micros(1_700_000_000_123_456));
    let script = "local t = redis.call('TIME') return t[1] .. ' ' .. t[2]";
    assert_eq!(server.command(&["EVAL", script, "0"]).text(), "1700000000 123456");
}

/// Redis 7: a key is there while `now <= when`, both in whole ms.
#[test]
fn a_key_expires_exactly_when_the_frozen_clock_is_past_its_end() {
    let (clock, server) = clocked();
    let start = Duration::from_micros(1_700_000_000_000_900);
    clock.freeze_at(start);
    server.command(&["SET", "key", "value", "PX", "1000"]);
    assert_eq!(server.command(&["PTTL", "key"]), Reply::Int(1000));
    clock.advance(SECOND - Duration::from_millis(1));
    assert_eq!(server.command(&["PTTL", "key"]), Reply::Int(1));
    clock.freeze_at(start + SECOND + Duration::from_micros(99));
    assert!(exists(&server, "key"), "when it ends, and for the rest of that millisecond");
    clock.freeze_at(start + SECOND + Duration::from_micros(100));
    assert!(!exists(&server, "key"), "a millisecond later");
}

#[test]
fn a_frozen_clock_stands_while_the_server_works() {
    let (clock, server) = clocked();
    let at = clock.freeze();
    server.command(&["SET", "key", "value", "PX", "50"]);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        assert!(exists(&server, "key"));
    }
    assert_eq!(time(&server), at);
    assert_eq!(server.command(&["PTTL", "key"]), Reply::Int(50));
}

#[test]
fn a_step_is_seen_by_the_next_command() {
    let (clock, server) = clocked();
    let mut raw = server.raw();
    for _ in 0..50 {
        clock.step(0);
        raw.command(&["SET", "key", "value", "PX", "60000"]);
        clock.step(60_001);
        assert_eq!(raw.command(&["GET", "key"]), Reply::Nil);
        raw.command(&["SET", "key", "value", "PX", "60000"]);
        clock.step(-60_000);
        let left = raw.command(&["PTTL", "key"]).int();
        assert!((170_000..=180_001).contains(&left), "{left}");
    }
}

#[test]
fn a_clock_that_was_frozen_runs_on_from_there() {
    let (clock, server) = clocked();
    let at = Duration::from_secs(1_000_000_000);
    clock.freeze_at(at);
    clock.run();
    let seen = time(&server);
    assert!(seen >= at && seen < at + 600 * SECOND, "{seen:?}");
    clock.advance(3600 * SECOND);
    assert!(time(&server) >= seen + 3600 * SECOND);
    clock.step(0);
    assert!(time(&server) > at + 100_000_000 * SECOND, "right again");
}

#[test]
fn each_server_has_its_own_clock_and_a_restart_keeps_it() {
    let (clock, server) = clocked();
    let (other_clock, other) = clocked();
    clock.freeze_at(1_700_000_000 * SECOND);
    other_clock.freeze_at(1_800_000_000 * SECOND);
    server.kill();
    drop(clock);
    server.start_again();
    assert_eq!(time(&server), 1_700_000_000 * SECOND);
    assert_eq!(time(&other), 1_800_000_000 * SECOND);
}
