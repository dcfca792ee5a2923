//! A fenced file: who is let in, and what a crash leaves.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process::Command,
    thread,
    time::Duration,
};

use fork::{Fork, fork};
use nix::{
    sys::{
        signal::{self, Signal},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tempfile::TempDir;
use tenure::{
    FencingToken,
    fence::{FencedFile, FileError, Pass},
};
use tenure_testkit::patience::eventually;

const FORMER: Pass = Pass::exclusive(FencingToken::new(7));
const LATER: Pass = Pass::exclusive(FencingToken::new(8));

/// A folder with one fenced file in it.
struct Shelf {
    folder: TempDir,
    file: FencedFile,
}

impl Shelf {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = FencedFile::new(folder.path().join("report"));
        Self { folder, file }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self) -> String {
        String::from_utf8(self.file.read().unwrap().unwrap_or_default()).unwrap()
    }

    /// What is in the folder, in order.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[track_caller]
fn assert_refused(answer: Result<(), FileError>, token: Pass, mark: u64) {
    match answer {
        Err(FileError::Refused(refused)) => assert_eq!((refused.token, refused.mark), (token.token(), mark)),
        other => panic!("not refused: {other:?}"),
    }
}

/// L3: also after `break`, when two believe that they hold; and a guard's pass is that of its mode.
#[tokio::test]
async fn the_late_write_of_a_robbed_holder_is_refused_and_changes_nothing() {
    let shelf = Shelf::new();
    let locks = tenure::connect("memory:").await.unwrap();
    let robbed = locks.mutex("report").acquire().await.unwrap();
    shelf.file.write(robbed.pass(), b"first").unwrap();
    locks.force_release(robbed.name()).await.unwrap();
    let holder = locks.mutex("report").acquire().await.unwrap();
    shelf.file.write(Pass::from(&holder), b"second").unwrap();
    assert_refused(shelf.file.write(robbed.pass(), b"late"), robbed.pass(), holder.token().get());
    assert_refused(shelf.file.touch(robbed.pass()), robbed.pass(), holder.token().get());
    assert_refused(shelf.file.update(robbed.pass(), |_| b"late".into()), robbed.pass(), holder.token().get());
    assert_eq!(shelf.text(), "second");
    shelf.file.write(holder.pass(), b"third").unwrap();
    assert_eq!(shelf.text(), "third", "the same token goes on");
    assert_eq!(shelf.file.mark().unwrap(), holder.token().get());
    assert_eq!(shelf.names(), ["report", "report.lock", "report.mark"]);
}

/// Hazard 50, H6.2: in one register that everybody raises, the permit that came first would be refused for being first.
#[tokio::test]
async fn holders_of_a_shared_lock_write_in_any_order_until_an_exclusive_one_was_there() {
    let shelf = Shelf::new();
    let locks = tenure::connect("memory:").await.unwrap();
    let (first, second) = (locks.semaphore("report", 2), locks.semaphore("report", 2));
    let (first, second) = (first.acquire().await.unwrap(), second.acquire().await.unwrap());
    assert!(first.token() < second.token());
    shelf.file.write(second.pass(), b"second").unwrap();
    shelf.file.write(first.pass(), b"first").unwrap();
    assert_eq!((shelf.text().as_str(), shelf.file.mark().unwrap()), ("first", 0));
    locks.force_release(second.name()).await.unwrap();
    let writer = locks.rwlock("report").write().acquire().await.unwrap();
    shelf.file.touch(writer.pass()).unwrap();
    assert_refused(shelf.file.write(first.pass(), b"late"), first.pass(), writer.token().get());
    writer.release().await.unwrap();
    let reader = locks.rwlock("report").read().acquire().await.unwrap();
    assert!(!reader.pass().raises());
    shelf.file.touch(reader.pass()).unwrap();
    assert!(shelf.file.mark().unwrap() < reader.token().get(), "a reader raises nothing");
}

/// Hazard 51: the check is atomic with the write, and still an update is lost if the mark was not raised before the read.
#[test]
fn who_touches_before_the_first_read_loses_no_update() {
    let naive = Shelf::new();
    naive.file.write(FORMER, b"1").unwrap();
    let read = naive.text();
    naive.file.write(FORMER, b"2").unwrap();
    naive.file.write(LATER, format!("{read}, and mine").as_bytes()).unwrap();
    assert_eq!(naive.text(), "1, and mine", "the 2 was accepted and is lost");

    let shelf = Shelf::new();
    shelf.file.write(FORMER, b"1").unwrap();
    shelf.file.touch(LATER).unwrap();
    let read = shelf.text();
    assert_refused(shelf.file.write(FORMER, b"2"), FORMER, 8);
    shelf.file.write(LATER, format!("{read}, and mine").as_bytes()).unwrap();
    assert_eq!(shelf.text(), "1, and mine", "and nobody was told otherwise");
}

/// L3: a crash after the mark was raised and before the data is there leaves the old data. What was half written is in
/// nobody's way.
#[test]
fn a_write_that_ends_between_mark_and_data_leaves_the_old_data_under_a_raised_mark() {
    let shelf = Shelf::new();
    shelf.file.write(FORMER, b"old").unwrap();
    // It ends where the new data would be made.
    let ended = catch_unwind(AssertUnwindSafe(|| shelf.file.update(LATER, |_| panic!("a crash"))));
    assert!(ended.is_err());
    assert_eq!((shelf.text().as_str(), shelf.file.mark().unwrap()), ("old", 8));
    assert_refused(shelf.file.write(FORMER, b"late"), FORMER, 8);

    for left in ["report.tenure-new", "report.mark.tenure-new"] {
        fs::write(shelf.path(left), "half of someth").unwrap();
    }
    shelf.file.write(LATER, b"new").unwrap();
    shelf.file.touch(Pass::exclusive(FencingToken::new(9))).unwrap();
    assert_eq!((shelf.text().as_str(), shelf.file.mark().unwrap()), ("new", 9));
    assert_eq!(shelf.names(), ["report", "report.lock", "report.mark"]);
}

/// L3: the mark is raised first. If it cannot be, there is no new data.
#[test]
fn no_data_is_written_under_a_mark_that_could_not_be_raised() {
    // A name so long that the mark's file may have it, but not what is to replace the mark.
    let (name, folder) = ("n".repeat(244), tempfile::tempdir().unwrap());
    let file = FencedFile::new(folder.path().join(&name));
    let text = || String::from_utf8(file.read().unwrap().unwrap()).unwrap();
    fs::write(folder.path().join(name + ".mark"), "7\n").unwrap();
    file.write(FORMER, b"old").unwrap();
    assert!(matches!(file.write(LATER, b"new"), Err(FileError::Io { .. })));
    assert_eq!((text().as_str(), file.mark().unwrap()), ("old", 7));
    file.write(FORMER, b"goes on").unwrap();
    assert_eq!(text(), "goes on");
}

#[test]
fn a_mark_that_is_no_number_refuses_everybody() {
    for garbage in
        [&b""[..], b"8", b"eight\n", b"-1\n", b"+8\n", b"8\n8\n", b"99999999999999999999\n", b"\xff\n"]
    {
        let shelf = Shelf::new();
        shelf.file.write(FORMER, b"old").unwrap();
        fs::write(shelf.path("report.mark"), garbage).unwrap();
        let refused = shelf.file.write(LATER, b"new").unwrap_err();
        assert!(matches!(refused, FileError::Damaged { .. }), "{garbage:?}: {refused:?}");
        assert!(refused.to_string().contains("report.mark: holds no token; write"), "{refused}");
        assert!(matches!(shelf.file.touch(Pass::shared(LATER.token())), Err(FileError::Damaged { .. })));
        assert_eq!(shelf.text(), "old");
        assert_eq!(fs::read(shelf.path("report.mark")).unwrap(), garbage);
    }
}

#[test]
fn links_and_folders_are_refused_and_nothing_is_made() {
    for name in ["report", "report.mark", "report.lock"] {
        let (linked, folder) = (Shelf::new(), Shelf::new());
        fs::write(linked.path("target"), "theirs").unwrap();
        symlink(linked.path("target"), linked.path(name)).unwrap();
        fs::create_dir(folder.path(name)).unwrap();
        for shelf in [linked, folder] {
            let before = shelf.names();
            for answer in [shelf.file.write(LATER, b"new"), shelf.file.touch(LATER)] {
                let refused = answer.unwrap_err();
                assert!(
                    matches!(&refused, FileError::NotAFile { path } if path.ends_with(name)),
                    "{refused:?}"
                );
            }
            assert_eq!(shelf.names(), before);
        }
    }
}

#[test]
fn a_folder_that_is_not_there_is_an_error_that_names_the_path() {
    let shelf = Shelf::new();
    let file = FencedFile::new(shelf.path("nowhere/report"));
    let FileError::Io { path, error, .. } = file.write(LATER, b"new").unwrap_err() else {
        panic!("no folder")
    };
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(path.starts_with(shelf.path("nowhere")));
    assert_eq!((file.read().unwrap(), file.mark().unwrap()), (None, 0));
    assert!(shelf.names().is_empty());
}

#[test]
fn a_file_keeps_its_permissions_and_may_have_been_there_before() {
    let shelf = Shelf::new();
    fs::write(shelf.path("report"), "before").unwrap();
    for mode in [0o600, 0o640, 0o664] {
        fs::set_permissions(shelf.path("report"), fs::Permissions::from_mode(mode)).unwrap();
        shelf.file.update(FORMER, |old| [&old.unwrap()[..], b"+"].concat()).unwrap();
        let found = fs::metadata(shelf.path("report")).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{found:o}");
    }
    assert_eq!(shelf.text(), "before+++");
}

/// All permission bits were copied onto a file that belonged to whoever wrote last: from a set-id file of `nobody`, one write
/// of root's made a set-id file of root's.
#[test]
fn a_file_keeps_its_owner_and_loses_its_set_id_bits() {
    for writes in
        [FencedFile::write, |file: &FencedFile, pass, data: &[u8]| file.update(pass, |_| data.into())]
    {
        let shelf = Shelf::new();
        fs::write(shelf.path("report"), "before").unwrap();
        let ours = fs::metadata(shelf.path("report")).unwrap();
        // Only root can have a file of somebody else to begin with.
        let (uid, gid) = if ours.uid() == 0 { (65_534, 65_534) } else { (ours.uid(), ours.gid()) };
        chown(shelf.path("report"), Some(uid), Some(gid)).unwrap();
        fs::set_permissions(shelf.path("report"), fs::Permissions::from_mode(0o6755)).unwrap();
        writes(&shelf.file, LATER, b"after").unwrap();
        let found = fs::metadata(shelf.path("report")).unwrap();
        assert_eq!(
            (found.uid(), found.gid(), found.mode() & 0o7777),
            (uid, gid, 0o755),
            "{:o}",
            found.mode()
        );
        assert_eq!(shelf.text(), "after");
    }
}

/// A folder that stood where the draft is made kept everybody from writing; a link there is not followed.
#[test]
fn what_stands_in_the_way_of_a_draft_is_passed_by() {
    for planted in ["report.tenure-new", "report.mark.tenure-new"] {
        let (folder, linked) = (Shelf::new(), Shelf::new());
        fs::create_dir_all(folder.path(planted).join("in it")).unwrap();
        fs::write(linked.path("victim"), "precious").unwrap();
        symlink("victim", linked.path(planted)).unwrap();
        for shelf in [&folder, &linked] {
            shelf.file.write(LATER, b"new").unwrap();
            assert_eq!((shelf.text().as_str(), shelf.file.mark().unwrap()), ("new", 8));
        }
        assert_eq!(fs::read(linked.path("victim")).unwrap(), b"precious");
        let mut expected = ["report", "report.lock", "report.mark", planted];
        expected.sort_unstable();
        assert_eq!(folder.names(), expected);
        assert_eq!(linked.names(), ["report", "report.lock", "report.mark", "victim"]);
    }
}

/// A link was refused by those who write and followed by those who read: `update` read what it led to, if it came between
/// the look and the use.
#[test]
fn no_link_is_followed_to_read() {
    let shelf = Shelf::new();
    fs::write(shelf.path("victim"), "8\n").unwrap();
    for name in ["report", "report.mark"] {
        symlink("victim", shelf.path(name)).unwrap();
    }
    for refused in [shelf.file.read().unwrap_err(), shelf.file.mark().unwrap_err()] {
        assert!(matches!(refused, FileError::NotAFile { .. }), "{refused:?}");
    }
}

/// A pipe in place of the data held up whoever read it, for ever.
#[test]
fn a_pipe_is_not_waited_for() {
    let shelf = Shelf::new();
    let made = Command::new("mkfifo").arg(shelf.path("report")).status().unwrap();
    assert!(made.success());
    assert!(matches!(shelf.file.read(), Err(FileError::NotAFile { .. })));
    assert!(matches!(shelf.file.write(LATER, b"new"), Err(FileError::NotAFile { .. })));
}

/// Co-holders are not fenced from each other, but `update` is one step for all who take it.
#[test]
fn updates_of_co_holders_are_one_after_another() {
    let shelf = Shelf::new();
    thread::scope(|scope| {
        for token in 1..=4 {
            let file = shelf.file.clone();
            scope.spawn(move || {
                let pass = Pass::shared(FencingToken::new(token));
                for _ in 0..10 {
                    file.update(pass, |old| [&old.unwrap_or_default()[..], b"+"].concat()).unwrap();
                }
            });
        }
    });
    assert_eq!(shelf.text(), "+".repeat(40));
}

/// L3: a lock on a file that was removed keeps nobody out: whoever waited for it waits again, for the one that is there.
#[cfg(target_os = "linux")]
#[test]
fn who_waited_for_a_lock_that_was_removed_waits_for_the_one_that_took_its_place() {
    let shelf = Shelf::new();
    let place = shelf.path("report.lock");
    let locked = || {
        let file = fs::File::create(&place).unwrap();
        file.lock().unwrap();
        file
    };
    // The kernel's list has a line with an arrow for each waiter, and the inode behind the second colon.
    let awaited = |file: &fs::File| {
        let inode = format!(":{} ", file.metadata().unwrap().ino());
        eventually("somebody waits for the lock", Duration::from_secs(20), || {
            let list = fs::read_to_string("/proc/locks").unwrap();
            list.lines().any(|line| line.contains("->") && line.contains(&inode)).then_some(())
        });
    };
    let removed = locked();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| shelf.file.touch(LATER).unwrap());
        awaited(&removed);
        fs::remove_file(&place).unwrap();
        let there = locked();
        drop(removed);
        awaited(&there);
        assert_eq!(shelf.file.mark().unwrap(), 0);
        drop(there);
        waiter.join().unwrap();
    });
    assert_eq!(shelf.file.mark().unwrap(), 8);
}

