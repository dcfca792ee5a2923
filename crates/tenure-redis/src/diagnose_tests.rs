//! What is found, on texts of servers that a test cannot start; `tests/diagnose.rs` has the rest.

use super::{server::ServerClock, *};
use crate::guard::Predecessor;

fn terms(mode: GuardMode, seconds: u64) -> Terms {
    Terms { mode, max_ttl: Duration::from_secs(seconds), db: 0, quorum: None }
}

/// A server with this `INFO`, guarded and with a backlog that is kept long enough.
fn server(info: &str) -> NodeReport {
    NodeReport::of(info, terms(GuardMode::On, 30))
}

/// Severity and text of its findings.
fn judge(info: &str) -> Vec<(Severity, String)> {
    judged(&server(info))
}

fn judged(server: &NodeReport) -> Vec<(Severity, String)> {
    let wrong = server.keeps_no_locks();
    let found = if wrong.is_empty() { server.weaknesses() } else { wrong };
    let found = found.into_iter().filter(|it| !it.what.contains("cannot be read"));
    found.map(|it| (it.severity, format!("{} / {}", it.what, it.remedy))).collect()
}

fn with(mut server: NodeReport, name: &str, value: &str) -> NodeReport {
    server.fields.insert(name.to_owned(), value.to_owned());
    server
}

/// The only finding, with this text.
#[track_caller]
fn has(found: &[(Severity, String)], severity: Severity, text: &str) {
    let [(is, what)] = found else { panic!("{found:#?}") };
    assert!(*is == severity && what.contains(text), "{found:#?}");
}

#[test]
fn a_finding_of_several_servers_of_a_cluster_is_said_once() {
    let nodes = [1, 2, 3].map(|port| LockNode::At("h".into(), port));
    let say = |what: &str| finding(Note, what, "do");
    let found = vec![(&nodes[0], say("a")), (&nodes[1], say("b")), (&nodes[2], say("a"))];
    let said: Vec<String> = merged(found).into_iter().map(|finding| finding.what).collect();
    assert_eq!(said, ["h:1, h:3: a", "h:2: b"]);
    assert_eq!(merged(vec![(&LockNode::Here, say("a"))]), [say("a")]);
}

#[test]
fn foreign_text_can_neither_paint_the_terminal_nor_run_in_a_shell() {
    let found = finding(Note, "a\x1b[31m\n", "pass\u{202e}word");
    assert_eq!((found.what.as_str(), found.remedy.as_str()), ("a?[31m?", "pass?word"));
    assert_eq!(word("orders/42", "NAME"), "orders/42");
    for wild in ["", "-rf", "a b", "$(reboot)", "a;b", "a'b", "é", "{a,b}"] {
        assert_eq!(word(wild, "NAME"), "NAME", "{wild}");
    }
}

#[test]
fn three_examples_are_shown() {
    let mut examples = Examples::default();
    examples.add("a".into());
    assert_eq!(examples.text(), "1 (a)");
    for more in ["b", "c", "d"] {
        examples.add(more.into());
    }
    assert_eq!(examples.text(), "4 (a, b, c, …)");
}

/// One line of rights, in two places.
#[test]
fn the_readme_gives_the_rights_that_doctor_gives() {
    let readme = include_str!("../README.md");
    for rights in [RIGHTS, RIGHTS_IN_A_CLUSTER] {
        let is_there = readme.contains(&format!(" {rights}\n")) || readme.contains(&format!("`{rights}`"));
        assert!(is_there, "{rights}");
    }
}

#[test]
fn a_server_of_which_nothing_is_known_is_not_judged() {
    assert_eq!(judge(""), []);
}

#[test]
fn old_versions_lack_something() {
    for (version, severity) in [("4.0.14", Problem), ("5.0.3", Warning), ("6.2.1", Note)] {
        has(&judge(&format!("redis_version:{version}\r\n")), severity, version);
    }
    for version in ["7.0.15", "8.2.0", "255.255.255", "what?"] {
        assert_eq!(judge(&format!("redis_version:{version}\r\n")), [], "{version}");
    }
}

#[test]
fn servers_that_keep_no_locks_are_named() {
    let replica = "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:7000\r\n";
    has(&judge(replica), Problem, "replica of 10.0.0.1:7000");
    has(&judge("redis_mode:sentinel\r\n"), Problem, "redis-sentinel://");
    has(&judge("role:master\r\ncluster_enabled:1\r\n"), Problem, "redis-cluster://");
    let mut node = NodeReport::of("role:master\r\ncluster_enabled:1\r\n", terms(GuardMode::Off, 30));
    node.is_node = true;
    assert_eq!(judged(&node), []);
    assert_eq!(judge("role:master\r\ncluster_enabled:0\r\n"), []);
}

