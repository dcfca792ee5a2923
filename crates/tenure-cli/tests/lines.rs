//! What is printed comes in whole lines, so that lines of several processes on one pipe are not mixed.

use std::{
    os::fd::AsRawFd,
    process::Stdio,
    sync::{Arc, Mutex},
    thread,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair},
    },
    unistd::Pid,
};
use tenure_testkit::patience::eventually;

use crate::stage::{PATIENCE, Stage, files::HOLD};

/// What a pipe keeps whole.
const MOST: usize = 4096;

/// A standard output or error that keeps each write apart.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<Vec<String>>>);

impl Writes {
    /// What a process gets as its standard output or error.
    fn end(&self) -> Stdio {
        let (unix, packets) = (AddressFamily::Unix, SockType::SeqPacket);
        let (reader, end) = socketpair(unix, packets, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let writes = self.0.clone();
        thread::spawn(move || {
            let mut write = vec![0; 1 << 20];
            while let Ok(length @ 1..) = recv(reader.as_raw_fd(), &mut write, MsgFlags::empty()) {
                writes.lock().unwrap().push(String::from_utf8(write[..length].to_vec()).unwrap());
            }
        });
        Stdio::from(end)
    }

    /// The number of lines, each of which was whole in a write that a pipe keeps whole.
    #[track_caller]
    fn lines(&self, what: &[&str]) -> usize {
        let writes = self.0.lock().unwrap();
        for write in &*writes {
            assert!(
                write.ends_with('\n') && write.len() <= MOST,
                "{what:?}: {} bytes: {write:?}",
                write.len()
            );
        }
        writes.concat().lines().count()
    }
}

/// Runs `tenure` to its end, which comes by itself or when it has written so many lines; how many lines it wrote to its standard
/// output and error.
#[track_caller]
fn lines(stage: &Stage, arguments: &[&str], enough: Option<usize>) -> (usize, usize) {
    let (out, err) = (Writes::default(), Writes::default());
    let mut command = stage.command(arguments);
    let mut child = command.stdin(Stdio::null()).stdout(out.end()).stderr(err.end()).spawn().unwrap();
    // It has the other ends as well.
    drop(command);
    if let Some(enough) = enough {
        eventually("it has written", PATIENCE, || (out.lines(arguments) >= enough).then_some(()));
        kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    }
    eventually("it ends", PATIENCE, || child.try_wait().unwrap());
    eventually("all is read", PATIENCE, || {
        [&out, &err].iter().all(|end| Arc::strong_count(&end.0) == 1).then_some(())
    });
    (out.lines(arguments), err.lines(arguments))
}

/// Eight processes that were refused at once and shared their standard error, as that of a job of CI, wrote into each other's
/// lines: each line was some sixty writes. A list of more than a dozen locks was longer than what a pipe keeps whole.
#[test]
fn a_line_is_one_write() {
    let stage = Stage::new();
    let long = "n".repeat(512);
    let _holder = stage.start(&["run", &long, "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let locks = 40;
    for number in 1..locks {
        stage.run(&["lock", &format!("job/{number}"), "--ttl", "1h"]);
    }
    for (arguments, expected) in [
        (&["run", "-n", &long, "--", "true"][..], (0, 1)),
        (&["run", "job", "--", "nosuchprogram"], (0, 1)),
        (&["run", "--nosuch"], (0, 1)),
        (&["--version"], (1, 0)),
        (&["ls"], (locks + 1, 0)),
        (&["ls", "--json"], (locks, 0)),
        (&["show", &long], (3, 0)),
        (&["show", "--json", &long], (1, 0)),
        (&["lock", "another", "--ttl", "1m"], (1, 0)),
        (&["break", "another"], (1, 0)),
        (&["doctor", "-q", "--json"], (1, 0)),
        // With a line about a build with all checks.
        (
            &["bench", "-q", "--duration", "100ms", "--waiters", "2"],
            (6 + usize::from(cfg!(debug_assertions)), 0),
        ),
        (&["bench", "-q", "--duration", "100ms", "--waiters", "2", "--json"], (1, 0)),
    ] {
        assert_eq!(lines(&stage, arguments, None), expected, "{arguments:?}");
    }
    assert!(lines(&stage, &["run", "--help"], None).0 > 10);
    lines(&stage, &["watch", "-q", "job/"], Some(locks - 1));
    // The logs.
    let _hog = stage.hog();
    assert!(lines(&stage, &["-vvv", "run", "-w", "500ms", "job", "--", "true"], None).1 > 1);
}
