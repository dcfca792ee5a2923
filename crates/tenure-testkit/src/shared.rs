//! `Shared`: a server that many tests of one run use, each in its own part.
//!
//! With a runner that gives each test its own process, each test would start a server. Here the first test that needs
//! the server starts it, and it ends with the run. The tests do not depend on each other: any of them may be the
//! first, or the only one.

use std::{
    any::Any,
    collections::BTreeMap,
    env, fmt,
    fs::{self, File},
    mem,
    os::unix::process::{CommandExt, parent_id},
    path::Path,
    process::{self, Command, Stdio},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use crate::daemon::lasting;

/// A server that other tests use as well.
pub struct Shared {
    address: String,
    /// Set where one process runs all tests: the server ends with the last test that uses it.
    _server: Option<Arc<dyn Any + Send + Sync>>,
}

impl Shared {
    /// The server of this name, which is started if there is none. `address` returns where its clients connect.
    ///
    /// # Panics
    /// If it does not start.
    pub fn server<T>(name: &str, start: impl FnOnce() -> T, address: impl Fn(&T) -> String) -> Self
    where
        T: Any + Send + Sync,
    {
        match env::var("NEXTEST_RUN_ID") {
            Ok(run) => {
                let folder = env::temp_dir().join(format!("tenure-{name}-{run}"));
                Self::of_run(parent_id(), &folder, || {
                    let server = start();
                    let address = address(&server);
                    // Not dropped, so that its process and its folder stay.
                    mem::forget(server);
                    address
                })
            }
            Err(_) => Self::of_process(name, start, address),
        }
    }

    fn of_process<T>(name: &str, start: impl FnOnce() -> T, address: impl Fn(&T) -> String) -> Self
    where
        T: Any + Send + Sync,
    {
        static SERVERS: Mutex<BTreeMap<String, Weak<dyn Any + Send + Sync>>> = Mutex::new(BTreeMap::new());
        let mut servers = tenure_core::locked(&SERVERS);
        let known = servers.get(name).and_then(Weak::upgrade).and_then(|known| known.downcast::<T>().ok());
        let server = known.unwrap_or_else(|| Arc::new(start()));
        let address = address(&server);
        let any: Arc<dyn Any + Send + Sync> = server;
        servers.insert(name.to_owned(), Arc::downgrade(&any));
        Self { address, _server: Some(any) }
    }

    /// A process that comes while another one starts the server waits for the lock of the folder.
    fn of_run(runner: u32, folder: &Path, start: impl FnOnce() -> String) -> Self {
        fs::create_dir_all(folder).expect("a folder among the temporary ones");
        let lock = File::create(folder.join("lock")).expect("a file in our own folder");
        lock.lock().expect("a lock on our own file");
        let known = folder.join("address");
        let address = fs::read_to_string(&known).unwrap_or_else(|_| {
            let processes = folder.join("processes");
            File::create(&processes).expect("a file in our own folder");
            // Before the server starts, so that it is ended in any case.
            end_with(runner, folder);
            let address = lasting(&processes, start);
            // The file appears whole or not at all, even if this process is killed.
            let written = folder.join("written");
            fs::write(&written, &address)
                .and_then(|()| fs::rename(&written, &known))
                .expect("our own folder");
            address
        });
        Self { address, _server: None }
    }

    /// Where its clients connect.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A name that no other call gets, in any process: for the part of one test.
    ///
    /// # Panics
    /// If the machine's clock is before 1970.
    pub fn part() -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::UNIX_EPOCH.elapsed().expect("the machine's clock is after 1970");
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        format!("{}-{}-{number}", process::id(), now.as_nanos())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Starts a shell that ends what was started, once the runner has ended.
#[expect(clippy::zombie_processes, reason = "it outlives us")]
fn end_with(runner: u32, folder: &Path) {
    let mut reaper = Command::new("sh");
    reaper.args(["-c", REAPER, "sh"]).arg(runner.to_string()).arg(folder);
    reaper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    reaper.spawn().expect("there is a shell");
}

const REAPER: &str = "while kill -0 $1; do sleep 1; done; \
                      while read -r pid folder; do kill -9 $pid; rm -rf \"$folder\"; done <\"$2/processes\"; \
                      rm -rf \"$2\"";

#[cfg(test)]
mod tests {
    use std::{process::Child, time::Duration};

    use tempfile::TempDir;

    use super::*;
    use crate::{daemon::Daemon, patience::eventually};

    fn sleep() -> Child {
        Command::new("sleep").arg("1000").spawn().expect("there is a sleep")
    }

    #[test]
    fn a_server_is_started_once_in_a_run_and_ends_with_it() {
        let root = TempDir::new().expect("a temporary folder");
        let (run, data) = (root.path().join("run"), root.path().join("data"));
        fs::create_dir(&data).expect("our own folder");
        let (mut runner, server) = (sleep(), Daemon::default());
        let start = || {
            let command = |_: &Path| {
                let mut command = Command::new("sleep");
                command.arg("1000").current_dir(&data);
                command
            };
            server.launch(&data, command, |_| true).expect("it runs");
            "here".to_owned()
        };
        let first = Shared::of_run(runner.id(), &run, start);
        let second = Shared::of_run(runner.id(), &run, || panic!("there is one"));
        assert_eq!([first.address(), second.address()], ["here"; 2]);
        drop((first, second));
        assert!(server.is_running(), "it outlives those who use it");
        runner.kill().expect("our own child");
        runner.wait().expect("our own child");
        let is_gone = || (!server.is_running() && !run.exists() && !data.exists()).then_some(());
        eventually("nothing is left", Duration::from_secs(30), is_gone);
    }

    #[test]
    fn in_one_process_it_ends_with_the_last_who_uses_it() {
        let there_is_one = || -> String { panic!("there is one") };
        let first = Shared::of_process("sleeper", || "7".to_owned(), String::clone);
        let second = Shared::of_process("sleeper", there_is_one, String::clone);
        assert_eq!(first.address(), second.address());
        drop((first, second));
        let next = Shared::of_process("sleeper", || "8".to_owned(), String::clone);
        assert_eq!(next.address(), "8");
    }
}