/// A6: half of max_ttl is the end of the promise; one second is worth a word. The way of the question is no
/// skew.
#[test]
fn clocks_are_judged_by_what_the_way_does_not_explain() {
    let judge_in = |mode, theirs_ms: u64, way_ms: u64, max_ttl: u64| {
        let ms = Duration::from_millis;
        let clock = ServerClock::compare(ms(theirs_ms), ms(100_000), ms(way_ms));
        judged(&NodeReport { clock, ..NodeReport::of("", terms(mode, max_ttl)) })
    };
    let judge = |theirs_ms, way_ms, max_ttl| judge_in(GuardMode::On, theirs_ms, way_ms, max_ttl);
    assert_eq!(judge(100_999, 0, 30), []);
    assert_eq!(judge(103_000, 2_000, 30), []);
    assert_eq!(judge(99_001, 0, 30), []);
    has(&judge(103_500, 500, 30), Warning, "3s ahead of");
    has(&judge(84_000, 0, 30), Problem, "16s behind");
    has(&judge(100_600, 0, 1), Problem, "clocks differ by less than 500ms");
    assert_eq!(judge_in(GuardMode::Off, 100_600, 0, 1), []);
    has(&judge_in(GuardMode::Off, 200_000, 0, 1), Warning, "ahead of ours; tokens may fall back");
}

#[test]
fn a_backlog_that_is_forgotten_too_early_is_a_warning_and_an_unknown_one_a_note() {
    let judge = |ttl: &str, terms| judged(&with(NodeReport::of("", terms), "repl-backlog-ttl", ttl));
    let on = |seconds| terms(GuardMode::On, seconds);
    assert_eq!(judge("3600", on(30)), []);
    assert_eq!(judge("0", on(30)), []);
    assert_eq!(judge("32", on(30)), []);
    has(&judge("31", on(30)), Warning, "repl-backlog-ttl is 31s, less than 32s");
    has(&judge("31", on(30)), Warning, "every restart costs 40s");
    assert_eq!(judge("1", terms(GuardMode::Off, 86_400)), []);
    let server = NodeReport { refusal: Some("NOPERM".into()), user: Some("app".into()), ..server("") };
    let found = &server.weaknesses()[0];
    assert!(
        found.severity == Note && found.what.contains("waits as a promoted one does, for 40s"),
        "{found:?}"
    );
    assert!(
        found.what.contains("NOPERM") && found.remedy.contains("ACL SETUSER app '+config|get'"),
        "{found:?}"
    );
}

#[test]
fn eviction_is_a_problem_only_where_it_can_happen() {
    let judge =
        |policy: &str, most: u64| judge(&format!("maxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n"));
    assert_eq!(judge("noeviction", 1 << 30), []);
    has(&judge("volatile-ttl", 1 << 30), Problem, "volatile-ttl and maxmemory is 1024 MiB");
    has(&judge("allkeys-lru", 0), Note, "nothing is evicted");
}

#[test]
fn memory_is_nearly_full_above_90_percent() {
    let judge = |used: u64, most: u64| judge(&format!("used_memory:{used}\r\nmaxmemory:{most}\r\n"));
    assert_eq!(judge(900, 1000), []);
    assert_eq!(judge(900, 0), []);
    has(&judge(910 << 20, 1000 << 20), Warning, "91 % (910 MiB of 1000 MiB)");
}

#[test]
fn locks_that_a_restart_forgets_are_noted() {
    let judge_as = |mode, aof: &str, save: &str, fsync: &str| {
        let server = NodeReport::of(&format!("aof_enabled:{aof}\r\n"), terms(mode, 30));
        judged(&with(with(server, "save", save), "appendfsync", fsync))
    };
    let judge = |aof, save, fsync| judge_as(GuardMode::On, aof, save, fsync);
    assert_eq!(judge("1", "", "always"), []);
    has(&judge("1", "", "everysec"), Note, "appendfsync everysec");
    has(&judge("0", "", "always"), Note, "nothing is saved: a restart forgets all locks; that is safe");
    has(&judge("0", "", "always"), Note, "grants nothing for 30s");
    has(&judge("0", "3600 1", "everysec"), Note, "only snapshots");
    let unguarded = judge_as(GuardMode::Off, "0", "", "always");
    has(&unguarded, Note, "two clients may hold");
}

#[test]
fn a_failed_save_is_a_warning_where_saving_is_wanted() {
    let judge =
        |info: &str, save: &str| judged(&with(with(server(info), "save", save), "appendfsync", "always"));
    has(&judge("rdb_last_bgsave_status:err\r\n", "3600 1"), Warning, "last snapshot failed");
    assert_eq!(judge("rdb_last_bgsave_status:err\r\n", ""), []);
    assert_eq!(judge("aof_last_write_status:err\r\n", ""), []);
    let log = "aof_enabled:1\r\naof_last_write_status:err\r\nrdb_last_bgsave_status:ok\r\n";
    has(&judge(log, ""), Warning, "append-only file failed");
}

