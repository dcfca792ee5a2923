//! `break`: the robbed are stopped, the next holder's token is larger.

#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use tenure_testkit::patience::eventually;

use crate::stage::{
    self, PATIENCE, Stage, assert_within,
    files::{BEAT, HOLD},
    now,
    process::is_alive,
    scaled_ttl,
};

const SECOND: Duration = Duration::from_secs(1);

fn token(stage: &Stage, name: &str) -> u64 {
    stage.show(name)["holders"][0]["token"].as_u64().unwrap()
}

/// L2: TERM within a second, 79, and a larger token for whoever comes next.
fn the_command_of_a_broken_lock_gets_term_and_the_next_token_is_larger(stage: &Stage) {
    let polite = "exec 2>/dev/null; trap 'date +%s%N >termed; exit 5' TERM; echo $0 >>beats; while :; do sleep 0.05; done";
    let holder = stage.start(&["run", "job", "--", "sh", "-c", polite, "robbed"]);
    stage.beats("robbed");
    let old = token(stage, "job");
    let before = now();
    let broken = stage.run(&["break", "job"]);
    broken.silent(0);
    assert!(broken.out.contains("job was taken from") && broken.out.contains(" sh since "), "{broken:?}");
    holder.ended().complained(79, "tenure break or unlock ended it");
    let termed = Duration::from_nanos(stage.number("termed"));
    assert_within(SECOND, termed - before, "TERM after the break");
    let next = stage.run(&["run", "-n", "job", "--", "printenv", "TENURE_TOKEN"]);
    next.silent(0);
    assert!(next.out.trim().parse::<u64>().unwrap() > old);
}

/// The whole group, and not before it had its grace.
fn a_command_that_ignores_term_is_killed_after_its_grace_with_its_group(stage: &Stage) {
    let grace = SECOND;
    // What is ignored stays so in a child.
    let family = format!("trap '' TERM; sh -c '{BEAT}' child & {BEAT}");
    let (_, ttl) = scaled_ttl(4 * SECOND);
    let command = ["run", "--ttl", &ttl, "--grace", "1s", "job", "--", "sh", "-c", &family, "leader"];
    let holder = stage.start(&command);
    stage.beats("leader");
    stage.beats("child");
    let (leader, child) = (stage.number("pid.leader"), stage.number("pid.child"));
    let broken = Instant::now();
    stage.run(&["break", "job"]).silent(0);
    eventually("the group is dead", PATIENCE, || (!is_alive(leader) && !is_alive(child)).then_some(()));
    assert!(broken.elapsed() >= grace, "killed after {:?}: before the grace was over", broken.elapsed());
    assert_within(grace + SECOND, broken.elapsed(), "killing the group");
    holder.ended().complained(79, "tenure break or unlock ended it");
}

/// L4, L5.
fn renew_and_unlock_by_the_robbed_say_that_it_is_gone(stage: &Stage) {
    let lease: serde_json::Value =
        serde_json::from_str(&stage.run(&["lock", "job", "--ttl", "30s"]).out).unwrap();
    let owner = lease["owner"].as_str().unwrap();
    stage.run(&["break", "job"]).silent(0);
    let next = stage.start(&["run", "job", "--", "sh", "-c", HOLD, "next"]);
    stage.beats("next");
    let held = stage.show("job");
    stage.run(&["renew", "job", owner, "--ttl", "30s"]).complained(79, "has ended or was broken");
    stage.run(&["unlock", "job", owner]).complained(79, "has ended or was broken");
    stage.run(&["unlock", "--lost-exit-code", "7", "job", owner]).complained(7, "has ended or was broken");
    assert_eq!(
        held["holders"][0]["owner"],
        stage.show("job")["holders"][0]["owner"],
        "nothing happened to it"
    );
    stage.touch("go");
    next.ended().silent(0);
}

/// L2, L6: a waiter need not find out by itself.
fn whoever_waits_for_a_broken_lock_gets_it_at_once(stage: &Stage) {
    let holder = stage.start(&["run", "--ttl", "30s", "job", "--", "sh", "-c", HOLD, "robbed"]);
    stage.beats("robbed");
    let old = token(stage, "job");
    let waiter = stage.start_waiter("job", &["run", "job", "--", "printenv", "TENURE_TOKEN"]);
    let broken = Instant::now();
    stage.run(&["break", "-q", "job"]).silent(0);
    let ended = waiter.ended();
    // Two programs start in this time. By itself the waiter would ask again after 2 s.
    assert_within(2 * stage::START, broken.elapsed(), "the hand-off by a break");
    ended.silent(0);
    assert!(ended.out.trim().parse::<u64>().unwrap() > old);
    holder.ended().complained(79, "tenure break or unlock ended it");
}

