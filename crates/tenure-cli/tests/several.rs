//! Several locks at once (`--also`), and one of several (`--any`).

use std::{collections::BTreeSet, fs, time::Duration};

use serde_json::Value;
use tenure_testkit::patience::{eventually, slowness};

use crate::stage::{
    self, PATIENCE, Process, Stage,
    files::{BEAT, HOLD},
    scaled_ttl,
};

/// For processes that queue behind many others.
const LONG: Duration = Duration::from_secs(60);

/// Says in `log` that it came into the lock that `$TENURE_LOCK` names, stays for a moment, and says that it goes.
const STAY: &str = "echo + $TENURE_LOCK >>log; sleep 0.05; echo - $TENURE_LOCK >>log";

fn all_succeed(processes: Vec<Process>) {
    for process in processes {
        process.ended_within(LONG).silent(0);
    }
}

/// The names of all locks that somebody holds or waits for.
fn busy(stage: &Stage) -> Vec<String> {
    let Value::Array(locks) = stage.json(&["ls"]) else { panic!("ls prints a list") };
    locks.iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
}

/// Whoever was not wanted is withdrawn in the background.
fn nothing_is_left(stage: &Stage) {
    eventually("no lock is held or waited for", PATIENCE, || busy(stage).is_empty().then_some(()));
}

/// L1, L6: a counter for each of six names, which who holds the name reads, sleeps over and writes. Each process takes three
/// of them, in an order of its own.
fn thirty_processes_that_take_three_of_six_names_lose_no_increment_and_all_are_served(stage: &Stage) {
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        fs::write(stage.path(name), "0\n").unwrap();
    }
    let increment = "for f in $0 $1 $2; do n=$(cat $f); sleep 0.01; echo $((n+1)) >$f; done";
    let triples: Vec<[&str; 3]> = (0..30_usize)
        .map(|n| {
            let first = n % 6;
            let (second, third) = ((first + 1 + n / 6 % 4) % 6, (first + 5) % 6);
            [names[first], names[second], names[if third == second { (second + 1) % 6 } else { third }]]
        })
        .collect();
    let start = |&[one, two, three]: &[&str; 3]| {
        // A lease that a starved machine renews in time.
        let claim = ["run", "-w", "60s", "--ttl", "30s", "--also", two, "--also", three, one];
        stage.start(&[&claim[..], &["--", "sh", "-c", increment, one, two, three]].concat())
    };
    all_succeed(triples.iter().map(start).collect());
    for name in names {
        let wanted = triples.iter().filter(|triple| triple.contains(&name)).count();
        assert_eq!(stage.lines(name), [wanted.to_string()], "L1: {name}");
    }
    nothing_is_left(stage);
}

/// The command knows the tokens of all, and the first name stands for the lock.
fn the_command_has_the_tokens_of_all_its_locks(stage: &Stage) {
    let show = "echo $TENURE_LOCK $TENURE_TOKEN $TENURE_OWNER >main; echo $TENURE_TOKENS >tokens; echo $TENURE_HELD >held";
    let holder =
        stage.start(&["run", "--also", "a", "m", "--", "sh", "-c", &format!("{show}; {HOLD}"), "all"]);
    stage.beats("all");
    let tokens: Value = serde_json::from_str(&stage.lines("tokens")[0]).unwrap();
    let views = ["a", "m"].map(|name| stage.show(name)["holders"][0].clone());
    assert_eq!(tokens, serde_json::json!({"a": views[0]["token"], "m": views[1]["token"]}));
    let owner = views[1]["owner"].as_str().unwrap();
    assert_eq!(stage.lines("main"), [format!("m {} {owner}", views[1]["token"])]);
    for view in &views {
        assert!(stage.lines("held")[0].contains(view["owner"].as_str().unwrap()), "both are held");
    }
    stage.touch("go");
    holder.ended().silent(0);
    nothing_is_left(stage);
}

/// L8: neither a place nor a lease.
fn a_time_out_leaves_nothing_behind(stage: &Stage) {
    let holder = stage.start(&["run", "c", "--", "sh", "-c", HOLD, "c"]);
    stage.beats("c");
    let moment = format!("{}ms", 500 * slowness());
    for patience in [&["-n"][..], &["-w", &moment]] {
        let claim = [&["run"], patience, &["--also", "c", "--also", "b", "a", "--", "touch", "ran"]].concat();
        stage.run(&claim).complained(1, "c (of a, c, b): ");
        assert_eq!(busy(stage), ["c"], "L8");
    }
    stage.run(&["run", "-w", &moment, "--any", "c", "--", "touch", "ran"]).complained(1, "c: gave up after ");
    assert_eq!(busy(stage), ["c"], "L8");
    assert!(!stage.path("ran").exists());
    stage.touch("go");
    holder.ended().silent(0);
}

