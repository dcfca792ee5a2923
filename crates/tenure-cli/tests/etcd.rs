//! What the command does when its etcd cluster fails it.

use std::time::Duration;

use tenure_testkit::{
    etcd::{EtcdCluster, EtcdServer, Recipe},
    patience::eventually,
    redis::Certificates,
};

use crate::stage::{
    PATIENCE, START, Stage, assert_within,
    files::{BEAT, DEAF_BEAT, ENTER},
    now, scaled_ttl,
};

/// By how much etcd may be late with the end of a lease.
const GRAIN: Duration = Duration::from_secs(2);

/// A holder and two that wait, on a cluster of which one member hangs and then the leader dies. L1, L7, hazard 58.
#[test]
fn a_cluster_that_loses_members_neither_loses_a_lease_nor_lets_two_in() {
    let cluster = EtcdCluster::start(3);
    let leader = cluster.leader(&[0, 1, 2]);
    let follower = (0..3).find(|&index| index != leader).unwrap();
    let stage = Stage::at(cluster.url(""));
    let (_, ttl) = scaled_ttl(Duration::from_secs(10));
    let run = |name| ["run", "--ttl", ttl.as_str(), "job", "--", "sh", "-c", name];
    let hold = "echo $0 >>beats; until [ -e go ]; do sleep 0.05; done; [ ! -e inside ]";
    let holder = stage.start(&[&run(hold)[..], &["first"]].concat());
    stage.beats("first");
    let enter = "mkdir inside && echo $0 >>beats && sleep 0.2 && rmdir inside";
    let second = stage.start_waiter("job", &[&run(enter)[..], &["second"]].concat());
    let third = stage.start_waiter("job", &[&run(enter)[..], &["third"]].concat());

    cluster.member(follower).stop();
    for _ in 0..2 {
        renewed(&stage);
    }
    cluster.member(follower).resume();
    renewed(&stage);
    cluster.member(leader).kill();
    // The new leader begins the lease anew, and then it is renewed there: more than a ttl is over by the last of these.
    for _ in 0..5 {
        renewed(&stage);
    }
    assert_eq!(stage.lines("beats"), ["first"], "somebody came in beside the holder");
    stage.touch("go");
    holder.ended().silent(0);
    second.ended().silent(0);
    third.ended().silent(0);
    assert_eq!(stage.lines("beats"), ["first", "second", "third"]);
}

/// L6: a holder that is killed bars the lock for its ttl, and for as long as etcd is late.
#[test]
fn after_a_killed_holder_the_next_one_enters_when_its_lease_is_over() {
    let server = EtcdServer::start();
    let stage = Stage::at(server.url(""));
    let (ttl, text) = scaled_ttl(Duration::from_secs(2));
    let mut holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", BEAT, "first"]);
    stage.beats("first");
    let waiter =
        stage.start_waiter("job", &["run", "--ttl", &text, "job", "--", "sh", "-c", ENTER, "second"]);
    holder.kill();
    let killed = now();
    waiter.ended().silent(0);
    let took = stage.entered("second").saturating_sub(killed);
    println!("the next one entered {took:?} after the holder was killed");
    assert_within(ttl + GRAIN + START, took, "entering after a crash");
}

/// L1, hazard 60: a hung server ends leases by its clock all the same, and the command is gone before.
#[test]
fn the_command_is_gone_before_the_lease_of_a_hung_server_ends() {
    for (name, script) in [("meek", BEAT), ("deaf", DEAF_BEAT)] {
        let server = EtcdServer::start();
        let stage = Stage::at(server.url(""));
        let (ttl, text) = scaled_ttl(Duration::from_secs(4));
        let process = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", script, name]);
        stage.beats(name);
        let end = stopped_when_renewed(&stage, &server, ttl) + ttl;
        stage.dies_before(name, end);
        println!("{name} died {:?} before the lease ended", end.saturating_sub(now()));
        server.resume();
        let ended = process.ended();
        assert_eq!(ended.code, 79, "{ended:?}");
    }
}

/// Stops the server soon after it has renewed the only lease, and says when it carried out the last renewal at the latest.
fn stopped_when_renewed(stage: &Stage, server: &EtcdServer, ttl: Duration) -> Duration {
    // The sooner it is stopped, the more does the lease's end say.
    eventually("the server is stopped soon after a renewal", PATIENCE, || {
        let before = renewed(stage);
        if now() - before > ttl / 5 {
            return None;
        }
        server.stop();
        Some(now())
    })
}

/// Waits until the only lease was renewed, and says when at the earliest: before that it had less time left.
fn renewed(stage: &Stage) -> Duration {
    let mut last = None;
    eventually("a lease is renewed", PATIENCE, || {
        let asked = now();
        let shown = stage.run(&["show", "--json", "job"]);
        // A cluster that elects may say nothing.
        let view: serde_json::Value = serde_json::from_str(&shown.out).ok()?;
        let left = view["holders"][0]["expires_in_ms"].as_u64()?;
        let (before, had) = last.replace((asked, left))?;
        (left > had).then_some(before)
    })
}

/// L4, L5: a lease that somebody ended is lost: the command is stopped, and the code says so.
#[test]
fn a_command_whose_lock_is_broken_is_stopped() {
    let server = EtcdServer::start();
    let stage = Stage::at(server.url(""));
    let process = stage.start(&["run", "--ttl", "60s", "job", "--", "sh", "-c", BEAT, "robbed"]);
    stage.beats("robbed");
    stage.run(&["break", "job"]);
    assert_eq!(process.ended().code, 79);
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// A server that is not there, a login that is wrong, a file that is missing: said, without a secret.
#[test]
fn bad_input_is_named_and_no_secret_is_shown() {
    let certificates = Certificates::new();
    let server = Recipe::new().login("right-one").start();
    let secured = Recipe::new().tls(&certificates).start();
    let gone = EtcdServer::start();
    gone.kill();
    let stage = Stage::at(gone.url(""));
    stage.run(&["run", "-n", "job", "--", "true"]).complained(69, "cannot reach");
    let wrong = Certificates::new();
    let cases = [
        // A busy member hashes a password slowly, on purpose.
        (
            format!("etcd://root:wr0ng-secret@{}?connect_timeout=10s", server.address()),
            69,
            "refuses this user or password",
        ),
        (format!("etcd://{}", server.address()), 69, "requires a user"),
        (secured.url(&format!("?ca={}", wrong.ca_file().display())), 69, "is not trusted"),
        (secured.url("?ca=/no/such/file"), 69, "cannot read"),
        (format!("etcd://root:wr0ng-secret@{}?nope=1", server.address()), 64, "does not know parameter 1"),
        (format!("etcd://root:wr0ng-secret@{}/path", server.address()), 64, "?prefix="),
    ];
    for (url, code, words) in cases {
        for (verb, rest) in [("ls", &[][..]), ("show", &["job"]), ("run", &["-v", "-n", "job", "--", "true"])]
        {
            let ended = stage.run(&[&[verb, "--url", &url], rest].concat());
            assert_eq!(ended.code, code, "{verb} {url}: {ended:?}");
            assert!(ended.err.contains(words), "{verb} {url}: {ended:?}");
            assert!(!format!("{ended:?}").contains("wr0ng-secret"), "{ended:?}");
        }
    }
}
