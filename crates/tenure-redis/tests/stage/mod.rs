//! What the tests of the Redis backend share: a host, and servers with handles to them.

#![allow(dead_code, reason = "every test file uses its own part of the stage")]
#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tenure_core::{BackendHandle, BoxFuture, Host, Moment};
use tenure_redis::{Config, Redis};

/// This machine, for tests: one clock is enough here.
pub(crate) struct RealHost;

impl Host for RealHost {
    fn now(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Moment { boot: wall, wall }
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(until.boot.saturating_sub(self.now().boot)))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_apart(&self, _: &'static str, _: Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>) {
        unreachable!("BUG: a backend starts no thread")
    }

    fn random(&self, bytes: &mut [u8]) {
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        for (byte, n) in bytes.iter_mut().zip(n.to_le_bytes().into_iter().cycle()) {
            *byte = n;
        }
    }
}

/// A handle as one process has it.
pub(crate) fn redis(url: &str) -> BackendHandle {
    Arc::new(Redis::new(Config::from_url(url).unwrap(), Arc::new(RealHost)))
}

/// A server whose wall clock is ours to set.
pub(crate) struct Clocked {
    port: u16,
    child: std::process::Child,
    file: std::path::PathBuf,
}

impl Drop for Clocked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Clocked {
    pub(crate) fn freeze_at(&self, now: Duration) {
        use std::os::unix::fs::FileExt;
        let v = i64::try_from(now.as_micros()).unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .open(&self.file)
            .unwrap()
            .write_at(&v.to_le_bytes(), 8)
            .unwrap();
    }

    pub(crate) fn redis(&self, query: &str) -> BackendHandle {
        redis(&format!("redis://127.0.0.1:{}/{query}", self.port))
    }
}

pub(crate) fn clocked(args: &[&str]) -> Clocked {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = std::path::PathBuf::from(format!("/tmp/m/clk{port}"));
    std::fs::write(&file, [0; 16]).unwrap();
    let child = std::process::Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp/m"])
        .args(args)
        .env("LD_PRELOAD", "/tmp/m/shim2.so")
        .env("CLOCKSHIM", &file)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    for _ in 0..200 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Clocked { port, child, file }
}