/// A child that was forked while another thread wrote kept the lock with its copy of the open file: every later write of another
/// process waited for its end. And one that goes on inside the call would write beside its parent.
#[test]
fn a_forked_child_keeps_no_other_process_waiting_and_writes_nothing() {
    let shelf = Shelf::new();
    let mut child = None;
    let written = shelf.file.update(FORMER, |_| match fork().unwrap() {
        Fork::Child => b"of the child".to_vec(),
        Fork::Parent(pid) => {
            child = Some(Pid::from_raw(pid));
            b"of the parent".to_vec()
        }
    });
    let Some(child) = child else {
        // It is refused, and lives on with what it has; it never returns into the test.
        if written.is_ok() {
            signal::kill(Pid::this(), Signal::SIGABRT).unwrap();
        }
        loop {
            thread::park();
        }
    };
    written.unwrap();
    let other = FencedFile::new(shelf.file.path());
    let writing = thread::spawn(move || other.write(LATER, b"later"));
    eventually("the next one writes", Duration::from_secs(20), || writing.is_finished().then_some(()));
    writing.join().unwrap().unwrap();
    let lives = waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap();
    signal::kill(child, Signal::SIGKILL).unwrap();
    waitpid(child, None).unwrap();
    assert_eq!(lives, WaitStatus::StillAlive, "it was refused, and not ended");
    assert_eq!(shelf.text(), "later");
}