/// L1: whoever has lost one of its locks stops its command, and gives back the others.
fn one_lost_name_ends_all(stage: &Stage) {
    let (_, ttl) = scaled_ttl(Duration::from_secs(3));
    let holder = stage.start(&["run", "--ttl", &ttl, "--also", "b", "a", "--", "sh", "-c", BEAT, "robbed"]);
    stage.beats("robbed");
    assert_eq!(stage.run(&["break", "b"]).code, 0);
    holder.ended().complained(79, "b (of a, b): the lease was lost");
    stage.dies("pid.robbed");
    nothing_is_left(stage);
}

/// L1: never more than four, and each name has one holder.
fn ten_processes_share_four_names(stage: &Stage) {
    let names = ["gpu0", "gpu1", "gpu2", "gpu3"];
    let claim = ["run", "-w", "60s", "--any", "gpu0,gpu1", "--any", "gpu2,gpu3", "--", "sh", "-c", STAY];
    all_succeed((0..10).map(|_| stage.start(&claim)).collect());
    let (mut inside, mut used) = (BTreeSet::new(), BTreeSet::new());
    for line in stage.lines("log") {
        let (sign, name) = line.split_once(' ').unwrap();
        assert!(names.contains(&name), "{line}");
        used.insert(name.to_owned());
        let is_as_it_was = if sign == "+" { inside.insert(name.to_owned()) } else { inside.remove(name) };
        assert!(is_as_it_was, "L1: two were in {name}");
    }
    assert_eq!((stage.lines("log").len(), inside.len()), (20, 0));
    assert!(used.len() > 1, "{used:?}");
    nothing_is_left(stage);
}

/// L7, L8: who waits for any of two enters the first that is left, and leaves the queue of the other.
fn who_waits_for_any_takes_the_first_that_is_free(stage: &Stage) {
    let hold = "echo $0 >>beats; until [ -e go.$0 ]; do sleep 0.05; done";
    let holders = ["x", "y"].map(|name| {
        let holder = stage.start(&["run", name, "--", "sh", "-c", hold, name]);
        stage.beats(name);
        holder
    });
    let waiter = stage
        .start_waiter("y", &["run", "--any", "x,y", "--", "sh", "-c", "echo $TENURE_LOCK >>beats; exit 7"]);
    stage.queued("x", &waiter);
    stage.touch("go.y");
    assert_eq!(waiter.ended().code, 7);
    assert_eq!(stage.lines("beats"), ["x", "y", "y"]);
    eventually("only x is held", PATIENCE, || {
        (busy(stage) == ["x"] && stage.queue("x").is_empty()).then_some(())
    });
    stage.touch("go.x");
    for holder in holders {
        holder.ended().silent(0);
    }
}

/// A run inside of a run of one of its names would wait for ever; any of several is one that the outer one does not hold.
#[test]
fn several_locks_go_inside_of_a_run_of_one_of_them() {
    let stage = Stage::new();
    let inner = |claim: &str| format!("\"$0\" run {claim} -- true");
    let program = env!("CARGO_BIN_EXE_tenure");
    for claim in ["--also a b", "a --also b", "--any a"] {
        let refused = stage.run(&["run", "--also", "z", "a", "--", "sh", "-c", &inner(claim), program]);
        refused.complained(64, "holds this lock already");
    }
    stage.run(&["run", "--also", "z", "a", "--", "sh", "-c", &inner("--any z,a,b"), program]).silent(0);
}

/// One line, 64, nothing taken.
#[test]
fn names_that_cannot_go_together_are_refused() {
    let stage = Stage::new();
    for (arguments, part) in [
        (&["--also", "a", "a", "--", "touch", "ran"][..], "a is named twice"),
        (&["--also", "b", "--also", "b", "a", "--", "touch", "ran"], "b is named twice"),
        (&["--any", "a,b,a", "--", "touch", "ran"], "a is named twice"),
        (&["--any", "a,,b", "--", "touch", "ran"], "must not be empty"),
        (&["--also", "", "a", "--", "touch", "ran"], "must not be empty"),
        (&["--any", "a,b", "--also", "c", "--", "touch", "ran"], "cannot be used with"),
        (&["--any", "a,b", "-s", "--", "touch", "ran"], "cannot be used with"),
        (&["--also", "b", "--slots", "2", "a", "--", "touch", "ran"], "cannot be used with"),
        (&["--any", "a,b", "job", "--", "touch", "ran"], "--any stands instead of NAME"),
        (&["--any", "a,b", "touch", "ran"], "--any stands instead of NAME"),
        (&["--any", "a,b"], "required"),
        (&["--also", "b", "a"], "required"),
    ] {
        stage.run(&[&["run"], arguments].concat()).complained(64, part);
    }
    assert!(!stage.path("ran").exists() && !stage.database().exists());
}

stage::on_every_store!(
    thirty_processes_that_take_three_of_six_names_lose_no_increment_and_all_are_served,
    the_command_has_the_tokens_of_all_its_locks,
    a_time_out_leaves_nothing_behind,
    one_lost_name_ends_all,
    ten_processes_share_four_names,
    who_waits_for_any_takes_the_first_that_is_free,
);
