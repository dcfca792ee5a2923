//! `Shared`: a server that many tests of one run use, each in a part of its own.
//!
//! A runner that gives each test a process would start a server for each. Here the first one that needs it starts it, and it
//! ends with the run. The tests know nothing of each other: any of them may be the first, or the only one.

use std::{
    any::Any,
    collections::BTreeMap,
    env, fmt,
    fs::{self, File},
    mem,
    os::unix::process::{CommandExt, parent_id},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use crate::daemon::lasting;

/// What can outlive the test that started it.
pub trait Lasting: Send + Sync + 'static {
    /// Where its clients find it.
    fn address(&self) -> String;

    /// Its processes, and the folder of each.
    fn processes(&self) -> Vec<(u32, PathBuf)>;
}

/// A server that others use as well.
pub struct Shared {
    address: String,
    /// Where one process runs all tests, it ends with the last that uses it.
    _server: Option<Arc<dyn Any + Send + Sync>>,
}

impl Shared {
    /// The server of this name, which is started if there is none.
    ///
    /// # Panics
    /// If it does not start.
    pub fn server<T: Lasting>(name: &str, start: impl FnOnce() -> T) -> Self {
        match env::var("NEXTEST_RUN_ID") {
            Ok(run) => {
                let folder = env::temp_dir().join(format!("tenure-{name}-{run}"));
                Self::of_run(parent_id(), &folder, start)
            }
            Err(_) => Self::of_process(name, start),
        }
    }

    fn of_process<T: Lasting>(name: &str, start: impl FnOnce() -> T) -> Self {
        static SERVERS: Mutex<BTreeMap<String, Weak<dyn Any + Send + Sync>>> = Mutex::new(BTreeMap::new());
        let mut servers = tenure_core::locked(&SERVERS);
        let known = servers.get(name).and_then(Weak::upgrade).and_then(|known| known.downcast::<T>().ok());
        let server = known.unwrap_or_else(|| Arc::new(start()));
        let address = server.address();
        let any: Arc<dyn Any + Send + Sync> = server;
        servers.insert(name.to_owned(), Arc::downgrade(&any));
        Self { address, _server: Some(any) }
    }

    /// Whoever comes while it is being started waits for the lock of the folder.
    fn of_run<T: Lasting>(runner: u32, folder: &Path, start: impl FnOnce() -> T) -> Self {
        fs::create_dir_all(folder).expect("a folder among the temporary ones");
        let lock = File::create(folder.join("lock")).expect("a file in our own folder");
        lock.lock().expect("a lock on our own file");
        let known = folder.join("address");
        let address = fs::read_to_string(&known).unwrap_or_else(|_| {
            let server = lasting(start);
            end_with(runner, &server, folder);
            let address = server.address();
            // Whole or not at all, whenever we are ended.
            let written = folder.join("written");
            fs::write(&written, &address)
                .and_then(|()| fs::rename(&written, &known))
                .expect("our own folder");
            // Its process stays, and so does its folder.
            mem::forget(server);
            address
        });
        Self { address, _server: None }
    }

    /// Where its clients find it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A name that no other call gets, in no process: for the part of one test.
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

/// Leaves a shell behind that ends the server when the runner is gone.
#[expect(clippy::zombie_processes, reason = "it outlives us")]
fn end_with(runner: u32, server: &impl Lasting, folder: &Path) {
    let mut reaper = Command::new("sh");
    reaper.args(["-c", REAPER, "sh"]).arg(runner.to_string()).arg(folder);
    for (process, folder) in server.processes() {
        reaper.arg(process.to_string()).arg(folder);
    }
    reaper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    reaper.spawn().expect("there is a shell");
}

const REAPER: &str = "while kill -0 $1; do sleep 1; done; rm -rf \"$2\"; shift 2; \
                      while [ $# -gt 0 ]; do kill -9 $1; rm -rf \"$2\"; shift 2; done";

#[cfg(test)]
mod tests {
    use std::process::Child;

    use tempfile::TempDir;

    use super::*;

    struct Sleeper {
        process: u32,
        folder: PathBuf,
    }

    impl Lasting for Sleeper {
        fn address(&self) -> String {
            self.process.to_string()
        }

        fn processes(&self) -> Vec<(u32, PathBuf)> {
            vec![(self.process, self.folder.clone())]
        }
    }

    fn sleep() -> Child {
        Command::new("sleep").arg("1000").spawn().expect("there is a sleep")
    }

    #[test]
    fn a_server_is_started_once_in_a_run_and_ends_with_it() {
        let root = TempDir::new().expect("a temporary folder");
        let (run, data) = (root.path().join("run"), root.path().join("data"));
        fs::create_dir(&data).expect("our own folder");
        let (mut runner, mut server) = (sleep(), sleep());
        let sleeper = || Sleeper { process: server.id(), folder: data.clone() };
        let first = Shared::of_run(runner.id(), &run, sleeper);
        let second = Shared::of_run(runner.id(), &run, || -> Sleeper { panic!("there is one") });
        assert_eq!(first.address(), server.id().to_string());
        assert_eq!(first.address(), second.address());
        drop((first, second));
        assert!(server.try_wait().expect("our own child").is_none(), "it outlives those who use it");
        runner.kill().expect("our own child");
        runner.wait().expect("our own child");
        assert!(!server.wait().expect("our own child").success());
        let is_gone = || (!run.exists() && !data.exists()).then_some(());
        crate::patience::eventually("nothing is left", std::time::Duration::from_secs(30), is_gone);
    }

    #[test]
    fn in_one_process_it_ends_with_the_last_who_uses_it() {
        let start = || Sleeper { process: 7, folder: PathBuf::new() };
        let first = Shared::of_process("sleeper", start);
        let second = Shared::of_process("sleeper", || -> Sleeper { panic!("there is one") });
        assert_eq!(first.address(), second.address());
        drop((first, second));
        let next = Shared::of_process("sleeper", || Sleeper { process: 8, folder: PathBuf::new() });
        assert_eq!(next.address(), "8");
    }
}
