//! `lock`, `renew`, `unlock`: leases for scripts, which nothing renews.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tenure_testkit::patience::eventually;

use crate::stage::{self, PATIENCE, Stage, assert_within, now, scaled_ttl};

/// Takes a lease and answers its JSON.
fn lock(stage: &Stage, ttl: &str) -> Value {
    let ended = stage.run(&["lock", "job", "--ttl", ttl]);
    ended.silent(0);
    assert_eq!(ended.out.lines().count(), 1);
    serde_json::from_str(&ended.out).unwrap()
}

fn owner(lease: &Value) -> &str {
    lease["owner"].as_str().unwrap()
}

/// If the first answer is late, `unlock` asks again and cannot know what the first one did. The lock is released in any case.
#[track_caller]
fn unlock(stage: &Stage, owner: &str) {
    let unlocked = stage.run(&["unlock", "job", owner]);
    if unlocked.code == 69 {
        unlocked.complained(69, "the lock was released, but it is not known whether it was held until then");
    } else {
        unlocked.silent(0);
    }
    assert_eq!(unlocked.out, "");
}

/// A contract for scripts.
fn a_lease_is_json_with_its_owner_and_token(stage: &Stage) {
    let lease = lock(stage, "30s");
    let fields: BTreeSet<&str> = lease.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, BTreeSet::from(["name", "owner", "token", "ttl_ms"]));
    assert_eq!((&lease["name"], &lease["ttl_ms"]), (&"job".into(), &30_000.into()));
    let held = &stage.show("job")["holders"][0];
    assert_eq!((&held["owner"], &held["token"]), (&lease["owner"], &lease["token"]));
    assert_eq!(owner(&lease).len(), 48);
    assert_eq!(held["label"]["pid"], std::process::id(), "people want to see the script that asked for it");
}

/// L1, L8.
fn it_keeps_others_out_until_it_is_unlocked(stage: &Stage) {
    let lease = lock(stage, "1h");
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "true"]);
    unlock(stage, owner(&lease));
    waiter.ended().silent(0);
    assert!(stage.show("job")["holders"].as_array().unwrap().is_empty());
}

/// L4, L5: what is gone stays gone, whoever holds it now.
fn a_second_unlock_and_a_late_renewal_say_that_it_is_gone(stage: &Stage) {
    let old = lock(stage, "1h");
    unlock(stage, owner(&old));
    let gone = "this owner does not hold the lock";
    stage.run(&["unlock", "job", owner(&old)]).complained(79, gone);
    stage.run(&["renew", "job", owner(&old), "--ttl", "1h"]).complained(79, gone);
    stage.run(&["renew", "job", owner(&old), "--ttl", "1h", "--lost-exit-code", "9"]).complained(9, gone);
    let new = lock(stage, "1h");
    stage.run(&["unlock", "job", owner(&old)]).complained(79, gone);
    stage.run(&["renew", "job", owner(&old), "--ttl", "24h"]).complained(79, gone);
    let view = stage.show("job");
    assert_eq!(view["holders"].as_array().unwrap().len(), 1);
    assert_eq!(view["holders"][0]["owner"], new["owner"]);
    // A database that answers slowly keeps it some seconds longer.
    assert!(view["holders"][0]["expires_in_ms"].as_u64().unwrap() <= 3_603_000);
    stage.run(&["unlock", "other", owner(&new)]).complained(79, gone);
    assert!(new["token"].as_u64() > old["token"].as_u64(), "L2");
}

/// L6, L8: nothing renews it, and it ends by itself: no sooner and not much later.
fn it_ends_with_its_ttl(stage: &Stage) {
    let (ttl, text) = scaled_ttl(Duration::from_secs(2));
    let (before, _) = (now(), lock(stage, &text));
    let end = stage.lease_end("job");
    assert!(end.earliest < now() + ttl + stage.grain());
    let ended = stage.run(&["run", "job", "--", "date", "+%s%N"]);
    ended.silent(0);
    let entered = Duration::from_nanos(ended.out.trim().parse().unwrap());
    assert!(entered >= end.earliest && entered >= before + ttl, "{:?}", end.earliest - entered);
    assert_within(
        Duration::from_secs(1) + stage.grain(),
        entered.saturating_sub(end.latest),
        "entering after the lease's end",
    );
}

/// A renewal counts from now and never shortens.
fn a_renewal_extends_it_and_never_shortens_it(stage: &Stage) {
    let (ttl, text) = scaled_ttl(Duration::from_secs(3));
    // A machine that stalls for longer than the first ttl has shown nothing: then another lease is taken.
    let (lease, started) = eventually("it was renewed before its first ttl had passed", PATIENCE, || {
        let (started, lease) = (Instant::now(), lock(stage, &text));
        let renewed = stage.run(&["-q", "renew", "job", owner(&lease), "--ttl", "1m"]);
        if renewed.code == 79 && started.elapsed() >= ttl {
            return None;
        }
        renewed.silent(0);
        Some((lease, started))
    });
    let owner = owner(&lease);
    eventually("it was held for two ttls", PATIENCE, || {
        // Quiet, because a store that stalls for seconds is named.
        let renewed = stage.run(&["-q", "renew", "job", owner, "--ttl", "1m"]);
        renewed.silent(0);
        assert_eq!(renewed.out, "");
        stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
        thread::sleep(ttl / 10);
        (started.elapsed() > 2 * ttl).then_some(())
    });
    let before = stage.lease_end("job");
    // A node has a twelfth of it to answer a new process, also on a busy machine.
    stage.run(&["renew", "job", owner, "--ttl", "6s"]).silent(0);
    assert!(stage.lease_end("job").latest >= before.earliest, "a renewal does not shorten");
    stage.run(&["renew", "job", owner, "--ttl", "25h"]).complained(64, "24h");
    unlock(stage, owner);
}

/// Of many scripts at once, one. On a quorum their votes may be split, and then none: they try again.
fn of_many_that_try_at_once_one_gets_it(stage: &Stage) {
    eventually("one gets it", PATIENCE, || {
        let tries: Vec<_> =
            (0..10).map(|_| stage.start(&["lock", "job", "--ttl", "1h", "-w", "0s", "-E", "5"])).collect();
        let mut codes: Vec<i32> = tries.into_iter().map(|attempt| attempt.ended().code).collect();
        codes.sort_unstable();
        if !stage.nodes().is_empty() && codes == [5; 10] {
            return None;
        }
        assert_eq!(codes, [&[0][..], &[5; 9]].concat());
        Some(())
    });
}

/// L8: a lease whose owner could not be told to anybody is given back.
fn a_lease_that_cannot_be_printed_is_given_back(stage: &Stage) {
    let line = "exec \"$0\" lock job --ttl 1h >/dev/full";
    let ended = stage.program("sh").args(["-c", line, env!("CARGO_BIN_EXE_tenure")]).output().unwrap();
    assert_eq!(ended.status.code(), Some(70), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("the lock was released"), "{ended:?}");
    assert!(stage.show("job")["holders"].as_array().unwrap().is_empty());
}

stage::on_every_store!(;
    but_sessions:
    a_lease_is_json_with_its_owner_and_token,
    it_keeps_others_out_until_it_is_unlocked,
    a_second_unlock_and_a_late_renewal_say_that_it_is_gone,
    it_ends_with_its_ttl,
    a_renewal_extends_it_and_never_shortens_it,
    of_many_that_try_at_once_one_gets_it,
    a_lease_that_cannot_be_printed_is_given_back,
);
