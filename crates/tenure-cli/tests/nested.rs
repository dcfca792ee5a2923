//! `tenure run` inside of `tenure run`: what would wait for itself is refused, and what may nest does.

use tenure_testkit::patience::eventually;

use crate::stage::{self, PATIENCE, Stage};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");
const REFUSED: &str = "around this command holds this lock already";

/// Runs inside of runs, from the outermost to the innermost, each with these arguments.
fn nested(stage: &Stage, runs: &[&[&str]]) -> stage::Ended {
    let (outermost, rest) = runs.split_first().unwrap();
    let mut arguments = [&["run"], *outermost].concat();
    for run in rest {
        arguments.extend([&["--", TENURE, "run"], *run].concat());
    }
    arguments.extend(["--", "true"]);
    stage.run(&arguments)
}

/// A script under a lock calls another one that takes the same lock: without a word both waited for ever.
fn a_run_inside_of_a_run_of_the_same_lock_is_refused(stage: &Stage) {
    nested(stage, &[&["job"], &["job"]]).complained(64, REFUSED);
    nested(stage, &[&["job"], &["-n", "job"]]).complained(64, REFUSED);
    nested(stage, &[&["job"], &["other"], &["-q", "job"]]).complained(64, REFUSED);
    nested(stage, &[&["job"], &["other"], &["third"]]).silent(0);
    let script = format!("{TENURE} run job -- true; {TENURE} run other -- true");
    stage.run(&["run", "-c", "job", &script]).complained(0, REFUSED);
}

/// What may hold together may nest.
fn readers_and_free_slots_may_nest(stage: &Stage) {
    nested(stage, &[&["-s", "job"], &["-s", "job"], &["-s", "job"]]).silent(0);
    nested(stage, &[&["-s", "job"], &["job"]]).complained(64, REFUSED);
    nested(stage, &[&["job"], &["-s", "job"]]).complained(64, REFUSED);
    let two: &[&str] = &["--slots", "2", "job"];
    nested(stage, &[two, two]).silent(0);
    nested(stage, &[two, two, two]).complained(64, REFUSED);
}

/// A lease for a script is a claim like any other.
fn a_lease_for_a_script_inside_of_a_run_is_refused(stage: &Stage) {
    stage.run(&["run", "job", "--", TENURE, "lock", "job", "--ttl", "1m"]).complained(64, REFUSED);
}

/// L1: `attach` to the lease of the run around it gave that back when it ended, and `unlock` at once: another one came in while the
/// outer command went on.
fn the_lease_around_a_command_is_not_ended_inside(stage: &Stage) {
    let own = "this owner has the lease of the `tenure` around this command; ";
    for inner in [
        "attach job $TENURE_OWNER -- touch ran",
        "attach other $TENURE_OWNER -- touch ran",
        "unlock job $TENURE_OWNER",
        "lock other --ttl 1m --owner $TENURE_OWNER",
        "run other -- $0 unlock job $TENURE_HELD_FIRST",
    ] {
        let first = "TENURE_HELD_FIRST=${TENURE_HELD%%:*} ";
        let script =
            format!("{first} && export TENURE_HELD_FIRST; $0 {inner}; echo $? >code; $0 run -n job -- true");
        let ended = stage.run(&["run", "job", "--", "sh", "-c", &script, TENURE]);
        assert!(ended.err.contains(own) && ended.err.contains(REFUSED), "{inner}: {ended:?}");
        assert_eq!((ended.code, stage.lines("code")), (64, vec!["64".to_owned()]), "{inner}");
        assert!(!stage.path("ran").exists(), "{inner}");
    }
}

/// What ends nothing is let through, and so is what says that it takes the lock by force.
fn a_lease_may_be_renewed_and_broken_inside(stage: &Stage) {
    let renew = format!("{TENURE} renew job $TENURE_OWNER --ttl 5s");
    stage.run(&["run", "-c", "job", &renew]).silent(0);
    eventually("the loss is told", PATIENCE, || {
        let ended = stage.run(&["run", "-c", "job", &format!("{TENURE} -q break job")]);
        // A store that answers only the second request cannot tell which of the two found the lease.
        if ended.code == 0 && ended.err.contains("not known whether it was held") {
            return None;
        }
        // An etcd cluster with a hung member answers nothing while it elects.
        if ended.code == 69 && ended.err.contains("did not answer within") {
            return None;
        }
        assert_eq!(ended.code, 79, "{ended:?}");
        Some(())
    });
}

/// What the environment says counts only while the store says so too: owners that hold nothing refuse nothing.
fn owners_that_hold_nothing_refuse_nothing(stage: &Stage) {
    let former = stage.run(&["run", "job", "--", "sh", "-c", "echo $TENURE_HELD"]).out;
    assert_eq!(former.trim().len(), 48, "{former}");
    for held in [former.trim(), "", "::", "not an owner", &format!("x:{}:", former.trim())] {
        let mut command = stage.command(&["run", "job", "--", "true"]);
        command.env("TENURE_HELD", held);
        stage.run_command(command).silent(0);
    }
}

/// A command that clears its environment is not known to be inside; it fares as any other.
fn a_command_without_its_environment_fares_as_any_other(stage: &Stage) {
    let ended = stage.run(&[
        "run",
        "job",
        "--",
        "env",
        "-u",
        "TENURE_HELD",
        TENURE,
        "run",
        "-n",
        "job",
        "--",
        "true",
    ]);
    ended.complained(1, "held by");
}

/// One store has many URLs: what tells is the store, not its name.
#[test]
fn one_store_in_two_spellings_is_one_store() {
    let stage = Stage::new();
    let [plain, odd, other] = ["locks.db", "./nothing/../locks.db", "other.db"]
        .map(|path| format!("sqlite:{}", stage.path(path).display()));
    std::fs::create_dir(stage.path("nothing")).unwrap();
    let inside = |url: &str| {
        stage.run(&["--url", &plain, "run", "job", "--", TENURE, "--url", url, "run", "job", "--", "true"])
    };
    inside(&odd).complained(64, REFUSED);
    inside(&other).silent(0);
}

stage::on_every_store!(
    a_run_inside_of_a_run_of_the_same_lock_is_refused,
    owners_that_hold_nothing_refuse_nothing,
    a_command_without_its_environment_fares_as_any_other,
    the_lease_around_a_command_is_not_ended_inside;
    but_quorums:
    readers_and_free_slots_may_nest;
    but_sessions:
    a_lease_for_a_script_inside_of_a_run_is_refused,
    a_lease_may_be_renewed_and_broken_inside,
);
