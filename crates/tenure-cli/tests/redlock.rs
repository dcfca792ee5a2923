//! What the command does on a quorum of five servers when some of them fail it, and what it says. What it does while they
//! are well stands with the other stores': `contention`, `loss`, `break`, `scripts`, `exit_codes`, `fairness`.

#![cfg(target_os = "linux")]

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use tenure_testkit::{
    patience::{eventually, slowness},
    proxy::Proxy,
    redis::{RedisServer, Reply},
};

use crate::stage::{
    PATIENCE, Process, START, Stage, assert_within,
    files::{BEAT, DEAF_BEAT, HOLD},
    quorum_url, scaled_ttl,
};

/// A node that says nothing is waited for so long at most, once for a claim and once for a release.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// What was granted by fewer than a quorum is taken back for so long, also from nodes that do not answer.
const WITHDRAWAL: Duration = Duration::from_secs(2);

/// The longest lease on nodes with a guard, and how long one waits from when it is looked at first.
const GUARDED: &str = "?max_ttl=2s";

/// The same where leases must last while nodes start again.
const LONG_GUARDED: &str = "?max_ttl=6s";

/// Alone it locks the file `inside`, writes its token and counts `f` up; beside another it says so. The lock of a killed one is free,
/// and its count whole.
const ALONE: &str = "exec 9>inside; flock -n 9 || echo $0 >>overlaps; echo $TENURE_TOKEN >>tokens; n=$(cat f); \
                     sleep 0.01; echo $((n+1)) >f.new; mv f.new f";

