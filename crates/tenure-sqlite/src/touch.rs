//! A process that leaves hints in a file touches its log. Where the platform reports that, others notice immediately.
//!
//! SQLite notifies no process. So a process that has committed a hint for another one sets the times of the log (`-wal`) to
//! now. Linux notifies the processes that watch it (inotify). Nothing depends on that: the hint is in the file, and a
//! process that is not notified finds it by the poll. There are no notifications on other platforms, where a user has no
//! watches left (`fs.inotify.max_user_instances`), and in a child of a fork.
//!
//! The log is touched and not the file itself, because a change of the file's inode shows that the file was away.

use std::path::Path;

use crate::file::beside;

/// Notifies all processes that watch the log of this file.
pub(crate) fn touch(file: &Path) {
    use nix::sys::{
        stat::{UtimensatFlags, utimensat},
        time::TimeSpec,
    };
    let (now, follow) = (TimeSpec::UTIME_NOW, UtimensatFlags::FollowSymlink);
    // Without the permission, or without a log, the hint is left to the poll.
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

    /// A log that is watched, and the number of its listeners.
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
            // A child has no such thread, and would read its parent's events.
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
                    // This includes a log that was deleted and is no longer watched: the poll that follows detects that.
                    if let Some(file) = files.get(&event.wd) {
                        file.touched.send_replace(());
                    }
                }
            }
        }
    }

    impl Touches {
        /// `None` where touches cannot be received.
        pub(crate) fn of(file: &Path) -> Option<Self> {
            let watcher = LogWatcher::get()?;
            // OK while connections are open: this opens nothing that is closed again.
            let mut files = locked(&watcher.files);
            let log = watcher.inotify.add_watch(&beside(file, "-wal"), AddWatchFlags::IN_ATTRIB).ok()?;
            let file =
                files.entry(log).or_insert_with(|| File { touched: watch::Sender::new(()), listeners: 0 });
            file.listeners += 1;
            Some(Self { log, touched: file.touched.subscribe(), watcher })
        }

        /// Waits for the next touch.
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
                // The watch of a deleted log is gone already.
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
