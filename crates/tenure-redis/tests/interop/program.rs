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

/// A lock library that is not in Rust, and the program here that speaks for it.
pub(crate) struct Language {
    pub(crate) library: &'static str,
    pub(crate) interpreter: &'static str,
    pub(crate) program: &'static str,
    /// Where `cargo xtask test` puts the library, below `clients` in the target folder.
    pub(crate) folder: &'static str,
    /// What the interpreter finds the library by, and where that is in `folder`.
    pub(crate) search: (&'static str, &'static str),
    /// The versions that are meant.
    pub(crate) pins: &'static str,
}

pub(crate) const PYTHON: Language = Language {
    library: "redis-py",
    interpreter: "python3",
    program: "contender.py",
    folder: "python",
    search: ("PYTHONPATH", ""),
    pins: include_str!("requirements.txt"),
};

pub(crate) const NODE: Language = Language {
    library: "redlock",
    interpreter: "node",
    program: "contender.cjs",
    folder: "node",
    search: ("NODE_PATH", "node_modules"),
    pins: include_str!("package-lock.json"),
};

/// A running one. It ends with the test.
pub(crate) struct Program {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    what: &'static str,
}

impl Program {
    pub(crate) fn start(language: &Language, port: u16) -> Self {
        let (variable, below) = language.search;
        let mut child = Command::new(language.interpreter)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(language.program))
            .arg(port.to_string())
            .env(variable, provided(language).join(below))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("cannot start {}: {error}; run `cargo xtask test`", language.interpreter)
            });
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // OK because nobody listens only when the test is over.
                let _ = send.send(line);
            }
        });
        let program = Self { child, input, lines, what: language.library };
        assert_eq!(program.answer(Duration::ZERO), "ready");
        program
    }

    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.input, "{order}").unwrap();
    }

    /// Its next line, if it may work for so long.
    pub(crate) fn answer(&self, work: Duration) -> String {
        let answer = self.lines.recv_timeout(work + PATIENCE * slowness());
        answer.unwrap_or_else(|error| panic!("{} says nothing: {error}", self.what))
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer(Duration::ZERO)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder with the library, in the versions that are meant. Never skipped: a test that does not meet its client
/// shows nothing.
fn provided(language: &Language) -> PathBuf {
    // Cargo's folder for the files of tests lies in the target folder.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let folder = target.join("clients").join(language.folder);
    let there = fs::read_to_string(folder.join("pins")).unwrap_or_default();
    assert!(
        there == language.pins,
        "{} is not there in the version that is pinned: run `cargo xtask test`, which puts it into {}",
        language.library,
        folder.display()
    );
    folder
}
