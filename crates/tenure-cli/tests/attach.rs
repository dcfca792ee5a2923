//! `lock --owner` and `attach`: a lease that one process takes and another one goes on with.

use std::time::Duration;

use serde_json::Value;

use crate::stage::{
    self, Stage,
    files::{BEAT, HOLD},
    scaled_ttl,
};

const OWNER: &str = "5f1c07e29b3d4a68c1f4a90b7d2e6385aa0d9e41b7c85F2E";

/// Nobody renews a lease from the end of one process to the first request of the next: a store must not be silent that long.
const TTL: Duration = Duration::from_secs(5);

fn lock(stage: &Stage, arguments: &[&str]) -> Value {
    let ended = stage.run(&[&["lock", "job"], arguments].concat());
    ended.silent(0);
    serde_json::from_str(&ended.out).unwrap()
}

/// H1.2, L2: whoever did not see the answer asks again, and has the same lease, with a token that is not smaller.
fn the_same_owner_asked_twice_has_one_lease(stage: &Stage) {
    let first = lock(stage, &["--ttl", "1h", "--owner", OWNER]);
    assert_eq!(first["owner"], OWNER.to_lowercase());
    let again = lock(stage, &["--ttl", "1h", "--owner", OWNER]);
    assert_eq!(again["owner"], first["owner"]);
    assert!(again["token"].as_u64() >= first["token"].as_u64(), "L2");
    let view = stage.show("job");
    assert_eq!((view["holders"].as_array().unwrap().len(), &view["queue"]), (1, &serde_json::json!([])));
    assert_eq!(
        (&view["holders"][0]["owner"], &view["holders"][0]["token"]),
        (&again["owner"], &again["token"])
    );
    let other = OWNER.replace('9', "3");
    stage.run(&["lock", "job", "--ttl", "1h", "-w", "3s", "--owner", &other]).complained(1, "held by");
    stage.run(&["unlock", "job", OWNER]).silent(0);
    assert!(stage.show("job")["holders"].as_array().unwrap().is_empty(), "L8");
}

/// L1, H1.2: a lease of slots for a script, such as that of a machine that restarts: two of three at a time, and one that asks again
/// has the same one.
fn machines_take_slots_under_their_own_names(stage: &Stage) {
    let owner = |n: u32| format!("{n:048x}");
    let ask =
        |n| stage.run(&["lock", "job", "--slots", "2", "--owner", &owner(n), "--ttl", "1h", "-w", "0s"]);
    for n in [1, 2, 1] {
        ask(n).silent(0);
    }
    assert_eq!(stage.show("job")["holders"].as_array().unwrap().len(), 2);
    ask(3).complained(1, "held by");
    // It holds one, and both are taken.
    let more =
        ["lock", "job", "--slots", "2", "--take", "2", "--owner", &owner(1), "--ttl", "1h", "-w", "1s"];
    stage.run(&more).complained(69, "this owner holds the lock already (shared:2), and asks for more");
    stage.run(&["unlock", "job", &owner(1)]).silent(0);
    ask(3).silent(0);
    for n in [2, 3] {
        stage.run(&["unlock", "job", &owner(n)]).silent(0);
    }
    stage.run(&["lock", "job", "--slots", "2", "--take", "2", "--ttl", "1h", "-w", "0s"]).silent(0);
}

/// L8: a lease that an earlier answer has granted was given back when a later answer of the same owner could not be printed. Who
/// chose the owner can ask again and give it back.
fn an_answer_that_cannot_be_printed_ends_no_lease_of_a_chosen_owner(stage: &Stage) {
    lock(stage, &["--ttl", "1h", "--owner", OWNER]);
    for out in [">/dev/full", "| true"] {
        let line = format!("{{ sleep 0.1; $0 lock job --ttl 1h --owner {OWNER}; echo $? >code; }} {out}");
        let mut command = stage.program("sh");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_tenure")]);
        let ended = stage.run_command(command);
        let line = "job: cannot print the token: ";
        assert!(
            ended.err.contains(line) && ended.err.contains("; the owner that was named holds the lock"),
            "{ended:?}"
        );
        assert_eq!(stage.lines("code"), ["70"]);
        assert_eq!(stage.show("job")["holders"][0]["owner"], OWNER.to_lowercase());
    }
    stage.run(&["unlock", "job", OWNER]).silent(0);
}

/// L3, L8: the command runs past the end of the lease that was taken, with its token, and the lock is free afterwards.
fn attach_goes_on_with_a_lease_and_its_token(stage: &Stage) {
    let (ttl, text) = scaled_ttl(TTL);
    let lease = lock(stage, &["--ttl", &text]);
    let owner = lease["owner"].as_str().unwrap();
    let show = format!("echo $TENURE_LOCK $TENURE_TOKEN $TENURE_OWNER $TENURE_TOKENS >env; {HOLD}; exit 7");
    let holder = stage.start(&["attach", "--ttl", &text, "job", owner, "--", "sh", "-c", &show, "attached"]);
    stage.beats("attached");
    let token = &lease["token"];
    assert_eq!(stage.lines("env"), [format!("job {token} {owner} {{\"job\":{token}}}")]);
    std::thread::sleep(ttl + stage.grain());
    assert_eq!(stage.show("job")["holders"][0]["owner"], lease["owner"], "it is renewed");
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
    stage.touch("go");
    assert_eq!(holder.ended().code, 7);
    assert!(stage.show("job")["holders"].as_array().unwrap().is_empty(), "L8");
    stage
        .run(&["attach", "job", owner, "--", "touch", "ran"])
        .complained(79, "this owner does not hold the lock");
    let gone = ["attach", "--lost-exit-code", "9", "job", OWNER, "--", "touch", "ran"];
    stage.run(&gone).complained(9, "this owner does not hold the lock");
    assert!(!stage.path("ran").exists());
}

