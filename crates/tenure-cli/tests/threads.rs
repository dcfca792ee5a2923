//! Where the system gives no thread: an error at once, and nothing left behind.

#![cfg(target_os = "linux")]

use crate::stage::{Stage, process::Ended};

impl Stage {
    /// Runs `tenure` where it can start processes, but no thread: those of a process share its namespace of pids.
    fn threadless(&self, arguments: &[&str]) -> Ended {
        let tenure = self.command(arguments);
        let mut command = self.program("unshare");
        // Only root may do so without a namespace of users.
        let how: &[&str] = if nix::unistd::geteuid().is_root() { &["-p"] } else { &["-r", "-p"] };
        command.args(how).arg(tenure.get_program()).args(tenure.get_args());
        self.run_command(command)
    }
}

/// L8, H2.5: `unshare -p tenure run` could start its command, but not the thread that renews. It was granted the lock, said
/// nothing, renewed nothing, was deaf to TERM and hung for ever.
#[test]
fn without_a_thread_that_renews_nothing_is_run() {
    let stage = Stage::new();
    for arguments in [
        &["run", "job", "--", "touch", "ran"][..],
        &["run", "-n", "-s", "job", "--", "touch", "ran"],
        &["run", "--slots", "2", "job", "--", "touch", "ran"],
        &["lock", "job", "--ttl", "60s"],
    ] {
        // What runs a command starts another process first, which is the first of a PID namespace.
        let why =
            if arguments[0] == "run" { "another PID namespace" } else { "the thread that renews leases" };
        stage.threadless(arguments).complained(70, why);
    }
    assert!(!stage.path("ran").exists());
    assert!(stage.run(&["show", "job"]).out.starts_with("job is free"));
    assert_eq!(stage.run(&["run", "-n", "job", "--", "touch", "ran"]).code, 0);
}
