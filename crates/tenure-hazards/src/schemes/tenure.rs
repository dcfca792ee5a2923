//! The lock of Tenure, through its public API.

use std::{path::Path, thread, time::Duration};

use rusqlite::Connection;
use tenure::ReleaseError;
use tenure::blocking::{Guard, Lease, Locker, connect};

use crate::{
    protocol::{self, Client, Message, Step, send, send_at},
    schemes::{ROWS, Scheme},
};

/// A lease.
pub(crate) struct Tenure {
    url: String,
    locks: Locker,
    guard: Option<Guard>,
    lease: Option<Lease>,
}

impl Tenure {
    pub(crate) fn new(me: &Client) -> Step<Self> {
        Ok(Self { url: me.url.clone(), locks: connect(&me.url)?, guard: None, lease: None })
    }

    /// Keeps the guard, and starts a thread that watches the lease.
    fn holds(&mut self, guard: Guard) {
        watch(guard.lease());
        self.lease = Some(guard.lease());
        self.guard = Some(guard);
    }

    /// The rows that are protected, next to the file of the locks.
    fn rows(&self) -> Step<Connection> {
        let locks = Path::new(self.url.trim_start_matches("sqlite:"));
        Ok(Connection::open(locks.with_file_name(ROWS))?)
    }
}

impl Scheme for Tenure {
    fn lock(&mut self, me: &Client) -> Step {
        let lock = self.locks.mutex(&me.lock);
        let lock = lock.with(|lock| lock.ttl(me.ttl));
        let lock = lock.with(|lock| lock.max_hold(3 * me.ttl));
        self.holds(lock.acquire()?);
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        let released = self.guard.take().map(Guard::release);
        say_if_lost(released);
        Ok(())
    }

    fn add(&mut self, me: &Client) -> Step<bool> {
        self.lock(me)?;
        let amount: i64 = self.rows()?.query_row("SELECT amount FROM stock", (), |row| row.get(0))?;
        me.gap("between SELECT and UPDATE")?;
        let write = "UPDATE stock SET amount = ?1, mark = ?2 WHERE mark <= ?2";
        let token = self.token().map(i64::try_from).transpose()?;
        let rows = self.rows()?.execute(write, [Some(amount + 1), token])?;
        self.unlock(me)?;
        Ok(rows == 1)
    }

    fn believes(&mut self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.check().is_ok())
    }

    fn token(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| lease.token().get())
    }

    fn alias(&self, _: &Client) -> String {
        // Without the number of the process, which ZooKeeper's nodes do not have.
        self.lease.as_ref().map_or_else(String::new, |lease| lease.owner().to_string().split_off(16))
    }
}

/// Sends a note if the release returned an error.
pub(super) fn say_if_lost(released: Option<Result<(), ReleaseError>>) {
    if let Some(Err(told)) = released {
        send(Message::Notes(format!("is told: {told}")));
    }
}

/// Reports when the lease is lost: at the end of its validity, even if this thread notices it later.
pub(super) fn watch(lease: Lease) {
    thread::spawn(move || {
        let mut until = protocol::now();
        loop {
            let now = protocol::now();
            match lease.check() {
                Ok(()) => until = now + lease.remaining(),
                Err(lost) if lost.cause() == tenure::Loss::Released => return,
                Err(lost) => {
                    let by_clock = lost.cause() == tenure::Loss::Expired;
                    return send_at(now.min(until), Message::Lost { by_clock });
                }
            }
            thread::sleep(LOOK);
        }
    });
}

const LOOK: Duration = Duration::from_millis(5);
