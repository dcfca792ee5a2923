//! A process that leaves hints in a file touches its log, and the others hear of that immediately, where the platform can tell.
//!
//! SQLite wakes nobody. So a process that has committed a hint for another process sets the times of the log (`-wal`) to now, and Linux tells
//! those who watch it (inotify). Nothing rests on that: the hint is in the file, and who hears nothing finds it by the poll. Nobody
//! hears on other platforms, where a user has no watches left (`fs.inotify.max_user_instances`), and in a child of a fork.
//!
//! The log and not the file itself: what says that the file was away is the change of its inode.

use std::path::Path;

use crate::file::beside;

/// Tells all who watch the log of this file.
pub(crate) fn touch(file: &Path) {
    use nix::sys::{
        stat::{UtimensatFlags, utimensat},
        time::TimeSpec,
    };
    let (now, follow) = (TimeSpec::UTIME_NOW, UtimensatFlags::FollowSymlink);
    // Whoever may not, or finds no log, leaves it to the poll.
    let _ = utimensat(nix::fcntl::AT_FDCWD, &beside(file, "-wal"), &now, &now, follow);
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Touches;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::Touches;

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        collections::HashMap,
        io,
        path::Path,
        sync::{Mutex, OnceLock},
        thread,
    };

    use nix::{
        errno::Errno,
        sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor},
    };
    use tenure_core::locked;
    use tokio::sync::watch;

    use crate::file::beside;

    /// One for all files of this process, with a thread that reads it.
    static WATCHER: OnceLock<Option<LogWatcher>> = OnceLock::new();

    struct LogWatcher {
        inotify: Inotify,
        process: u32,
        files: Mutex<HashMap<WatchDescriptor, File>>,
    }

    /// A log that is watched, for so many.
    struct File {
        touched: watch::Sender<()>,
        listeners: usize,
    }

    /// The touches of a log from now on.
    pub(crate) struct Touches {
        log: WatchDescriptor,
        touched: watch::Receiver<()>,
        watcher: &'static LogWatcher,
    }

    impl LogWatcher {
        fn get() -> Option<&'static Self> {
            let watcher = WATCHER.get_or_init(|| {
                let (inotify, process) = (Inotify::init(InitFlags::IN_CLOEXEC).ok()?, std::process::id());
                Some(Self { inotify, process, files: Mutex::default() })
            });
            let watcher = watcher.as_ref()?;
            // A child has no thread, and would take its parent's news.
            (watcher.process == std::process::id() && watcher.is_read()).then_some(watcher)
        }

        /// Starts the thread if there is none yet.
        fn is_read(&'static self) -> bool {
            static THREAD: OnceLock<bool> = OnceLock::new();
            let start = || thread::Builder::new().name("tenure-sqlite".to_owned()).spawn(|| self.read());
            *THREAD.get_or_init(|| start().is_ok())
        }

        fn read(&self) -> io::Result<()> {
            loop {
                let events = match self.inotify.read_events() {
                    Ok(events) => events,
                    Err(Errno::EINTR) => continue,
                    Err(errno) => return Err(errno.into()),
                };
                let files = locked(&self.files);
                for event in events {
                    // Also of a log that is watched no more, for it was deleted: whoever looks finds that out.
                    if let Some(file) = files.get(&event.wd) {
                        file.touched.send_replace(());
                    }
                }
            }
        }
    }

    impl Touches {
        /// None where they cannot be heard.
        pub(crate) fn of(file: &Path) -> Option<Self> {
            let watcher = LogWatcher::get()?;
            // OK beside open connections: this opens nothing that is closed again.
            let mut files = locked(&watcher.files);
            let log = watcher.inotify.add_watch(&beside(file, "-wal"), AddWatchFlags::IN_ATTRIB).ok()?;
            let file =
                files.entry(log).or_insert_with(|| File { touched: watch::Sender::new(()), listeners: 0 });
            file.listeners += 1;
            Some(Self { log, touched: file.touched.subscribe(), watcher })
        }

        /// Waits for the next one.
        pub(crate) async fn next(&mut self) {
            if self.touched.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    impl Drop for Touches {
        fn drop(&mut self) {
            let mut files = locked(&self.watcher.files);
            let Some(file) = files.get_mut(&self.log) else { return };
            file.listeners -= 1;
            if file.listeners == 0 {
                files.remove(&self.log);
                // One of a log that was deleted has gone already.
                let _ = self.watcher.inotify.rm_watch(self.log);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::path::Path;

    pub(crate) struct Touches;

    impl Touches {
        pub(crate) fn of(_file: &Path) -> Option<Self> {
            None
        }

        pub(crate) async fn next(&mut self) {
            std::future::pending().await
        }
    }
}
