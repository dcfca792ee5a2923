//! smoke
use async_trait::async_trait;
use std::{sync::Arc, time::Duration};
use tenure_core::*;
use tenure_redis::{Config, Redis};
use tenure_testkit::conformance::Arena;

struct H;
impl Host for H {
    fn now(&self) -> Moment {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Moment { boot: wall, wall }
    }
    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        let d = until.boot.saturating_sub(self.now().boot);
        Box::pin(tokio::time::sleep(d))
    }
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
    fn spawn_apart(&self, _: &'static str, _: Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>) {
        panic!()
    }
    fn random(&self, _: &mut [u8]) {
        panic!()
    }
}
struct A {
    port: u16,
    child: std::process::Child,
    file: std::path::PathBuf,
    here: BackendHandle,
}
impl Drop for A {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
fn open(port: u16) -> BackendHandle {
    Arc::new(Redis::new(
        Config::from_url(&format!("redis://127.0.0.1:{port}/?guard=off")).unwrap(),
        Arc::new(H),
    ))
}
#[async_trait]
impl Arena for A {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }
    async fn elsewhere(&self) -> BackendHandle {
        open(self.port)
    }
    async fn pass(&self, d: Duration) {
        let b = std::fs::read(&self.file).unwrap();
        let mut v = i64::from_le_bytes(b.try_into().unwrap());
        v += d.as_micros() as i64;
        use std::os::unix::fs::FileExt;
        std::fs::OpenOptions::new()
            .write(true)
            .open(&self.file)
            .unwrap()
            .write_at(&v.to_le_bytes(), 0)
            .unwrap();
    }
}
async fn arena() -> A {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = std::path::PathBuf::from(format!("/tmp/m/clk{port}"));
    std::fs::write(&file, 0i64.to_le_bytes()).unwrap();
    let child = std::process::Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp/m"])
        .env("LD_PRELOAD", "/tmp/m/shim.so")
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
    A { port, child, file, here: open(port) }
}
tenure_testkit::conformance!(arena, real_time);