/// L1: a command under an attached lease is stopped like any other.
fn an_attached_command_is_stopped_when_its_lease_is_lost(stage: &Stage) {
    let (_, text) = scaled_ttl(TTL);
    let lease = lock(stage, &["--ttl", &text]);
    let owner = lease["owner"].as_str().unwrap();
    let holder = stage.start(&["attach", "--ttl", &text, "job", owner, "--", "sh", "-c", BEAT, "attached"]);
    stage.beats("attached");
    assert_eq!(stage.run(&["break", "job"]).code, 0);
    holder.ended().complained(79, "the lease was lost");
    stage.dies("pid.attached");
}

/// L1: after its `ssh` had lost the connection, a script tried again on another host, and two commands ran with one
/// token.
fn one_command_at_a_time_works_under_a_lease(stage: &Stage) {
    let (_, text) = scaled_ttl(TTL);
    let lease = lock(stage, &["--ttl", &text]);
    let owner = lease["owner"].as_str().unwrap();
    let first = stage.start(&["attach", "--ttl", &text, "job", owner, "--", "sh", "-c", HOLD, "attached"]);
    stage.beats("attached");
    let second = ["attach", "--ttl", &text, "job", owner, "--", "touch", "ran"];
    stage.run(&second).complained(1, "job: another `tenure attach` works under this lease");
    assert_eq!(stage.show("job")["holders"][0]["owner"], lease["owner"], "the refusal ends nothing");
    stage.touch("go");
    first.ended().silent(0);
    stage.run(&second).complained(79, "this owner does not hold the lock");
    assert!(!stage.path("ran").exists());
    let place = format!("attach:{owner}");
    assert!(stage.show(&place)["holders"].as_array().unwrap().is_empty(), "L8");
}

/// L1: `attach` with the owner that `show` prints ended a command that ran.
fn the_lease_of_a_command_that_runs_is_not_attached_to(stage: &Stage) {
    let holder = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "running"]);
    stage.beats("running");
    let owner = stage.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let refused = stage.run(&["attach", "job", &owner, "--", "touch", "ran"]);
    refused.complained(64, "job: this is the lease of a command that runs: ");
    stage.touch("go");
    holder.ended().silent(0);
    assert!(!stage.path("ran").exists());
}

/// One line, 64, nothing taken.
#[test]
fn bad_owners_are_refused() {
    let stage = Stage::new();
    for owner in ["", "12", "x", &OWNER[1..], &OWNER.replace('0', "g"), "é", "redis://:secret@host"] {
        stage.run(&["lock", "job", "--ttl", "5s", "--owner", owner]).complained(64, "48 hex digits");
        stage.run(&["attach", "job", owner, "--", "touch", "ran"]).complained(64, "48 hex digits");
    }
    stage.run(&["attach", "job", OWNER]).complained(64, "required");
    let grace = ["attach", "--ttl", "3s", "--grace", "2s", "job", OWNER, "--", "touch", "ran"];
    stage.run(&grace).complained(64, "--grace");
    assert!(!stage.path("ran").exists() && !stage.database().exists());
}

/// Where a vote may need a new owner, none can be chosen; where a lease is a session, none can be left.
#[test]
fn stores_that_cannot_keep_an_owner_say_so() {
    let quorum = Stage::on_quorum();
    let refused = quorum.run(&["lock", "job", "--ttl", "5s", "--owner", OWNER]);
    refused.complained(64, "redlock chooses the owner of each claim");
    let sessions = Stage::on_zookeeper();
    sessions.run(&["lock", "job", "--ttl", "5s", "--owner", OWNER]).complained(64, "use `tenure run`");
    sessions.run(&["attach", "job", OWNER, "--", "touch", "ran"]).complained(64, "use `tenure run`");
    assert!(!sessions.path("ran").exists());
}

stage::on_every_store!(;
    but_sessions:
    attach_goes_on_with_a_lease_and_its_token,
    an_attached_command_is_stopped_when_its_lease_is_lost,
    one_command_at_a_time_works_under_a_lease,
    the_lease_of_a_command_that_runs_is_not_attached_to,
);

/// The same for all stores that keep an owner: all but quorums and sessions.
mod chosen {
    use super::Stage;

    fn all(stage: &Stage) {
        super::the_same_owner_asked_twice_has_one_lease(stage);
        super::an_answer_that_cannot_be_printed_ends_no_lease_of_a_chosen_owner(stage);
        super::machines_take_slots_under_their_own_names(stage);
    }

    #[test]
    fn sqlite() {
        all(&Stage::new());
    }

    #[test]
    fn redis() {
        all(&Stage::on_redis());
    }

    #[test]
    fn postgres() {
        all(&Stage::on_postgres());
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn mysql() {
        all(&Stage::on_mysql());
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn etcd() {
        all(&Stage::on_etcd());
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn cluster() {
        all(&Stage::on_cluster());
    }
}