/// Waits until a node with a guard grants again: it counts from when somebody looks at it.
fn ready(stage: &Stage, node: &RedisServer) {
    eventually("a node has waited for what it may have forgotten", PATIENCE, || {
        let ready = node.command(&["HGET", "tenure:quorum", "ready"]);
        let Reply::Text(ready) = ready else {
            stage.run(&["ls"]);
            return None;
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        (ready.parse::<u128>().unwrap() <= now).then_some(())
    });
}

fn guarded(query: &str) -> Stage {
    let stage = Stage::on_quorum_with(query);
    stage.nodes().iter().for_each(|node| ready(&stage, node));
    stage
}

fn restart_empty(node: &RedisServer) {
    node.kill();
    node.start_again();
}

/// L2: in the order in which they were written, which is that of the grants.
fn assert_growing(tokens: &[String]) {
    let tokens: Vec<u64> = tokens.iter().map(|token| token.parse().unwrap()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// `ls` and `show` printed "free" for a lock that no process could acquire.
#[test]
fn a_quorum_that_waits_is_shown_as_one_that_grants_nothing() {
    let stage = Stage::on_quorum_with("?max_ttl=10m");
    for arguments in [&["ls"][..], &["show", "job"]] {
        let seen = stage.run(arguments);
        assert_eq!((seen.code, seen.err.lines().count()), (0, 1), "{seen:?}");
        assert!(seen.err.contains("nodes cannot serve, and a quorum needs 3: the Redis server"), "{seen:?}");
    }
    let view = stage.show("job");
    assert!((1..=600_000).contains(&view["closed"]["left_ms"].as_u64().unwrap()), "{view}");
    let grave = stage.run(&["-q", "doctor"]);
    assert_eq!((grave.code, grave.out.matches("grants no locks for another").count()), (1, 5), "{grave:?}");
}

/// L6: a hung node costs a time-out at most, a dead one nothing.
#[test]
fn one_hung_node_and_one_dead_one_cost_no_more_than_a_time_out() {
    let stage = Stage::on_quorum();
    stage.nodes()[0].stop();
    stage.nodes()[4].kill();
    let asked = Instant::now();
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
    assert_within(2 * NODE_TIMEOUT + START, asked.elapsed(), "a run with two nodes out of order");
    let (ttl, text) = scaled_ttl(Duration::from_secs(3));
    let holder = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", HOLD, "first"]);
    stage.beats("first");
    let held = Instant::now();
    eventually("five ttls have passed", 6 * ttl, || {
        stage.run(&["run", "-n", "job", "--", "touch", "stolen"]).complained(1, "held by");
        (held.elapsed() > 5 * ttl).then_some(())
    });
    stage.touch("go");
    holder.ended().silent(0);
    stage.nodes()[0].resume();
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
    assert!(!stage.path("stolen").exists());
}

/// The last node stands behind a proxy, and this is the URL of all.
fn behind_a_proxy(stage: &Stage) -> (Proxy, String) {
    let port = stage.nodes()[4].port();
    let proxy = Proxy::to(port, 1);
    let url = quorum_url(stage.nodes(), "?guard=off");
    let url = url.replace(&port.to_string(), &proxy.port().to_string());
    (proxy, url)
}

/// L6: a release is done once a quorum has answered. Whoever ended then left the lock on the nodes that had not heard of it
/// yet, and three such processes, each on another node, kept fifty others waiting for a whole ttl.
#[test]
fn a_run_that_has_ended_holds_no_node_even_if_one_is_slow() {
    let stage = Stage::on_quorum();
    let (slow, url) = behind_a_proxy(&stage);
    let is_held = || stage.nodes()[4].command(&["EXISTS", "job"]) == Reply::Int(1);
    let mut turns = 0;
    // A node that is late on a busy machine is not asked: then once more.
    eventually("the last node has granted", PATIENCE, || {
        turns += 1;
        let (beat, go) = (format!("beat{turns}"), format!("go{turns}"));
        let hold = HOLD.replace("go", &go);
        let holder = stage.start(&["--url", &url, "run", "job", "--", "sh", "-c", &hold, &beat]);
        stage.beats(&beat);
        let has_granted = is_held();
        slow.delay(Duration::from_millis(100)..=Duration::from_millis(100));
        stage.touch(&go);
        holder.ended().silent(0);
        assert!(!is_held(), "it is left at the last node");
        slow.delay(Duration::ZERO..=Duration::ZERO);
        has_granted.then_some(())
    });
}

/// L6: the same of a script's lease.
#[test]
fn an_unlock_that_has_ended_holds_no_node_even_if_one_is_slow() {
    let stage = Stage::on_quorum();
    let (slow, url) = behind_a_proxy(&stage);
    let is_held = || stage.nodes()[4].command(&["EXISTS", "job"]) == Reply::Int(1);
    // A node that is late on a busy machine is not asked: then once more.
    eventually("the last node has granted", PATIENCE, || {
        let locked = stage.run(&["lock", "--url", &url, "job", "--ttl", "10s"]);
        let lease: Value = serde_json::from_str(&locked.out).unwrap();
        let (has_granted, owner) = (is_held(), lease["owner"].as_str().unwrap());
        // A new process greets the node first, which takes some round trips, all within its time-out.
        slow.delay(Duration::from_millis(5)..=Duration::from_millis(5));
        stage.run(&["unlock", "--url", &url, "job", owner]).silent(0);
        assert!(!is_held(), "it is left at the last node");
        slow.delay(Duration::ZERO..=Duration::ZERO);
        has_granted.then_some(())
    });
}

/// L1, L2, L6: three of five are enough.
#[test]
fn two_dead_nodes_are_survived() {
    let stage = Stage::on_quorum();
    stage.run(&["run", "job", "--", "true"]).silent(0);
    stage.nodes()[1].kill();
    stage.nodes()[2].kill();
    fs::write(stage.path("f"), "0\n").unwrap();
    let command = ["run", "-w", "60s", "job", "--", "sh", "-c", ALONE];
    let processes: Vec<_> = (0..10).map(|_| stage.start(&command)).collect();
    for process in processes {
        process.ended().silent(0);
    }
    assert_eq!((stage.lines("f"), stage.lines("overlaps")), (vec!["10".to_owned()], vec![]));
    assert_growing(&stage.lines("tokens"));
}

/// Issue, point 5: without a quorum nobody is let in, and whoever waits does so for no longer than was asked.
#[test]
fn three_dead_nodes_are_too_many_and_it_says_so() {
    let stage = Stage::on_quorum();
    stage.nodes()[..3].iter().for_each(RedisServer::kill);
    let few = "3 of 5 nodes cannot serve, and a quorum needs 3: ";
    for (wait, patience) in [(&["-n"][..], Duration::ZERO), (&["-w", "1s"], Duration::from_secs(1))] {
        let asked = Instant::now();
        let ended = stage.run(&[&["run"], wait, &["job", "--", "touch", "ran"]].concat());
        ended.complained(69, few);
        assert!(asked.elapsed() >= patience, "given up after {:?}", asked.elapsed());
        assert_within(patience + WITHDRAWAL + START, asked.elapsed(), "giving up");
    }
    for verb in
        [&["show", "job"][..], &["ls"], &["break", "job"], &["lock", "job", "--ttl", "5s", "-w", "0s"]]
    {
        stage.run(verb).complained(69, few);
    }
    let waiting = stage.start(&["run", "job", "--", "echo", "in"]);
    stage.nodes()[0].start_again();
    let ended = waiting.ended();
    assert_eq!((ended.code, ended.out.trim()), (0, "in"), "{ended:?}");
    assert!(!stage.path("ran").exists());
}

/// L1, hazard 60: the nodes end the lease by their clocks, whether anybody reaches them or not.
#[test]
fn the_command_is_gone_before_a_lease_without_a_quorum_ends() {
    for (name, script) in [("meek", BEAT), ("deaf", DEAF_BEAT)] {
        let (ttl, text) = scaled_ttl(Duration::from_secs(3));
        let (stage, process) = held_by_all(Stage::on_quorum, |stage| {
            let process = stage.start(&["run", "--ttl", &text, "job", "--", "sh", "-c", script, name]);
            stage.beats(name);
            process
        });
        let end = stage.fresh_end_on_servers("job", ttl);
        stage.nodes()[0].kill();
        stage.nodes()[1].kill();
        stage.nodes()[2].stop();
        stage.dies_before(name, end);
        let ended = process.ended();
        assert_eq!(ended.code, 79, "{ended:?}");
    }
}

/// L1, L2, H3.1: two nodes may come back empty under a holder. With the third its lease has no quorum left: it is lost,
/// and the node lets nobody else in before it would have been over.
#[test]
fn a_holder_outlives_two_nodes_that_come_back_empty_and_the_third_lets_nobody_in_beside_it() {
    let alone = format!("mkdir inside || touch both; echo $TENURE_TOKEN >>tokens; {DEAF_BEAT}");
    let (stage, first) = held_by_all(
        || guarded(LONG_GUARDED),
        |stage| {
            let first = stage.start(&["run", "--ttl", "6s", "job", "--", "sh", "-c", &alone, "first"]);
            stage.beats("first");
            first
        },
    );
    // Lives for as long as the first one's command, whoever kills that.
    let second =
        "kill -0 $(cat pid.first) 2>/dev/null && touch both; echo $TENURE_TOKEN >>tokens; echo $0 >>beats";
    let next = stage
        .start_waiter("job", &["run", "-w", "60s", "--ttl", "6s", "job", "--", "sh", "-c", second, "next"]);
    for node in &stage.nodes()[..2] {
        restart_empty(node);
        ready(&stage, node);
    }
    assert_eq!(
        stage.show("job")["holders"][0]["label"]["pid"],
        first.pid(),
        "three of five still hold for it"
    );
    restart_empty(&stage.nodes()[2]);
    let lost = first.ended();
    assert_eq!(lost.code, 79, "{lost:?}");
    next.ended().silent(0);
    assert!(!stage.path("both").exists(), "two held at once");
    assert_eq!(stage.turns(), ["first", "next"]);
    assert_growing(&stage.lines("tokens"));
}

/// A quorum of which each node holds for the command that is started there. Three let it in: a claim that is on its way to one
/// of the others would be granted there after it came back empty.
fn held_by_all(quorum: impl Fn() -> Stage, start: impl Fn(&Stage) -> Process) -> (Stage, Process) {
    let is_held = |node: &RedisServer| node.command(&["EXISTS", "job"]) == Reply::Int(1);
    for _ in 0..10 {
        let stage = quorum();
        let process = start(&stage);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) * slowness() {
            if stage.nodes().iter().all(is_held) {
                return (stage, process);
            }
            thread::sleep(Duration::from_millis(5));
        }
        // A node that does not answer in time on a busy machine is not asked again. Then once more.
    }
    panic!("one node or another does not hold for it");
}

/// H3.1: without the guard there are two holders.
#[test]
fn without_the_guard_two_hold_after_three_nodes_came_back_empty() {
    let (stage, first) = held_by_all(
        || Stage::on_quorum_with("?guard=off&max_ttl=60s"),
        |stage| {
            let first = stage.start(&["run", "--ttl", "60s", "job", "--", "sh", "-c", DEAF_BEAT, "first"]);
            stage.beats("first");
            first
        },
    );
    stage.nodes()[..3].iter().for_each(restart_empty);
    let both = "kill -0 $(cat pid.first) && touch both";
    // One that does not answer in time on a busy machine grants nothing: then once more.
    let second = eventually("the second is let in", PATIENCE, || {
        let ended = stage.run(&["run", "-n", "job", "--", "sh", "-c", both]);
        (ended.code == 0).then_some(ended)
    });
    second.silent(0);
    assert!(stage.path("both").exists(), "the first one's command still ran");
    assert_eq!(first.ended().code, 79);
}

/// L1, L2, L6: many at the same time, while one node after the other forgets everything.
#[test]
fn nodes_that_come_back_empty_let_no_two_in_and_repeat_no_token() {
    let stage = guarded(LONG_GUARDED);
    fs::write(stage.path("f"), "0\n").unwrap();
    let (is_over, entered, lost) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let command = ["run", "-w", "60s", "--ttl", "6s", "counter", "--", "sh", "-c", ALONE];
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let ended = stage.run(&command);
                    // Granted by three nodes of five, of which one forgot it, a lease is lost.
                    if ended.code == 79 {
                        lost.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    // One that has to wait for long says for which node, or for whom on a slow machine.
                    let is_said = |line: &str| line.starts_with("tenure: counter: waiting");
                    assert!(ended.code == 0 && ended.err.lines().all(is_said), "{ended:?}");
                    entered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Whatever goes wrong here, the others must hear that it is over.
        let restarts = scope.spawn(|| {
            for node in &stage.nodes()[..3] {
                let before = entered.load(Ordering::Relaxed);
                restart_empty(node);
                ready(&stage, node);
                eventually("they go on meanwhile", PATIENCE, || {
                    (entered.load(Ordering::Relaxed) > before).then_some(())
                });
            }
        });
        let restarted = restarts.join();
        is_over.store(true, Ordering::Relaxed);
        restarted.unwrap();
    });
    let (entered, lost) = (entered.into_inner(), lost.into_inner());
    assert!(lost <= 3, "{lost} were lost, with three restarts");
    let counted: usize = stage.lines("f")[0].parse().unwrap();
    assert!((entered..=entered + lost).contains(&counted), "{counted}: {entered} entered, {lost} were lost");
    assert_eq!(stage.lines("overlaps"), Vec::<String>::new());
    assert_growing(&stage.lines("tokens"));
}

/// H3.5: what is refused, with the reason, in one line.
#[test]
fn what_is_no_quorum_is_refused() {
    let stage = Stage::on_quorum();
    let refused = |url: &str, code, part: &str| {
        for verb in [&["run", "job", "--", "touch", "ran"][..], &["lock", "job", "--ttl", "5s"]] {
            stage.run(&[&["--url", url], verb].concat()).complained(code, part);
        }
    };
    let nodes = stage.nodes();
    refused(&quorum_url(&nodes[..4], ""), 64, "name one fewer: that many tolerate as many failures");
    refused(&quorum_url(&nodes[..1], ""), 64, "name 3, 5 or 7 servers");
    let [a, b] = [0, 1].map(|node| nodes[node].url(""));
    refused(&format!("redlock:{a},{b},{a}"), 64, "is listed twice");
    let port = nodes[0].port();
    let twins = format!("redlock:{a},redis://localhost:{port},{b}?guard=off");
    // A node that has not said in time who it is does not vote: then the two others are a quorum.
    let found = format!("127.0.0.1:{port} and localhost:{port} are one server under two names");
    for verb in [&["run", "job", "--", "true"][..], &["lock", "twins", "--ttl", "5s", "-w", "0s"]] {
        eventually("one server under two names is refused", PATIENCE, || {
            let ended = stage.run(&[&["--url", &twins], verb].concat());
            (ended.code == 69 && ended.err.contains(&found)).then_some(())
        });
    }
    refused(&format!("redlock:{a},{b},redis-cluster://127.0.0.1:1"), 64, "cannot be a node of a quorum");
    assert!(!stage.path("ran").exists());
}

/// H3.5: a majority of three and one of five need not meet.
#[test]
fn clients_that_count_other_nodes_are_refused_and_both_are_named() {
    let stage = guarded(GUARDED);
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let refused = |url: &str, theirs: &str| {
        let ended = stage.run(&["--url", url, "run", "other", "--", "touch", "ran"]);
        ended.complained(69, "quorum=5 guard=on max_ttl=2s");
        ended.complained(69, theirs);
    };
    refused(&quorum_url(&stage.nodes()[..3], GUARDED), "quorum=3 guard=on max_ttl=2s");
    refused(&quorum_url(stage.nodes(), "?max_ttl=1s"), "quorum=5 guard=on max_ttl=1s");
    assert!(!stage.path("ran").exists());
}

/// H6.1: a quorum has no read locks and a bounded number of slots, and says so before anything is asked.
#[test]
fn a_read_lock_and_too_many_slots_are_wrong_usage() {
    let stage = Stage::on_quorum();
    stage.nodes().iter().for_each(RedisServer::kill);
    stage.run(&["run", "-s", "job", "--", "touch", "ran"]).complained(64, "redlock has no read locks");
    for slots in ["1025", "400000000"] {
        let run = ["run", "--slots", slots, "job", "--", "touch", "ran"];
        stage.run(&run).complained(64, "a semaphore on redlock has 1024 slots at most");
    }
    assert!(!stage.path("ran").exists());
}

/// L8: whoever is refused by a quorum leaves nothing where it was let in.
#[test]
fn a_refused_try_leaves_nothing_on_the_nodes_that_granted() {
    let stage = Stage::on_quorum();
    for node in &stage.nodes()[..3] {
        node.command(&["SET", "job", "theirs", "PX", "60000"]);
    }
    stage
        .run(&["run", "-n", "--ttl", "1h", "job", "--", "true"])
        .complained(1, "a client that is not Tenure");
    for node in &stage.nodes()[3..] {
        eventually("what was granted is given back", PATIENCE, || {
            (node.command(&["EXISTS", "job"]).int() == 0).then_some(())
        });
    }
}

/// What a quorum shows, and what `ls` makes of slots: each is a lock of its own.
#[test]
fn what_a_quorum_holds_is_shown_and_listed() {
    let stage = Stage::on_quorum();
    stage.run(&["lock", "a", "--ttl", "1h"]).silent(0);
    let mut slots = ["one", "two"].map(|name| {
        let process = stage.start(&["run", "--slots", "2", "gpu", "--", "sh", "-c", HOLD, name]);
        stage.beats(name);
        process
    });
    // Held by two of five only: by nobody.
    for node in &stage.nodes()[..2] {
        node.command(&["SET", "b", "theirs", "PX", "60000"]);
    }
    let list = stage.json(&["ls"]);
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "gpu#1", "gpu#2"]);
    let shown = &stage.show("a")["holders"][0];
    assert_eq!((&shown["token"], &shown["mode"]), (&list[0]["holders"][0]["token"], &"exclusive".into()));
    assert_eq!(stage.run(&["break", "gpu#1"]).out.lines().count(), 1);
    eventually("one was robbed", PATIENCE, || slots.iter_mut().any(|slot| !slot.is_running()).then_some(()));
    stage.touch("go");
    let mut codes = slots.map(|slot| slot.ended().code);
    codes.sort_unstable();
    assert_eq!(codes, [0, 79]);
}

