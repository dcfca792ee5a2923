//! What the command does when its ZooKeeper ensemble fails it, and what it says to bad input.

use std::time::{Duration, Instant};

#[cfg(feature = "zookeeper-tls")]
use tenure_testkit::redis::Certificates;
use tenure_testkit::{
    patience::{eventually, slowness},
    zookeeper::{Ensemble, TICK, ZooKeeperServer},
};

use crate::stage::{
    PATIENCE, START, Stage, assert_within,
    files::{BEAT, DEAF_BEAT},
    now, scaled_ttl,
};

/// By how much a session may outlive the ttl: what the backend promises.
const GRAIN: Duration = TICK.saturating_mul(3);

/// Says when it was let in.
const ENTERED: &str = "date +%s%N >entered.$0";

/// Is alone inside for a moment, or says that it was not.
const TURN: &str =
    "mkdir inside || echo $0 >>together; echo $TENURE_TOKEN >>tokens; sleep 0.05; rmdir inside";

/// Takes turns until told to stop.
const TURNS: &str = "until [ -e stop ]; do \"$TENURE\" run --ttl \"$TTL\" job -- sh -c \"$TURN\" $0 || echo $? >>failed; done";

/// L1, L2: a member hangs, then the leader is killed, while many take turns. Every turn is alone, with a larger token.
#[test]
fn an_ensemble_that_loses_a_member_and_its_leader_lets_in_one_at_a_time() {
    let ensemble = Ensemble::start(5);
    let stage = Stage::at(ensemble.url(""));
    let (_, ttl) = scaled_ttl(Duration::from_secs(5));
    let players: Vec<_> = (0..4)
        .map(|n| {
            let mut shell = stage.program("sh");
            shell.args(["-c", TURNS, &format!("p{n}")]);
            shell.env("TENURE", env!("CARGO_BIN_EXE_tenure")).env("TTL", &ttl).env("TURN", TURN);
            stage.start_command(shell)
        })
        .collect();
    let goes_on = |more: usize| stage.has_lines("tokens", stage.lines("tokens").len() + more);
    goes_on(8);
    let follower = ensemble.followers()[0];
    ensemble.member(follower).stop();
    goes_on(8);
    ensemble.member(ensemble.leader()).kill();
    goes_on(8);
    ensemble.member(follower).resume();
    stage.touch("stop");
    for player in players {
        let ended = player.ended();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    assert_eq!(stage.lines("together"), [""; 0], "two were inside at once");
    let tokens: Vec<u64> = stage.lines("tokens").iter().map(|token| token.parse().unwrap()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// L1: whoever holds through an election goes on, and whoever waits goes on waiting.
#[test]
fn a_holder_lives_through_an_election() {
    let ensemble = Ensemble::start(3);
    let stage = Stage::at(ensemble.url(""));
    // Longer than any election on a busy machine; nothing here waits for its end.
    let ttl = "30s";
    let script = "echo $0 >>beats; until [ -e go ]; do sleep 0.05; done";
    let holder = stage.start(&["run", "--ttl", ttl, "job", "--", "sh", "-c", script, "holder"]);
    stage.beats("holder");
    let waiter =
        stage.start_waiter("job", &["run", "--ttl", ttl, "job", "--", "sh", "-c", ENTERED, "waiter"]);
    let leader = ensemble.leader();
    ensemble.member(leader).kill();
    ensemble.leader();
    ensemble.member(leader).start_again();
    assert_eq!(stage.show("job")["holders"].as_array().unwrap().len(), 1);
    stage.touch("go");
    let released = now();
    holder.ended().silent(0);
    waiter.ended().silent(0);
    assert!(stage.entered("waiter") >= released, "it came in beside the holder");
}

/// L1, hazard 58: the command is gone before a hung server's session can end.
#[test]
fn the_command_is_gone_before_the_lease_of_a_hung_server_ends() {
    for (name, script) in [("meek", BEAT), ("deaf", DEAF_BEAT)] {
        let server = ZooKeeperServer::start();
        let stage = Stage::at(server.url(""));
        let (ttl, text) = scaled_ttl(Duration::from_secs(3));
        let process = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", script, name]);
        stage.beats(name);
        server.stop();
        // The last renewal was sent before that.
        let end = now() + ttl;
        stage.dies_before(name, end);
        server.resume();
        let ended = process.ended();
        assert_eq!(ended.code, 79, "{ended:?}");
    }
}

/// L6: a killed holder bars the lock for its ttl, and what the ticks of its session add.
#[test]
fn a_killed_holder_is_followed_when_its_session_ends() {
    let server = ZooKeeperServer::start();
    let stage = Stage::at(server.url(""));
    let (ttl, text) = scaled_ttl(Duration::from_secs(2));
    let mut holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", BEAT, "holder"]);
    stage.beats("holder");
    let waiter =
        stage.start_waiter("job", &["run", "--ttl", &text, "job", "--", "sh", "-c", ENTERED, "waiter"]);
    holder.kill();
    let killed = now();
    waiter.ended().silent(0);
    let took = stage.entered("waiter").saturating_sub(killed);
    println!("after kill -9 with a ttl of {ttl:?}: {took:?}");
    assert!(took <= ttl + GRAIN + Duration::from_secs(1) * slowness(), "{took:?}");
    assert!(took >= ttl / 2, "the command of a killed holder needs time to end: {took:?}");
}

/// A store that is not there is said to be not there: at once with `-n`, and waited for otherwise.
#[test]
fn a_server_that_is_down_is_waited_for() {
    let server = ZooKeeperServer::start();
    let stage = Stage::at(server.url(""));
    server.kill();
    let asked = Instant::now();
    stage.run(&["run", "-n", "job", "--", "true"]).complained(69, "no ZooKeeper server can be reached");
    assert_within(Duration::from_secs(1) + START, asked.elapsed(), "a refusal of -n");
    let waiting = stage.start(&["run", "job", "--", "echo", "in"]);
    server.start_again();
    let ended = waiting.ended();
    assert_eq!((ended.code, ended.out.trim()), (0, "in"), "{ended:?}");
}

#[test]
fn bad_input_is_named_and_touches_nothing() {
    let server = ZooKeeperServer::with("maxSessionTimeout=5000");
    let stage = Stage::at(server.url(""));
    stage.run(&["run", "--ttl", "1m", "job", "--", "true"]).complained(69, "maxSessionTimeout");
    for (query, part) in
        [("layout=x", "layout="), ("nope=1", "does not know parameter 2"), ("tick=x", "tick= is no")]
    {
        let url = server.url(query);
        stage.run(&["ls", "--url", &url]).complained(64, part);
    }
    assert!(stage.json(&["ls"]).to_string().contains("[]"), "nothing was left");
}

/// No secret is ever printed.
#[test]
fn a_wrong_password_is_refused_and_not_shown() {
    let server = ZooKeeperServer::start();
    let stage = Stage::new();
    let url = |password: &str| format!("zookeeper://app:{password}@{}/closed?tick=500ms", server.address());
    stage.run(&["run", "--url", &url("right-one"), "job", "--", "true"]).silent(0);
    for (verb, rest) in [("ls", &[][..]), ("show", &["job"]), ("run", &["-v", "job", "--", "true"])] {
        let wrong = url("wr0ng-secret");
        let ended = stage.run(&[&[verb, "--url", &wrong], rest].concat());
        assert_eq!(ended.code, 69, "{verb:?}: {ended:?}");
        assert!(ended.err.contains("lacks a permission"), "{ended:?}");
        assert!(!format!("{ended:?}").contains("wr0ng-secret"), "{ended:?}");
    }
}

/// A certificate that is missing is named in one line, and with it the command runs.
#[cfg(feature = "zookeeper-tls")]
#[test]
fn over_tls_the_command_runs_with_the_right_certificate() {
    let certificates = Certificates::new();
    let server = ZooKeeperServer::tls(&certificates);
    let (cert, key) = certificates.client();
    let with = server.tls_url("127.0.0.1", &format!("&cert={}&key={}", cert.display(), key.display()));
    let stage = Stage::at(with);
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let without = server.tls_url("127.0.0.1", "");
    stage.run(&["run", "--url", &without, "job", "--", "true"]).complained(69, "wants a client certificate");
    let plain = format!("zookeeper://h?ca={}", certificates.ca_file().display());
    stage.run(&["ls", "--url", &plain]).complained(64, "ca= is for zookeepers://");
}

/// `break` reaches a holder on another connection.
#[test]
fn a_robbed_command_is_stopped_soon() {
    let server = ZooKeeperServer::start();
    let stage = Stage::at(server.url(""));
    let robbed =
        stage.start(&["run", "--ttl", "30s", "--grace", "1s", "job", "--", "sh", "-c", BEAT, "robbed"]);
    stage.beats("robbed");
    eventually("it is seen", PATIENCE, || {
        (stage.show("job")["holders"].as_array().unwrap().len() == 1).then_some(())
    });
    let broken = Instant::now();
    assert_eq!(stage.run(&["break", "job"]).code, 0);
    stage.dies("pid.robbed");
    assert_within(Duration::from_secs(2), broken.elapsed(), "the end of the robbed");
    assert_eq!(robbed.ended().code, 79);
}
