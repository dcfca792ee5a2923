//! What the command does when its Redis server fails it, and with what other programs keep there.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::stage::{
    Ended, START, Stage, assert_within,
    files::{BEAT, DEAF_BEAT, HOLD},
    scaled_ttl,
};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// Says when it was let in.
const ENTERED: &str = "date +%s%N >entered.$0";

/// It was let in, and said once what it waited for, in a pipe too. What a server that nobody has used before costs is borne
/// only by those who know why, and how tests are spared.
#[track_caller]
fn announced(ended: &Ended) {
    assert_eq!(ended.code, 0, "{ended:?}");
    let said = ended.err.matches("it grants no locks for another").count();
    assert_eq!((said, ended.err.lines().count()), (1, 1), "{ended:?}");
    assert!(ended.err.contains("?guard=off or a smaller ?max_ttl= to the URL"), "{ended:?}");
}

/// Everybody who waits for a new server says so, but not if told to be quiet.
#[test]
fn the_first_wait_of_a_server_is_announced_unless_quiet() {
    let stage = Stage::on_redis_with("?max_ttl=6s");
    let (loud, quiet) =
        (["run", "--ttl", "6s", "a", "--", "true"], ["-q", "run", "--ttl", "6s", "b", "--", "true"]);
    let both = (stage.start(&loud), stage.start(&quiet));
    announced(&both.0.ended());
    both.1.ended().silent(0);
}

