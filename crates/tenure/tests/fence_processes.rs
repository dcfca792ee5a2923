//! A fenced file among processes: many at once, and killed at any moment.

#![allow(clippy::disallowed_methods, reason = "real processes live in real time")]

use std::{
    env, fs,
    os::unix::process::parent_id,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tenure::{
    FencingToken,
    fence::{FencedFile, FileError, Pass},
};
use tenure_testkit::patience::eventually;

/// Tells a process of this very program that it is a writer, and where.
const FILE: &str = "FENCE_TEST_FILE";
/// The first token that a writer shows, and how far it is to the next one.
const FIRST: &str = "FENCE_TEST_FIRST";
const STEP: &str = "FENCE_TEST_STEP";

/// A writer that dies with the test.
struct Writer(Child);

impl Writer {
    /// This program, with nothing but this test, which will find that it is a writer.
    fn start(test: &str, file: &Path, first: u64, step: u64) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        // The name of a test begins with its file, which stands in a program's path behind the program.
        let (_, ours) = module_path!().split_once("::").unwrap();
        let test = format!("{ours}::{test}");
        command.args(["--exact", &test, "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::null());
        command.env(FILE, file).env(FIRST, first.to_string()).env(STEP, step.to_string());
        Self(command.spawn().unwrap())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number(variable: &str) -> u64 {
    env::var(variable).unwrap().parse().unwrap()
}

/// What is in the file, which is the token that it was written with; 0 if there is nothing yet.
fn written(file: &FencedFile) -> u64 {
    let data = file.read().unwrap().unwrap_or_default();
    String::from_utf8(data).unwrap().lines().next().map_or(0, |line| line.parse().unwrap())
}

/// Long enough that half of it could be told from the whole.
fn content(token: u64) -> Vec<u8> {
    format!("{token}\n").repeat(2000).into_bytes()
}

/// L3: whatever moment a writer is killed at, the mark is no smaller than the token of the data, and the data is whole.
#[test]
fn a_writer_that_is_killed_at_any_moment_leaves_no_new_data_under_an_old_mark() {
    let test = "a_writer_that_is_killed_at_any_moment_leaves_no_new_data_under_an_old_mark";
    if let Some(path) = env::var_os(FILE) {
        let file = FencedFile::new(path);
        let (parent, mut token) = (parent_id(), number(FIRST));
        // Until it is killed, or its test is.
        while parent_id() == parent {
            file.write(Pass::exclusive(FencingToken::new(token)), &content(token)).unwrap();
            token += number(STEP);
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report");
    let file = FencedFile::new(&path);
    for round in 1..=25 {
        let (before, old) = (file.mark().unwrap(), written(&file));
        let writer = Writer::start(test, &path, before + 1, 1);
        eventually("the writer writes", Duration::from_secs(20), || {
            (file.mark().unwrap() > before).then_some(())
        });
        thread::sleep(Duration::from_micros(round * 173));
        writer.kill();
        let (mark, data) = (file.mark().unwrap(), written(&file));
        assert!(old <= data && data <= mark, "data of {data} under a mark of {mark}, after {old}");
        if data > 0 {
            assert_eq!(file.read().unwrap().unwrap(), content(data), "half a write");
        }
        let late = Pass::exclusive(FencingToken::new(mark - 1));
        assert!(matches!(file.write(late, b"late"), Err(FileError::Refused(_))));
    }
}

/// L3: among writers that all believe they hold, with tokens that are mixed, the file never goes back.
#[test]
fn among_many_writers_the_file_never_goes_back() {
    if let Some(path) = env::var_os(FILE) {
        let (file, mut refused) = (FencedFile::new(path), 0);
        for turn in 0..40 {
            let token = number(FIRST) + turn * number(STEP);
            match file.write(Pass::exclusive(FencingToken::new(token)), &content(token)) {
                Ok(()) => {}
                Err(FileError::Refused(by)) => {
                    assert!(by.mark > token);
                    refused += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        fs::write(format!("{}.{}", file.path().display(), number(FIRST)), refused.to_string()).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report");
    let file = FencedFile::new(&path);
    let test = "among_many_writers_the_file_never_goes_back";
    let mut writers: Vec<Writer> = (1..=4).map(|first| Writer::start(test, &path, first, 4)).collect();
    let (mut last, mut seen) = (0, 0);
    eventually("all writers are done", Duration::from_secs(60), || {
        let now = written(&file);
        assert!(now >= last, "{now} after {last}");
        (last, seen) = (now, seen + 1);
        writers.iter_mut().all(|writer| writer.0.try_wait().unwrap().is_some()).then_some(())
    });
    assert!(writers.iter_mut().all(|writer| writer.0.wait().unwrap().success()));
    assert_eq!((written(&file), file.mark().unwrap()), (160, 160));
    let refused = |first: u64| fs::read_to_string(format!("{}.{first}", path.display())).unwrap();
    let refused: Vec<u64> = (1..=4).map(|first| refused(first).parse().unwrap()).collect();
    assert!(seen > 1 && refused.iter().sum::<u64>() < 160, "{refused:?}");
}

/// L3: among writers of which one after another is killed, the file never goes back, is whole, and is written on.
#[test]
fn among_writers_that_are_killed_the_file_never_goes_back() {
    let test = "among_writers_that_are_killed_the_file_never_goes_back";
    if let Some(path) = env::var_os(FILE) {
        let (file, parent) = (FencedFile::new(path), parent_id());
        while parent_id() == parent {
            // Near the mark, so that some are refused and most are not.
            let token = file.mark().unwrap() + number(FIRST);
            match file.write(Pass::exclusive(FencingToken::new(token)), &content(token)) {
                Ok(()) | Err(FileError::Refused(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report");
    let file = FencedFile::new(&path);
    let mut writers: Vec<Writer> = (1..=3).map(|first| Writer::start(test, &path, first, 1)).collect();
    let mut last = 0;
    for round in 1..=20 {
        let before = file.mark().unwrap();
        eventually("somebody writes", Duration::from_secs(20), || {
            (file.mark().unwrap() > before + 3).then_some(())
        });
        thread::sleep(Duration::from_micros(round * 211));
        writers.remove(0).kill();
        let data = file.read().unwrap().unwrap_or_default();
        let token = String::from_utf8(data.clone()).unwrap().lines().next().unwrap().parse().unwrap();
        assert!(last <= token && token <= file.mark().unwrap(), "{token} after {last}");
        assert_eq!(data, content(token), "half a write");
        last = token;
        writers.push(Writer::start(test, &path, 1 + round % 3, 1));
    }
    drop(writers);
    let late = Pass::exclusive(FencingToken::new(last - 1));
    assert!(matches!(file.write(late, b"late"), Err(FileError::Refused(_))));
    // What the killed ones left goes with the next write.
    file.write(Pass::exclusive(FencingToken::new(last + 100)), b"end").unwrap();
    let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["report", "report.lock", "report.mark"]);
}