/// `break` of a free lock is 0; it raises the fence all the same.
fn breaking_a_free_lock_is_no_error_and_raises_its_fence(stage: &Stage) {
    let broken = stage.run(&["break", "job"]);
    broken.silent(0);
    assert_eq!(broken.out, "job was free\n");
    let fence = stage.show("job")["fence"].as_u64().unwrap();
    let next = stage.run(&["run", "job", "--", "printenv", "TENURE_TOKEN"]);
    assert!(next.out.trim().parse::<u64>().unwrap() > fence);
    let quiet = stage.run(&["-q", "break", "job"]);
    assert_eq!((quiet.code, quiet.out.as_str()), (0, ""));
}

/// Co-holders of a semaphore are robbed together.
fn all_holders_of_slots_are_robbed(stage: &Stage) {
    let start = |name| stage.start(&["run", "--slots", "2", "gpu", "--", "sh", "-c", BEAT, name]);
    let holders = ["one", "two"].map(start);
    stage.beats("one");
    stage.beats("two");
    assert_eq!(stage.run(&["break", "gpu"]).out.lines().count(), 2);
    for holder in holders {
        holder.ended().complained(79, "tenure break or unlock ended it");
    }
    assert_eq!(stage.show("gpu")["holders"].as_array().unwrap().len(), 0);
}

/// A group is gone when all in it are dead, also where the parent of orphans never waits for them: as the first process of
/// many a container does not. `run` used to wait for such a group for ever. Now it adopts them and buries them itself.
#[test]
fn the_dead_of_a_group_are_buried_by_the_command() {
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let stage = Stage::new();
    let family = "sleep 60 & echo $! >pid.child; echo $0 >>beats; wait";
    let holder = stage.start(&["run", "--ttl", "30s", "job", "--", "sh", "-c", family, "leader"]);
    stage.beats("leader");
    let broken = Instant::now();
    stage.run(&["break", "job"]).silent(0);
    holder.ended().complained(79, "tenure break or unlock ended it");
    assert_within(SECOND, broken.elapsed(), "the end of a group that died at once");
    let child: i32 = stage.number("pid.child");
    assert!(!std::fs::exists(format!("/proc/{child}")).unwrap(), "it was left for us to bury");
}

/// Of those that share a lock one is robbed; and a holder that has left meanwhile robs nobody.
fn one_of_the_holders_is_robbed(stage: &Stage) {
    let start = |who: &str| {
        let holder = stage.start(&["run", "--slots", "2", "job", "--", "sh", "-c", HOLD, who]);
        stage.beats(who);
        holder
    };
    let owners = || -> Vec<String> {
        let view = stage.show("job");
        view["holders"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["owner"].as_str().unwrap().to_owned())
            .collect()
    };
    let stays = start("stays");
    let [kept] = &owners()[..] else { panic!("one holds") };
    let robbed = start("robbed");
    let owner = owners().into_iter().find(|owner| owner != kept).unwrap();
    let broken = stage.run(&["break", "job", "--owner", &owner]);
    broken.silent(0);
    assert!(broken.out.contains("job was taken from"), "{broken:?}");
    robbed.ended().complained(79, "tenure break or unlock ended it");
    let again = stage.run(&["break", "job", "--owner", &owner]);
    again.silent(0);
    assert!(again.out.contains(&format!("job is not held by {owner}")), "{again:?}");
    assert_eq!(owners(), std::slice::from_ref(kept));
    stage.touch("go");
    stays.ended().silent(0);
}

stage::on_every_store!(
    the_command_of_a_broken_lock_gets_term_and_the_next_token_is_larger,
    a_command_that_ignores_term_is_killed_after_its_grace_with_its_group,
    whoever_waits_for_a_broken_lock_gets_it_at_once,
    breaking_a_free_lock_is_no_error_and_raises_its_fence;
    but_quorums:
    all_holders_of_slots_are_robbed, one_of_the_holders_is_robbed;
    but_sessions:
    renew_and_unlock_by_the_robbed_say_that_it_is_gone,
);