/// `tenure run` without a `--ttl` was refused on a store that accepts less than 10 s at most.
#[test]
fn who_names_no_ttl_gets_the_longest_that_the_server_accepts() {
    let stage = Stage::on_redis_with("?max_ttl=6s");
    stage.run(&["run", "--ttl", "10s", "job", "--", "true"]).complained(64, "accepts 6 s at most");
    stage.run(&["run", "--ttl", "6001ms", "job", "--", "true"]).complained(64, "accepts 6 s at most");
    let ended = stage.run(&["-q", "run", "job", "--", TENURE, "show", "--json", "job"]);
    ended.silent(0);
    let view: Value = serde_json::from_str(&ended.out).unwrap();
    let left = view["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!(left > 0 && left <= 6_000, "{left}");
}

/// L1, hazard 60. A hung server ends leases by its clock all the same.
#[test]
fn the_command_is_gone_before_the_lease_of_a_hung_server_ends() {
    for (name, script) in [("meek", BEAT), ("deaf", DEAF_BEAT)] {
        let mut stage = Stage::on_redis();
        let (ttl, text) = scaled_ttl(Duration::from_secs(3));
        let process = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", script, name]);
        stage.beats(name);
        let end = stage.fresh_end_on_servers("job", ttl);
        stage.server().stop();
        stage.dies_before(name, end);
        stage.server().resume();
        let ended = process.ended();
        assert_eq!(ended.code, 79, "{ended:?}");
    }
}

/// L1, H4.3, hazard 21: a server that lost everything lets nobody in while the old lease may last.
#[test]
fn a_server_that_came_back_empty_lets_nobody_in_before_the_old_lease_is_over() {
    let mut stage = Stage::on_redis_with("?max_ttl=6s");
    let first = stage.start(&["run", "--ttl", "6s", "job", "--", "sh", "-c", DEAF_BEAT, "first"]);
    stage.beats("first");
    let end = stage.lease_end("job").latest;
    stage.server().kill();
    stage.server().start_again();
    let refused = stage.run(&["run", "-n", "--ttl", "6s", "job", "--", "true"]);
    // What it says depends on whether the first one has asked before.
    refused.complained(69, "grants no locks for another");
    let second = stage.start(&["run", "--ttl", "6s", "job", "--", "sh", "-c", ENTERED, "second"]);
    let lost = first.ended();
    assert_eq!(lost.code, 79, "{lost:?}");
    announced(&second.ended());
    assert!(stage.entered("second") > end, "the second came in before the first one's lease was over");
}

/// Without the guard there are two holders.
#[test]
fn without_the_guard_two_hold_after_the_server_came_back_empty() {
    // A long lease: its holder asks seldom, and lets its command run on for a while, though it hears of the loss at once.
    let mut stage = Stage::on_redis_with("?guard=off&max_ttl=2m");
    let first = stage.start(&["run", "--ttl", "2m", "job", "--", "sh", "-c", DEAF_BEAT, "first"]);
    stage.beats("first");
    stage.server().kill();
    stage.server().start_again();
    let both = "kill -0 $(cat pid.first) && touch both";
    stage.run(&["run", "-n", "job", "--", "sh", "-c", both]).silent(0);
    assert!(stage.path("both").exists(), "the first one's command still ran");
    assert_eq!(first.ended().code, 79);
}

/// H4.1, hazard 37: a flushed server has no record, so it waits as an empty one does.
#[test]
fn a_flushed_server_lets_nobody_in_before_the_old_lease_is_over() {
    let mut stage = Stage::on_redis_with("?max_ttl=6s");
    let first = stage.start(&["run", "--ttl", "6s", "job", "--", "sh", "-c", DEAF_BEAT, "first"]);
    stage.beats("first");
    let end = stage.lease_end("job").latest;
    stage.server().command(&["FLUSHALL"]);
    let second = stage.start(&["run", "--ttl", "6s", "job", "--", "sh", "-c", ENTERED, "second"]);
    assert_eq!(first.ended().code, 79);
    announced(&second.ended());
    assert!(stage.entered("second") > end, "the second came in before the first one's lease was over");
}

/// `ls` and `show` printed "free" for a lock that no process could acquire.
#[test]
fn a_server_that_waits_is_shown_as_one_that_grants_nothing() {
    let mut stage = Stage::on_redis_with("?max_ttl=10m");
    stage.run(&["run", "-n", "job", "--", "true"]).complained(69, "grants no locks for another");
    for arguments in [&["ls"][..], &["show", "job"]] {
        let seen = stage.run(arguments);
        assert_eq!((seen.code, seen.err.lines().count()), (0, 1), "{seen:?}");
        let told = "tenure: the Redis server may have lost locks; it grants no locks for another ";
        assert!(seen.err.starts_with(told), "{seen:?}");
        stage.run(&[&["-q"], arguments].concat()).silent(0);
    }
    let view = stage.run(&["show", "job", "--json"]);
    let view: Value = serde_json::from_str(&view.out).unwrap();
    assert!((1..=600_000).contains(&view["closed"]["left_ms"].as_u64().unwrap()), "{view}");
    assert!(view["closed"]["why"].as_str().unwrap().contains("grants no locks for another"), "{view}");
    let found = stage.run(&["-q", "doctor"]);
    assert!(found.code == 1 && found.out.starts_with("warning: the Redis server may have lost"), "{found:?}");
    // The server grants again.
    stage.server().command(&["DEL", "tenure:one"]);
    stage.server().has_waited("tenure:one", "guard=on max_ttl=10m");
    let seen = stage.run(&["show", "job"]);
    assert!(seen.code == 0 && seen.err.is_empty(), "{seen:?}");
    assert_eq!(stage.show("job")["closed"], Value::Null);
}

/// A server that is not there is said to be not there: at once with `-n`, and waited for otherwise.
#[test]
fn a_server_that_is_down_is_waited_for() {
    let mut stage = Stage::on_redis();
    stage.server().kill();
    let asked = Instant::now();
    stage.run(&["run", "-n", "job", "--", "true"]).complained(69, "cannot reach");
    assert_within(Duration::from_secs(1) + START, asked.elapsed(), "a refusal of -n");
    let waiting = stage.start(&["run", "job", "--", "echo", "in"]);
    stage.server().start_again();
    let ended = waiting.ended();
    assert_eq!((ended.code, ended.out.trim()), (0, "in"), "{ended:?}");
}

/// No secret is ever printed.
#[test]
fn a_wrong_password_is_refused_and_not_shown() {
    let mut stage = Stage::on_redis();
    stage.server().command(&["CONFIG", "SET", "requirepass", "right-one"]);
    let port = stage.server().port();
    let url = format!("redis://:wr0ng-secret@127.0.0.1:{port}/");
    for (verb, rest) in [("ls", &[][..]), ("show", &["job"]), ("run", &["-v", "job", "--", "true"])] {
        let ended = stage.run(&[&[verb, "--url", &url], rest].concat());
        assert_eq!(ended.code, 69, "{verb:?}: {ended:?}");
        assert!(ended.err.contains("refuses this user or password"), "{ended:?}");
        assert!(!format!("{ended:?}").contains("wr0ng-secret"), "{ended:?}");
    }
}

/// A7: what another program holds is shown and waited for, and cannot paint the terminal.
#[test]
fn a_foreign_lock_is_shown_and_waited_for() {
    let mut stage = Stage::on_redis();
    let theirs = "theirs\u{1b}[31m";
    stage.server().command(&["SET", "job", theirs, "NX", "PX", "60000"]);
    let view = stage.show("job");
    let holder = &view["holders"][0];
    assert_eq!(
        (&holder["token"], &holder["label"], &holder["since"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let refused = stage.run(&["run", "-n", "job", "--", "true"]);
    refused.complained(1, "a client that is not Tenure");
    assert!(!refused.err.contains("theirs"), "{refused:?}");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "true"]);
    assert_eq!(stage.server().command(&["GET", "job"]).text(), theirs);
    stage.server().command(&["DEL", "job"]);
    waiter.ended().silent(0);
}

/// Hazard 38: a key of another type is somebody's data, refused and not touched.
#[test]
fn a_key_that_is_no_lock_is_refused() {
    let mut stage = Stage::on_redis();
    stage.server().command(&["RPUSH", "job", "data"]);
    stage.run(&["run", "job", "--", "true"]).complained(69, "holds data that is not a lock");
    stage.run(&["show", "job"]).complained(69, "holds data that is not a lock");
    let keys = format!("{:?}", stage.server().command(&["KEYS", "*job*"]));
    assert_eq!(keys.matches("job").count(), 1, "{keys}");
    assert_eq!(stage.server().command(&["LLEN", "job"]).int(), 1);
}

/// A rollout of a larger `max_ttl`: the first new process was refused, and all old ones once the record was raised.
#[test]
fn a_larger_max_ttl_joins_and_is_adopted_only_on_purpose() {
    let mut stage = Stage::on_redis_with("?max_ttl=1s");
    let new = stage.server().url("?max_ttl=3s");
    let holder = stage.start(&["-q", "run", "old", "--", "sh", "-c", HOLD, "old"]);
    stage.beats("old");
    stage.run(&["-q", "run", "--url", &new, "new", "--", "true"]).silent(0);
    let refused = stage.run(&["doctor", "-q", "--url", &new, "--adopt"]);
    refused.complained(
        69,
        "this Redis server is used with guard=on max_ttl=1s, and this URL has guard=on max_ttl=3s",
    );
    let told = stage.run(&["doctor", "--url", &new, "--adopt"]);
    assert!(told.err.contains("holders and waiters seen: ") && told.err.contains(" sh"), "{told:?}");
    stage.run(&["-q", "run", "other", "--", "true"]).silent(0);
    // The grace of the command is for the ttl that its URL allows; and nothing stops it early.
    let lasting = ["--grace", "900ms", "--max-hold", "20s", "new", "--", "sleep", "2"];
    stage.run(&[&["-q", "run", "--url", &new][..], &lasting].concat()).silent(0);
    let owner = stage.run(&["lock", "left", "--ttl", "1s"]);
    let owner: Value = serde_json::from_str(&owner.out).unwrap();
    let attached = ["attach", "left", owner["owner"].as_str().unwrap(), "--", "sleep", "2"];
    stage.run(&[&["-q", "--url", &new][..], &attached].concat()).silent(0);
    stage.touch("go");
    holder.ended().silent(0);
    assert_eq!(stage.run(&["doctor", "-q", "--url", &new, "--adopt", "--raise"]).code, 0);
    stage.run(&["-q", "run", "--url", &new, "--ttl", "3s", "new", "--", "true"]).silent(0);
    stage.run(&["-q", "run", "old", "--", "true"]).complained(69, "max_ttl=3s");
}

/// While a larger `max_ttl` is rolled out, a lease is shorter than the default. `--max-hold` had the margin of the longer one, and
/// the command ran on for nearly three seconds.
#[test]
fn the_limit_of_a_hold_is_the_same_while_a_larger_max_ttl_is_rolled_out() {
    let mut stage = Stage::on_redis_with("?max_ttl=1s");
    let larger = stage.server().url("?max_ttl=20s");
    let held = |options: &[&str]| {
        let began = Instant::now();
        let limited = ["-q", "run", "--max-hold", "1s", "job", "--", "sleep", "30"];
        let ended = stage.run(&[&limited[..2], options, &limited[2..]].concat());
        assert_eq!(ended.code, 79, "{ended:?}");
        began.elapsed()
    };
    held(&[]);
    let (before, during) = (held(&[]), held(&["--grace", "3s", "--url", &larger]));
    assert!(during < before + Duration::from_millis(1_500), "{during:?} after {before:?}");
}

/// A key without an expiry that another client has written is waited for, named without its value, and deleted only on purpose.
#[test]
fn a_foreign_key_without_an_expiry_is_said_to_have_none_and_broken_only_on_purpose() {
    let mut stage = Stage::on_redis();
    stage.server().command(&["SET", "user:1", "hunter2"]);
    let words = "a client that is not Tenure, which has no expiry: until that client deletes it, or `tenure break --foreign`";
    let waited = stage.run(&["run", "-w", "1s", "user:1", "--", "true"]);
    waited.complained(1, words);
    let shown = stage.run(&["show", "user:1"]);
    assert!(shown.out.contains(words), "{shown:?}");
    assert_eq!(stage.show("user:1")["holders"][0]["expires_in_ms"], Value::Null);
    assert_eq!(stage.server().command(&["PTTL", "user:1"]).int(), -1, "it is not given one");
    assert_eq!(stage.run(&["ls"]).out, "");
    let refused = stage.run(&["break", "user:1"]);
    refused.complained(64, "tenure break --foreign");
    assert!(!format!("{waited:?}{shown:?}{refused:?}").contains("hunter2"));
    assert_eq!(stage.server().command(&["GET", "user:1"]).text(), "hunter2");
    let broken = stage.run(&["break", "user:1", "--foreign"]);
    broken.silent(0);
    assert!(!broken.out.contains("hunter2"), "{broken:?}");
    stage.run(&["run", "-n", "user:1", "--", "true"]).silent(0);
}
