//! `lead`: one of many runs the command, and again after each loss. The judge is a lock of the system on a file, which the
//! command holds for as long as it lives.

use std::{
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::{patience::eventually, proxy::Proxy};

use crate::stage::{self, PATIENCE, Process, Stage, files::BEAT, process::is_alive, scaled_ttl};

/// Says its term, and that it is inside; two at once are found by the judge. Deaf to nothing.
const LED: &str = "exec flock -n -E 99 judge sh -c 'echo $TENURE_TOKEN >>terms; echo $PPID >>leaders; while :; do sleep 0.05; done'";

/// L1: ends with 99 if another one is inside.
fn judged(stage: &Stage, ttl: &str) -> Process {
    judged_by(stage, &[], ttl)
}

/// With more options.
fn judged_by(stage: &Stage, options: &[&str], ttl: &str) -> Process {
    let lead = ["--ttl", ttl, "--proclaim", "10.0.0.7:80", "job", "--", "sh", "-c", LED];
    stage.start(&[&["lead"], options, &lead].concat())
}

/// The terms so far.
fn terms(stage: &Stage) -> Vec<u64> {
    stage.lines("terms").iter().map(|line| line.parse().unwrap()).collect()
}

/// Waits for one more term than there were, and asserts that terms grow.
fn next_term(stage: &Stage, before: usize) {
    eventually("another one leads", PATIENCE * 2, || (terms(stage).len() > before).then_some(()));
    assert!(terms(stage).is_sorted(), "L2: {:?}", terms(stage));
}

/// Who leads now.
fn leader<'a>(stage: &Stage, all: &'a mut [Process]) -> &'a mut Process {
    let pid = eventually("the store shows a leader", PATIENCE, || {
        let view = stage.show("job");
        view["holders"][0]["label"]["pid"].as_u64()
    });
    all.iter_mut().find(|process| u64::from(process.pid()) == pid).expect("it is one of them")
}

/// L1, L2: the leader is killed, then the next one is stopped for two ttls. The others lead, one at a time, in later terms;
/// who was stopped campaigns again.
fn at_most_one_leads_whatever_becomes_of_the_leader(stage: &Stage) {
    let (ttl, text) = scaled_ttl(Duration::from_secs(3));
    let mut all: Vec<Process> = (0..3).map(|_| judged(stage, &text)).collect();
    next_term(stage, 0);
    leader(stage, &mut all).kill();
    all.retain_mut(Process::is_running);
    next_term(stage, 1);
    let stopped = leader(stage, &mut all).pid();
    let of = |all: &mut Vec<Process>| all.iter().position(|process| process.pid() == stopped).unwrap();
    let at = of(&mut all);
    stage.stop(&all[at]);
    thread::sleep(2 * ttl);
    next_term(stage, 2);
    all[at].signal(Signal::SIGCONT);
    stage.queued("job", &all[at]);
    for process in &mut all {
        assert!(process.is_running(), "{}", process.said());
    }
    // Asked to end, a leader gives the lead up at once.
    let before = terms(stage).len();
    let first = leader(stage, &mut all).pid();
    let at = all.iter().position(|process| process.pid() == first).unwrap();
    let first = all.swap_remove(at);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.ended().code, 143);
    next_term(stage, before);
}

/// L1, L2: however a leader is cut off from the store, its command has ended before another one leads, and it campaigns again.
#[test]
fn a_leader_that_is_cut_off_has_stopped_before_another_one_leads() {
    let mut stage = Stage::on_redis();
    let (_, ttl) = scaled_ttl(Duration::from_secs(2));
    let server = stage.server();
    let proxy = Proxy::to(server.port(), 1);
    let url = server.url("?guard=off").replace(&server.port().to_string(), &proxy.port().to_string());
    let mut far = judged_by(&stage, &["--url", &url], &ttl);
    for (round, cut_off) in [Proxy::cut, Proxy::stall, Proxy::drop_replies].into_iter().enumerate() {
        next_term(&stage, 2 * round);
        let mut near = judged(&stage, &ttl);
        stage.queued("job", &near);
        cut_off(&proxy);
        next_term(&stage, 2 * round + 1);
        assert!(near.is_running() && far.is_running(), "L1: {}, {}", near.said(), far.said());
        proxy.heal();
        stage.queued("job", &far);
        near.signal(Signal::SIGTERM);
        assert_eq!(near.ended().code, 143);
    }
    next_term(&stage, 6);
    assert!(far.is_running(), "{}", far.said());
}

