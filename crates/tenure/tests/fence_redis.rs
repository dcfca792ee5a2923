//! A fenced key on a real Redis.

use tenure::{
    FencingToken,
    fence::{Pass, redis},
};
use tenure_testkit::redis::{Cluster, Raw, RedisServer, Reply};

const fn alone(token: u64) -> Pass {
    Pass::exclusive(FencingToken::new(token))
}

const fn together(token: u64) -> Pass {
    Pass::shared(FencingToken::new(token))
}

/// Shows a pass to a key, with a write or without.
fn show(raw: &mut Raw, key: &str, pass: Pass, write: &[&str]) -> Reply {
    let [token, rule] = redis::arguments(pass);
    let mark = redis::mark_key(key).unwrap();
    raw.command(&[&["EVAL", redis::SCRIPT, "2", key, &mark, &token, &rule][..], write].concat())
}

/// What the script says of a pass that is let in, or is refused.
fn answer(is_let_in: bool, mark: u64) -> Vec<Reply> {
    vec![Reply::Int(is_let_in.into()), Reply::Text(mark.to_string())]
}

fn ok() -> Reply {
    Reply::Text("OK".into())
}

/// L3, hazard 50.
#[test]
fn a_former_holder_is_refused_and_changes_nothing() {
    let server = RedisServer::start();
    let mut raw = server.raw();
    let mut write = |pass, text| show(&mut raw, "report", pass, &["SET", text]).list();
    assert_eq!(write(together(5), "of a permit"), [answer(true, 0), vec![ok()]].concat());
    assert_eq!(write(together(4), "of another"), [answer(true, 0), vec![ok()]].concat());
    assert_eq!(write(alone(7), "first"), [answer(true, 7), vec![ok()]].concat());
    assert_eq!(write(alone(8), "second"), [answer(true, 8), vec![ok()]].concat());
    for late in [alone(7), together(7)] {
        assert_eq!(write(late, "late"), answer(false, 8));
    }
    assert_eq!(write(alone(8), "third"), [answer(true, 8), vec![ok()]].concat());
    assert_eq!(server.command(&["GET", "report"]).text(), "third");
    assert_eq!(server.command(&["GET", "{report}:mark"]).text(), "8");
    assert_eq!(server.command(&["TTL", "{report}:mark"]).int(), -1);
}

/// Hazard 51: the mark rises before the first read.
#[test]
fn a_touch_raises_the_mark_and_writes_nothing() {
    let server = RedisServer::start();
    let mut raw = server.raw();
    assert_eq!(show(&mut raw, "report", alone(8), &[]).list(), answer(true, 8));
    assert_eq!(show(&mut raw, "report", together(9), &[]).list(), answer(true, 8));
    assert_eq!(show(&mut raw, "report", alone(7), &["SET", "late"]).list(), answer(false, 8));
    assert_eq!(server.command(&["EXISTS", "report"]).int(), 0);
}

/// L3: the script is the rule, also where a token is larger than what Lua's numbers can tell apart, as a zxid can be.
#[test]
fn tokens_are_compared_exactly_whatever_their_size() {
    let server = RedisServer::start();
    let mut raw = server.raw();
    let big = 1_u64 << 53;
    let naive = "return tonumber(ARGV[1]) >= tonumber(ARGV[2]) and 1 or 0";
    let as_numbers = raw.command(&["EVAL", naive, "0", &big.to_string(), &(big + 1).to_string()]);
    assert_eq!(as_numbers.int(), 1, "a smaller token would be let in");

    let tokens =
        [0, 1, 9, 10, 11, 99, 100, big - 1, big, big + 1, 5 << 32, (5 << 32) + 1, u64::MAX - 1, u64::MAX];
    for mark in tokens {
        for shown in tokens {
            for pass in [alone(shown), together(shown)] {
                raw.command(&["SET", "{k}:mark", &mark.to_string()]);
                let expected = match pass.judge(mark) {
                    Ok(next) => answer(true, next),
                    Err(refused) => answer(false, refused.mark),
                };
                assert_eq!(show(&mut raw, "k", pass, &[]).list(), expected, "{pass:?} at {mark}");
                let kept = if pass.raises() { mark.max(shown) } else { mark };
                assert_eq!(raw.command(&["GET", "{k}:mark"]).text(), kept.to_string());
            }
        }
    }
}

