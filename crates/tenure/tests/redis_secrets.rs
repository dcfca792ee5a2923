//! Passwords of a Redis URL: in no error, in no trace, whether they are right or wrong.

#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::{
    error::Error,
    fmt::Write as _,
    io,
    sync::{Arc, Mutex},
};

use tenure::{AcquireError, Locker};
use tenure::{ErrorKind, backend::Outcome};
use tenure_testkit::redis::{Recipe, RedisServer};

use crate::redis_stage::{self, LONG, NAME, acquire, in_time, name};

/// The right one. With everything that has to be encoded in a URL, so that the encoded one must not be shown either.
const RIGHT: &str = "corr:ect/h@rse%20";
const RIGHT_IN_URL: &str = "corr%3Aect%2Fh%40rse%2520";
/// `wr:ong-b@ttery`.
const WRONG_IN_URL: &str = "wr%3Aong-b%40ttery";

/// Parts that are in no other word.
const SECRETS: [&str; 6] = ["corr:ect", "h@rse", "corr%3Aect", "wr:ong", "b@ttery", "wr%3Aong"];

/// All that was traced, of all crates.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Of every thread, the keeper's too. Only one test of a process may do that.
    fn of_everything() -> Self {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        log
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn assert_no_secret(text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} is in: {text}");
    }
}

/// What can be printed of an error: itself and its causes, for people and for developers.
fn printed(error: &dyn Error) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        writeln!(text, "{error} {error:?} {error:#?}").unwrap();
        next = error.source();
    }
    text
}

fn server() -> RedisServer {
    let users = format!("requirepass {RIGHT}\nuser tenure on >{RIGHT} ~* &* +@all");
    Recipe::new().config(&users).login("default", RIGHT).start()
}

async fn logged_in(server: &RedisServer, login: &str, query: &str) -> Locker {
    tenure::connect(&format!("redis://{login}@{}/?guard=off{query}", server.address())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_is_ever_shown() {
    let (server, log) = (server(), Log::of_everything());
    for query in ["", "&protocol=2"] {
        for login in
            [format!(":{WRONG_IN_URL}"), format!("tenure:{WRONG_IN_URL}"), format!("nobody:{RIGHT_IN_URL}")]
        {
            let locks = logged_in(&server, &login, query).await;
            let lock = locks.mutex(NAME).ttl(LONG);
            let answer = in_time(lock.acquire()).await;
            let Err(AcquireError::Store(error)) = &answer else { panic!("{login}: {answer:?}") };
            assert_eq!(
                (error.kind(), error.outcome()),
                (ErrorKind::Denied, Outcome::NotApplied),
                "{answer:?}"
            );
            assert!(error.to_string().contains("user or password"), "{error}");
            assert_no_secret(&printed(answer.as_ref().unwrap_err()));
            assert_no_secret(&printed(&locks.inspect(&name(NAME)).await.unwrap_err()));
            assert_no_secret(&printed(&in_time(lock.hold(async |_| ())).await.unwrap_err()));
        }
        let without = tenure::connect(&server.url(&format!("?guard=off{query}"))).await.unwrap();
        let Err(AcquireError::Store(error)) = without.mutex(NAME).acquire().await else { panic!("let in") };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        for login in [format!(":{RIGHT_IN_URL}"), format!("tenure:{RIGHT_IN_URL}")] {
            let locks = logged_in(&server, &login, query).await;
            drop(acquire(locks.mutex(NAME).ttl(LONG)).await);
            redis_stage::drained(&locks).await;
        }
    }
    // What fails when it is logged in: the server goes away, with a lease to be renewed and one to be released.
    let locks = logged_in(&server, &format!(":{RIGHT_IN_URL}"), "").await;
    let kept = acquire(locks.mutex("kept").ttl(redis_stage::ms(600))).await;
    let released = acquire(locks.mutex(NAME).ttl(redis_stage::ms(600))).await;
    server.kill();
    assert_no_secret(&printed(&in_time(released.release()).await.unwrap_err()));
    assert_no_secret(&printed(&in_time(kept.lost()).await));
    let log = log.text();
    assert!(log.contains("a renewal failed"), "nothing was traced: {log}");
    assert_no_secret(&log);
}

/// Before anything is sent.
#[tokio::test]
async fn a_url_that_is_wrong_shows_no_password() {
    let urls = [
        "redis://u:PASSWORD@host:x/",
        "redis://u:PASSWORD@/",
        "redis://u:PASSWORD@host/?nope=1",
        "redis://u:PASSWORD@host/x",
        "redis://u:PASSWORD@a,b/",
        "redis-sentinel://u:PASSWORD@host/?sentinel_password=PASSWORD",
        "redis-cluster://u:PASSWORD@host/1",
        "nothing://u:PASSWORD@host",
        "u:PASSWORD@host",
        "redis:u:PASSWORD@host",
    ];
    for url in urls {
        let error = tenure::connect(&url.replace("PASSWORD", WRONG_IN_URL)).await.err().unwrap();
        assert_no_secret(&printed(&error));
    }
}