/// The command of a second term was deaf to the stop that a read in the background brings.
#[cfg(target_os = "linux")]
#[test]
fn the_command_of_each_term_has_the_same_signals() {
    let stage = Stage::new();
    // No shell, which may change its own mask.
    let show = "$| = 1; open(F, '/proc/self/status'); print grep(/^SigBlk/, <F>); sleep 1 while 1";
    let lead = stage.start(&["-q", "lead", "job", "--", "perl", "-e", show]);
    let masks = |count| {
        eventually("a command shows its mask", PATIENCE, || {
            let masks: Vec<String> = lead.printed().lines().map(str::to_owned).collect();
            (masks.len() == count).then_some(masks)
        })
    };
    masks(1);
    stage.run(&["-q", "break", "job"]).silent(0);
    let masks = masks(2);
    assert_eq!(masks[0], masks[1]);
    lead.signal(Signal::SIGTERM);
    assert_eq!(lead.ended().code, 143);
}

/// L2: a robbed leader stops its command, campaigns again, and says so.
fn a_robbed_leader_campaigns_again(stage: &Stage) {
    let (_, text) = scaled_ttl(Duration::from_secs(5));
    let command = "echo $TENURE_TOKEN >>terms; while :; do sleep 0.05; done";
    let mut one = stage.start(&["lead", "--ttl", &text, "job", "--", "sh", "-c", command]);
    for round in 0..3 {
        next_term(stage, round);
        assert_eq!(stage.run(&["break", "job"]).code, 0);
    }
    next_term(stage, 3);
    assert!(one.is_running());
    assert_eq!(one.said().matches(". Stopped the command. Campaigning again\n").count(), 3, "{}", one.said());
}

/// A leader that did no work was never replaced.
#[test]
fn a_leader_whose_health_check_fails_or_hangs_makes_room() {
    for (check, why) in [
        (
            "[ $(wc -l <terms) -gt 1 ]",
            "stopped the command: the health check failed with code 1. Campaigning again",
        ),
        ("[ $(wc -l <terms) -gt 1 ] || sleep 60", "took longer than 0.4 s. Campaigning again"),
        ("kill -9 $$", "failed with code 137. Campaigning again"),
    ] {
        let stage = Stage::new();
        let health = ["lead", "--health", check, "--health-every", "400ms", "job", "--", "sh", "-c"];
        let command = "echo $TENURE_TOKEN >>terms; echo $$ >pid; while :; do sleep 0.05; done";
        let mut ill = stage.start(&[&health[..], &[command]].concat());
        next_term(&stage, 0);
        let first: i32 = stage.number("pid");
        let waits = stage.start(&["run", "job", "--", "sh", "-c", "echo entered >>entered"]);
        waits.ended().silent(0);
        assert!(!is_alive(first) && ill.is_running(), "{}", ill.said());
        next_term(&stage, 1);
        eventually("the reason is said", PATIENCE, || ill.said().contains(why).then_some(()));
    }
}