#[test]
fn any_command_on_the_key_can_be_the_write() {
    let server = RedisServer::start();
    let mut raw = server.raw();
    let answered = |reply: Reply| reply.list().last().cloned();
    assert_eq!(answered(show(&mut raw, "h", alone(7), &["HSET", "a", "1", "b", "2"])), Some(Reply::Int(2)));
    assert_eq!(answered(show(&mut raw, "h", alone(7), &["HINCRBY", "a", "41"])), Some(Reply::Int(42)));
    assert_eq!(answered(show(&mut raw, "h", alone(7), &["DEL"])), Some(Reply::Int(1)));
    assert_eq!(server.command(&["GET", "{h}:mark"]).text(), "7", "the mark outlives the key");
}

/// L3: a write that the server refuses leaves a raised mark and the old value; the other way round would let in a former
/// holder.
#[test]
fn a_write_that_fails_leaves_the_old_value_under_a_raised_mark() {
    let server = RedisServer::start();
    let mut raw = server.raw();
    raw.command(&["RPUSH", "list", "old"]);
    let reply = show(&mut raw, "list", alone(7), &["INCR"]);
    let error = reply.error().unwrap_or_default();
    assert!(error.contains("WRONGTYPE") && error.starts_with("FENCE the key was not written"), "{reply:?}");
    assert_eq!(server.command(&["GET", "{list}:mark"]).text(), "7");
    assert_eq!(show(&mut raw, "list", alone(6), &["DEL"]).list(), answer(false, 7));
    assert_eq!(server.command(&["LRANGE", "list", "0", "-1"]).texts(), ["old"]);
}

#[test]
fn what_is_no_token_and_what_is_no_mark_is_an_error_and_writes_nothing() {
    let server = RedisServer::start();
    let mut raw = server.raw();
    let mut eval = |token: &str, rule: &str| {
        raw.command(&["EVAL", redis::SCRIPT, "2", "k", "{k}:mark", token, rule, "SET", "new"])
    };
    for (token, rule) in
        [("", "x"), ("-1", "x"), ("1.5", "x"), ("1e3", "x"), ("007", "x"), ("7 ", "x"), ("7", ""), ("7", "y")]
    {
        let reply = eval(token, rule);
        assert!(reply.error().is_some_and(|e| e.contains("the pass is")), "{token} {rule}: {reply:?}");
    }
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    for garbage in ["", "eight", "-1", "08", "8\n"] {
        server.command(&["SET", "{k}:mark", garbage]);
        let reply = eval("9", "x");
        assert!(
            reply.error().is_some_and(|e| e.contains("the mark is not a number")),
            "{garbage}: {reply:?}"
        );
        assert_eq!(server.command(&["GET", "{k}:mark"]).text(), garbage);
    }
    assert_eq!(server.command(&["EXISTS", "k"]).int(), 0);
}

/// L3: under a mark of another type the script stopped with the server's own error, which does not say what is wrong where, nor
/// that nothing was written.
#[test]
fn a_mark_of_another_type_is_a_clear_error_and_nothing_is_changed() {
    let server = RedisServer::start();
    let mut raw = server.raw();
    raw.command(&["SET", "k", "old"]);
    for make in
        [["RPUSH", "{k}:mark", "7", ""], ["HSET", "{k}:mark", "7", "7"], ["ZADD", "{k}:mark", "7", "7"]]
    {
        let words: Vec<&str> = make.into_iter().filter(|word| !word.is_empty()).collect();
        raw.command(&words);
        let before = raw.command(&["DUMP", "{k}:mark"]);
        for pass in [alone(9), together(9)] {
            for write in [&["SET", "new"][..], &["DEL"], &[]] {
                let reply = show(&mut raw, "k", pass, write);
                assert!(reply.error().is_some_and(|e| e.contains("the mark is not a number")), "{reply:?}");
            }
        }
        assert_eq!(raw.command(&["DUMP", "{k}:mark"]), before);
        assert_eq!(raw.command(&["GET", "k"]).text(), "old");
        raw.command(&["DEL", "{k}:mark"]);
    }
}

/// The two keys of the script lie on one node, which a Cluster insists on.
#[test]
fn in_a_cluster_the_mark_lies_beside_the_key() {
    let cluster = Cluster::start();
    for key in ["report", "{user}:7", "a{b}c"] {
        let mark = redis::mark_key(key).unwrap();
        assert_eq!(cluster.slot_of(key), cluster.slot_of(&mark), "{key} {mark}");
        let mut raw = cluster.owner_of(key).raw();
        assert_eq!(show(&mut raw, key, alone(7), &["SET", "new"]).list().len(), 3);
        assert_eq!(show(&mut raw, key, alone(6), &["SET", "late"]).list(), answer(false, 7));
    }
}
