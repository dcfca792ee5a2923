//! Signals that were ignored or blocked at the start, and a limit on the size of files.

#![cfg(target_os = "linux")]

use crate::stage::{Stage, process::Ended};

/// Becomes a program with these signals ignored, and with those blocked.
const BEQUEATH: &str =
    "use POSIX; my ($ignored, $blocked) = (shift, shift); $SIG{$_} = 'IGNORE' for split ',', $ignored;
    my @blocked = map { eval \"SIG$_\" } split ',', $blocked;
    sigprocmask(SIG_BLOCK, POSIX::SigSet->new(@blocked)) if @blocked; exec @ARGV";

/// The line of `/proc/self/status` with this key, as a command shows it.
fn mask(ended: &Ended, key: &str) -> u64 {
    let line =
        ended.out.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{ended:?}"));
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// PIPE was default in the command, and once what `tenure` needs for itself was changed it would have been so for others. Only
/// CHLD, without which `tenure` would not hear of the command's end, is default there.
#[test]
fn the_command_has_the_signals_that_tenure_was_started_with() {
    let stage = Stage::new();
    let show = ["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"];
    let chld = 1 << (nix::sys::signal::SIGCHLD as i32 - 1);
    // Signals of the C library, which ignores them in what `posix_spawn` starts.
    let own = 0b11 << 31;
    for (ignored, blocked) in [
        ("", ""),
        ("PIPE", ""),
        ("XFSZ,TTOU,TTIN,TSTP,HUP,INT,QUIT,TERM,PIPE,USR1,CHLD", ""),
        ("", "XFSZ,TTOU,USR1,PIPE"),
        ("XFSZ,TTOU", "XFSZ,TTOU"),
        ("PIPE", "TTOU"),
    ] {
        let start = |program: Vec<String>| {
            let mut command = stage.program("perl");
            command.args(["-e", BEQUEATH, ignored, blocked]).args(program);
            let ended = stage.run_command(command);
            assert_eq!(ended.code, 0, "{ended:?}");
            ended
        };
        let alone = start(show.map(str::to_owned).to_vec());
        let tenure = [&[env!("CARGO_BIN_EXE_tenure"), "run", "job", "--"], &show[..]].concat();
        let under = start(tenure.into_iter().map(str::to_owned).collect());
        for (key, but) in [("SigBlk:", 0), ("SigIgn:", chld | own)] {
            let [alone, under] = [&alone, &under].map(|ended| mask(ended, key) & !but);
            assert_eq!(under, alone, "{key} {under:x} {alone:x}, ignored {ignored}, blocked {blocked}");
        }
    }
}

/// A file at its limit was a death by XFSZ: of the store, or that for the output. It is an error; for the command it is what it was.
#[test]
fn a_file_at_its_limit_is_an_error() {
    let stage = Stage::new();
    let limited = |stage: &Stage, limit: u32, arguments: &[&str]| {
        let mut shell = stage.program("sh");
        shell.args(["-c", &format!("ulimit -f {limit}; exec \"$@\""), "sh"]);
        shell.arg(env!("CARGO_BIN_EXE_tenure")).args(arguments);
        stage.run_command(shell)
    };
    limited(&stage, 1, &["run", "-n", "job", "--", "touch", "ran"]).complained(69, "disk");
    limited(&stage, 0, &["--version"]).mute(70);
    limited(&stage, 0, &["run", "--nosuch"]).mute(64);
    assert!(!stage.path("ran").exists());
    assert_eq!(stage.run(&["run", "job", "--", "sh", "-c", "ulimit -f 0; echo x >full"]).code, 153);
    // The step between `tenure` and the command has something to say, too.
    limited(&Stage::on_redis(), 0, &["run", "job", "--", "./nosuch"]).mute(127);
}