/// A quorum that is well has nothing worse than notes; a node that is down is a problem, which is named with what to do.
#[test]
fn doctor_names_the_node_that_is_down() {
    let stage = guarded(GUARDED);
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let well = stage.run(&["doctor", "-q"]);
    well.silent(0);
    assert_eq!(well.out, "");
    stage.nodes()[3].kill();
    let found = stage.run(&["doctor", "-q"]);
    found.silent(1);
    let lines: Vec<&str> = found.out.lines().collect();
    let down = format!("problem: {} cannot be looked at: ", stage.nodes()[3].address());
    assert!(lines[0].starts_with(&down) && lines[1].starts_with("  to do: bring it back"), "{found:?}");
    assert_eq!(lines.len(), 2, "{found:?}");
    let json = stage.run(&["doctor", "-q", "--json"]);
    json.silent(1);
    assert!(json.out.starts_with(r#"[{"severity":"problem","what":"#), "{json:?}");
    stage.nodes()[..3].iter().for_each(RedisServer::kill);
    let alone = stage.run(&["doctor", "-q"]);
    assert_eq!((alone.code, alone.out.matches("cannot be looked at").count()), (1, 4), "{alone:?}");
}

/// Settings that differ are a problem, which `doctor --adopt` mends on all nodes.
#[test]
fn doctor_adopts_new_settings_on_every_node() {
    let stage = guarded(GUARDED);
    stage.run(&["run", "job", "--", "true"]).silent(0);
    let url = quorum_url(stage.nodes(), "?max_ttl=5s");
    let ours = |arguments: &[&str]| stage.run(&[&["--url", &url], arguments].concat());
    let found = ours(&["doctor", "--json"]);
    assert_eq!(found.out.matches("this URL has quorum=5 guard=on max_ttl=5s").count(), 5, "{found:?}");
    ours(&["doctor", "-q", "--adopt"]).complained(69, "doctor --adopt --raise");
    ours(&["doctor", "-q", "--adopt", "--raise"]).silent(0);
    ours(&["run", "-q", "job", "--", "true"]).mute(0);
    stage.run(&["run", "job", "--", "true"]).complained(69, "max_ttl=5s");
}

/// No secret is ever printed: of a node that refuses it, and of one whose URL is wrong.
#[test]
fn no_password_of_a_node_is_shown() {
    let stage = Stage::on_quorum();
    for node in stage.nodes() {
        node.command(&["CONFIG", "SET", "requirepass", "right-one"]);
    }
    let url = |password: &str, host: &str| {
        let node = |node: &RedisServer| format!("redis://:{password}@{host}:{}", node.port());
        let nodes: Vec<String> = stage.nodes().iter().map(node).collect();
        format!("redlock:{}?guard=off", nodes.join(","))
    };
    stage.run(&["--url", &url("right-one", "127.0.0.1"), "run", "job", "--", "true"]).silent(0);
    let wrong = url("wr0ng-secret", "127.0.0.1");
    let verbs = [
        (&["ls"][..], 69),
        (&["show", "--json", "job"], 69),
        (&["run", "-v", "job", "--", "true"], 69),
        (&["break", "job"], 69),
        (&["doctor"], 1),
        (&["doctor", "--json"], 1),
    ];
    for (verb, code) in verbs {
        let ended = stage.run(&[&["--url", &wrong], verb].concat());
        assert_eq!(ended.code, code, "{verb:?}: {ended:?}");
        let said = format!("{ended:?}");
        assert!(said.contains("refuses this user or password") && !said.contains("wr0ng-secret"), "{said}");
    }
    for url in [url("wr0ng-secret", ""), url("wr0ng,-secret", "127.0.0.1"), wrong.replace("guard=off", "x=y")]
    {
        let ended = stage.run(&["--url", &url, "run", "job", "--", "true"]);
        assert_eq!(ended.code, 64, "{ended:?}");
        assert!(!ended.err.contains("-secret"), "{ended:?}");
    }
}