#[test]
fn a_replica_that_is_behind_is_a_warning() {
    let judge = |line: &str| {
        let info = format!(
            "connected_slaves:1\r\nslave0:{line}\r\nmaster_repl_offset:2000000\r\nmin_slaves_good_slaves:1\r\n"
        );
        let found = judge(&info).into_iter().filter(|(_, what)| !what.contains("asynchronous"));
        found.collect::<Vec<_>>()
    };
    assert_eq!(judge("ip=10.0.0.2,port=1,state=online,offset=1999999,lag=3"), []);
    let slow = judge("ip=10.0.0.2,port=1,state=online,offset=2000000,lag=4");
    has(&slow, Warning, "1 replica is behind (10.0.0.2:1: state online, 0 bytes behind, silent for 4 s)");
    has(&judge("ip=h,port=1,state=online,offset=1,lag=0"), Warning, "1953 KiB behind");
    has(&judge("ip=h,port=1,state=wait_bgsave,offset=0,lag=0"), Warning, "state wait_bgsave");
}

#[test]
fn a_mismatch_says_what_to_put_into_the_url() {
    let remedy = |theirs, ours| mismatch(theirs, ours).remedy;
    let same = "put ?guard=on&max_ttl=1m30s into this URL";
    assert!(remedy("guard=on max_ttl=1m 30s", "guard=off").starts_with(same));
    assert!(remedy("guard=off", "guard=on max_ttl=30s").contains("?guard=off "));
    assert!(remedy("quorum=5 guard=on max_ttl=1m 30s", "quorum=5 guard=off").starts_with(same));
    assert!(remedy("quorum=5 guard=off", "quorum=3 guard=off").starts_with("name the same nodes everywhere"));
    let found = mismatch("guard=on;rm -rf /\x1b", "guard=off");
    assert!(!found.remedy.contains("rm") && !found.what.contains('\x1b'), "{found:?}");
}

#[test]
fn a_counter_may_be_ahead_by_the_wait_that_it_was_floored_with() {
    let seconds = Duration::from_secs;
    let facts = ServerFacts {
        run_id: "r".into(),
        replid: "h".into(),
        is_master: true,
        is_promoted: false,
        up: seconds(9),
        is_lossy: false,
        backlog_ttl: None,
        acked: None,
        predecessor: Predecessor::Unknown,
        moved: None,
        served: None,
        longest: None,
        now: seconds(1000),
    };
    let record = |is_open| ServerRecord {
        run_id: "r".into(),
        replid: "h".into(),
        ready: seconds(1030),
        wait: seconds(30),
        renews: seconds(0),
        settings: "".into(),
        next: None,
        acked: None,
        is_open,
    };
    let judge = |counter, is_open, decision: &Decision| {
        set_back(seconds(counter), &facts, Some(&record(is_open)), decision).map(|found| found.what)
    };
    assert_eq!(judge(1001, true, &Decision::Open), None);
    assert!(judge(1010, true, &Decision::Open).unwrap().contains("10s behind"));
    let wait = Decision::Wait { why: Why::Waiting, wait: seconds(30) };
    assert_eq!(judge(1030, false, &wait), None);
    assert!(judge(4600, false, &wait).unwrap().contains("59m 28s behind"));
    let refused = Decision::Refuse(ClientRefusal::NotMaster);
    assert_eq!(judge(1031, false, &refused), None);
}

/// Hazard 38.
#[test]
fn what_we_would_have_put_there_is_ours() {
    let ours = [
        ("tenure:one", "string"),
        ("tenure:quorum", "hash"),
        ("tenure:{a}:queue:a", "zset"),
        ("tenure:{a}:places:a", "zset"),
        ("tenure:{a}:shared:x{a}", "zset"),
        ("tenure:{a}:who:a", "hash"),
        ("tenure:{a:b}:fence:a:b", "string"),
        ("tenure:anything", "none"),
    ];
    for (key, kind) in ours {
        assert!(is_ours(key.as_bytes(), kind), "{key}");
    }
    let foreign = [
        ("tenure:x", "string"),
        ("tenure:{a}:queue:a", "string"),
        ("tenure:{a}:who:a", "zset"),
        ("tenure:{a}:fence:a", "list"),
        ("tenure:{a}:other:a", "zset"),
        ("tenure:{a}:queue:", "zset"),
        ("tenure:{a:queue:a", "zset"),
    ];
    for (key, kind) in foreign {
        assert!(!is_ours(key.as_bytes(), kind), "{key}");
    }
    assert!(!is_ours(b"tenure:\xff", "string"));
}
