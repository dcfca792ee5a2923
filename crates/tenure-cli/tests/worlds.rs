//! One file, seen from two worlds: another time namespace, another boot id, a mount of the file alone.

#![cfg(target_os = "linux")]

use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use crate::stage::{Ended, Stage};

/// Whether this machine lets us make such a namespace.
fn may(unshare: &[&str]) -> bool {
    let mut command = Command::new("unshare");
    command.args(unshare).arg("true").stderr(Stdio::null());
    command.status().unwrap().success()
}

/// Runs `tenure` behind a program that gives it another world.
fn within(stage: &Stage, outer: &[&str], arguments: &[&str]) -> Ended {
    let tenure = stage.command(arguments);
    let mut command = stage.program(outer[0]);
    command.args(&outer[1..]).arg(tenure.get_program()).args(tenure.get_args());
    stage.run_command(command)
}

/// L1: leases were counted by the boot clock of the process, which a time namespace shifts: what had an hour to go outside
/// was over a day ago inside. The offset is taken off now.
#[test]
fn a_time_namespace_sees_the_same_leases() {
    let stage = Stage::new();
    let held = stage.run(&["lock", "job", "--ttl", "60s"]);
    held.silent_but(0);
    for seconds in ["86400", "-1"] {
        let world = ["-T", "--boottime", seconds, "--fork"];
        if !may(&world) {
            // Where the kernel forbids it there is only one world, and the lock is held in it.
            stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
            continue;
        }
        let outer = [&["unshare"], &world[..]].concat();
        within(&stage, &outer, &["run", "-n", "job", "--", "true"]).complained(1, "held by");
        let doctor = within(&stage, &outer, &["doctor"]);
        assert!(doctor.out.contains("boot clock of its own"), "{doctor:?}");
    }
}

/// L1: the same with another boot id, as some containers have: the lease outlives the newcomer's first look.
#[test]
fn another_boot_id_sees_the_same_leases() {
    let stage = Stage::new();
    stage.run(&["lock", "job", "--ttl", "60s"]).silent_but(0);
    fs::write(stage.path("id"), "00000000-0000-4000-8000-000000000001\n").unwrap();
    let world = ["-m", "sh", "-c", "mount --bind id /proc/sys/kernel/random/boot_id && exec \"$@\"", "sh"];
    if may(&["-m"]) {
        let outer = [&["unshare"], &world[..]].concat();
        within(&stage, &outer, &["run", "-n", "job", "--", "true"]).complained(1, "held by");
    }
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
}

/// L1: a bind mount of the file alone has its log elsewhere, so both sides were granted. It is refused, also by `doctor`.
#[test]
fn a_mount_of_the_file_alone_is_refused() {
    let stage = Stage::new();
    stage.run(&["lock", "job", "--ttl", "60s"]).silent_but(0);
    fs::create_dir(stage.path("volume")).unwrap();
    fs::write(stage.path("volume/locks.db"), "").unwrap();
    let mount = "mount --bind .local/state/tenure/locks.db volume/locks.db && exec \"$@\"";
    let outer = ["unshare", "-m", "sh", "-c", mount, "sh"];
    if may(&["-m"]) {
        for verb in [
            &["run", "job", "--url", "sqlite:volume/locks.db", "--", "true"][..],
            &["doctor", "--url", "sqlite:volume/locks.db"],
        ] {
            let ended = within(&stage, &outer, verb);
            assert!(ended.code != 0 && format!("{ended:?}").contains("mount its directory"), "{ended:?}");
        }
    }
    assert!(!stage.path("volume/locks.db-wal").exists(), "no log beside the mount");
    stage.run(&["run", "-n", "job", "--", "true"]).complained(1, "held by");
}

/// What the default makes is for this user alone; what is there keeps its mode.
#[test]
fn the_state_directory_is_private() {
    let stage = Stage::new();
    fs::remove_dir_all(stage.path(".local")).unwrap();
    let mut command = stage.command(&["run", "-q", "hello", "--", "true"]);
    command.env_remove("TENURE_URL");
    stage.run_command(command).silent(0);
    let mode = |path: &str| fs::metadata(stage.path(path)).unwrap().mode() & 0o777;
    let state = ".local/state/tenure";
    assert_eq!([mode(state), mode(&format!("{state}/locks.db"))], [0o700, 0o600]);
}

impl Ended {
    #[track_caller]
    fn silent_but(&self, code: i32) {
        assert_eq!((self.code, self.err.as_str()), (code, ""), "{self:?}");
    }
}
