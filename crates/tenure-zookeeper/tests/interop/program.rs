//! A client in another language: a process that is told line by line what to do.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use tenure_testkit::patience::slowness;

use crate::stage::PATIENCE;

/// One that locks with kazoo. It ends with the test.
pub(crate) struct Kazoo {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Kazoo {
    pub(crate) fn start(address: &str) -> Self {
        let mut child = Command::new("python3")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/contender.py"))
            .arg(address)
            .env("PYTHONPATH", provided())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start python3: {error}; run `cargo xtask test`"));
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // OK because nobody listens only when the test is over.
                let _ = send.send(line);
            }
        });
        let program = Self { child, input, lines };
        assert_eq!(program.answer(Duration::ZERO), "ready");
        program
    }

    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.input, "{order}").unwrap();
    }

    /// Its next line, if it may work for so long.
    pub(crate) fn answer(&self, work: Duration) -> String {
        let answer = self.lines.recv_timeout(work + PATIENCE * slowness());
        answer.unwrap_or_else(|error| panic!("kazoo says nothing: {error}"))
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer(Duration::ZERO)
    }
}

impl Drop for Kazoo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder with the library, in the version that is meant. Never skipped: a test that does not meet its client shows
/// nothing.
fn provided() -> PathBuf {
    // Cargo's folder for the files of tests lies in the target folder.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let folder = target.join("clients/kazoo");
    let there = fs::read_to_string(folder.join("pins")).unwrap_or_default();
    assert!(
        there == include_str!("requirements.txt"),
        "kazoo is not there in the version that is pinned: run `cargo xtask test`, which puts it into {}",
        folder.display()
    );
    folder
}