/// L6: a process that a health check had left running counted as work of the leader. The lock stayed held after the command
/// had ended.
#[test]
fn what_a_health_check_leaves_running_holds_no_lock() {
    let stage = Stage::new();
    let check = "[ -e checks ] || { sleep 60 & echo $! >pid.left; echo >>checks; }";
    let command = "until [ -e checks ]; do sleep 0.05; done; sleep 0.3";
    let lead = ["lead", "--health", check, "--health-every", "200ms", "job", "--", "sh", "-c", command];
    stage.start(&lead).ended().silent(0);
    let left: i32 = stage.number("pid.left");
    assert!(is_alive(left), "it is not of the family");
    kill(Pid::from_raw(left), Signal::SIGKILL).unwrap();
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// `--max-hold` of a leader; and a health check that succeeds changes nothing.
#[test]
fn a_leader_steps_down_after_its_longest_term_and_not_before() {
    let stage = Stage::new();
    let command = "echo $TENURE_TOKEN >>terms; while :; do sleep 0.05; done";
    let lead =
        ["lead", "--max-hold", "3s", "--health", "echo >>checks", "--health-every", "200ms", "job", "--"];
    let mut one = stage.start(&[&lead[..], &["sh", "-c", command]].concat());
    next_term(&stage, 0);
    eventually("it was asked often", PATIENCE, || (stage.lines("checks").len() > 5).then_some(()));
    assert_eq!(stage.lines("terms").len(), 1);
    next_term(&stage, 1);
    assert!(
        one.is_running() && one.said().contains("--max-hold 3s reached. Campaigning again"),
        "{}",
        one.said()
    );
    stage.run(&["lead", "--health-every", "1s", "job", "--", "true"]).complained(64, "--health");
}

/// The address of a leader is shown for as long as it leads, and it is that one's.
fn the_leader_can_be_looked_up(stage: &Stage) {
    let one = stage.start(&["lead", "--proclaim", "10.0.0.7:80", "job", "--", "sh", "-c", BEAT, "one"]);
    stage.beats("one");
    let view = stage.show("job");
    assert_eq!(view["memo"]["text"], "10.0.0.7:80");
    assert_eq!(view["memo"]["owner"], view["holders"][0]["owner"]);
    one.signal(Signal::SIGTERM);
    assert_eq!(one.ended().code, 143);
    let second = stage.start(&["lead", "--proclaim", "10.0.0.8:80", "job", "--", "sh", "-c", BEAT, "two"]);
    stage.beats("two");
    assert_eq!(stage.show("job")["memo"]["text"], "10.0.0.8:80");
    drop(second);
}

/// When the command ends by itself, so does `lead`, with its code, and the next one leads.
fn it_ends_with_its_command(stage: &Stage) {
    stage.run(&["lead", "job", "--", "sh", "-c", "exit 7"]).silent(7);
    stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
}

/// A server that hangs again and again: the command is started as often as the lead was lost and once more, never twice at once,
/// and `lead` does not end.
#[test]
fn with_a_flapping_server_it_goes_on() {
    let mut stage = Stage::on_redis();
    let (ttl, text) = scaled_ttl(Duration::from_secs(3));
    let mut one = judged(&stage, &text);
    for round in 0..4 {
        next_term(&stage, round);
        let began = Instant::now();
        stage.server().stop();
        let lost = format!("{}", round + 1);
        eventually("the lead is lost", PATIENCE, || {
            (one.said().matches("Stopped the command").count() > round).then_some(lost.len())
        });
        assert!(one.is_running(), "{}", one.said());
        thread::sleep((2 * ttl).saturating_sub(began.elapsed()));
        stage.server().resume();
    }
    next_term(&stage, 4);
    assert_eq!(
        (terms(&stage).len(), one.said().matches("Campaigning again").count()),
        (5, 4),
        "{}",
        one.said()
    );
    assert!(one.is_running());
}

/// What is not possible is refused, and nothing is taken.
#[test]
fn bad_input_is_refused() {
    let stage = Stage::new();
    let long = "x".repeat(1025);
    for (flags, part) in [
        (&["--proclaim", long.as_str()][..], "a memo of 1025 bytes is too long: 1024 at most"),
        (&["--wait", "5s"], "unexpected argument"),
        (&["--every", "5s"], "unexpected argument"),
        (&["--ttl", "1ms"], "a ttl must be between"),
        (&["--ttl", "1s", "--grace", "900ms"], "--grace 0.9 s is more than a third"),
    ] {
        stage.run(&[&["lead"], flags, &["job", "--", "touch", "ran"]].concat()).complained(64, part);
    }
    assert!(!stage.path("ran").exists() && !stage.database().exists());
}

stage::on_every_store!(
    at_most_one_leads_whatever_becomes_of_the_leader,
    a_robbed_leader_campaigns_again,
    the_leader_can_be_looked_up,
    it_ends_with_its_command,
);
