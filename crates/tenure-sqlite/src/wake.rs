//! Hints: from this process at once, from others by a poll.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rusqlite::Connection;
use tenure_core::{Audience, Host, Moment, ProcessId, Ringing, Wake, Wakes};

use crate::{sql, store::Store};

/// The first pause between two looks, and the longest.
struct Pauses {
    first: Duration,
    longest: Duration,
}

impl Pauses {
    fn of(audience: Audience) -> Self {
        let (first, longest) = match audience {
            Audience::Waiters => (1, 25),
            // A holder is robbed once in a blue moon.
            Audience::Holders => (100, 100),
        };
        Self { first: Duration::from_millis(first), longest: Duration::from_millis(longest) }
    }
}

/// The stream of hints. Polls only while somebody listens.
pub(crate) struct Hints {
    store: Arc<Mutex<Store>>,
    host: Arc<dyn Host>,
    ringing: Ringing,
    process: ProcessId,
    audience: Audience,
    /// The version of the data when we last looked, and the last hint that was there then.
    version: i64,
    last: i64,
    /// Of which file that was.
    generation: u64,
    found: VecDeque<Wake>,
    pauses: Pauses,
    pause: Duration,
    /// When to look next. Kept between calls: a caller that comes and goes must not put the look off for ever.
    due: Moment,
}

impl Hints {
    pub(crate) fn new(
        store: Arc<Mutex<Store>>,
        ringing: Ringing,
        process: ProcessId,
        audience: Audience,
    ) -> Self {
        let host = store.lock().unwrap_or_else(PoisonError::into_inner).host.clone();
        let (pauses, due) = (Pauses::of(audience), host.now());
        let (pause, found) = (pauses.first, VecDeque::new());
        Self {
            store,
            host,
            ringing,
            process,
            audience,
            version: -1,
            last: 0,
            generation: 0,
            found,
            pauses,
            pause,
            due,
        }
    }

    /// Reads what others left for us. An error is no hint: the timers see to it.
    fn look(&mut self) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if !store.is_in_place() {
            // Another world: everybody must ask again.
            self.found.push_back(Wake::All);
            return;
        }
        if !store.reach(false).is_ok_and(|there| there) {
            return;
        }
        if store.generation != self.generation {
            // The numbers of the old world mean nothing.
            (self.version, self.last) = (-1, 0);
            if self.generation != 0 {
                self.found.push_back(Wake::All);
            }
            self.generation = store.generation;
        }
        let Some(conn) = store.conn() else { return };
        let seen = (self.version, self.last);
        if let Ok((version, last, owners)) = read(conn, seen, self.process, self.audience) {
            (self.version, self.last) = (version, last);
            self.found.extend(owners.iter().filter_map(|owner| owner.parse().ok()).map(Wake::Owner));
        }
    }
}

type Seen = (i64, i64);

fn read(
    conn: &Connection,
    (version, last): Seen,
    process: ProcessId,
    audience: Audience,
) -> rusqlite::Result<(i64, i64, Vec<String>)> {
    let number = |statement| conn.prepare_cached(statement)?.query_row([], |row| row.get::<_, i64>(0));
    // Unchanged while only this connection wrote; its hints come by the bell.
    let now = number(sql::DATA_VERSION)?;
    if now == version {
        return Ok((version, last, Vec::new()));
    }
    let newest = number(sql::LAST_WAKE)?;
    let mut hints = conn.prepare_cached(sql::READ_WAKES)?;
    let owners = hints.query_map((last, process.to_string(), audience as u8), |row| row.get(0))?;
    Ok((now, newest, owners.collect::<rusqlite::Result<_>>()?))
}

#[async_trait]
impl Wakes for Hints {
    async fn next(&mut self) -> Wake {
        loop {
            if let Some(wake) = self.found.pop_front() {
                return wake;
            }
            if self.due.elapsed(self.host.now()) > self.pauses.longest {
                // Nobody has listened for a while.
                self.pause = self.pauses.first;
            }
            tokio::select! {
                biased;
                wake = self.ringing.next() => return wake,
                () = self.host.sleep_until(self.due) => self.look(),
            }
            self.pause = if self.found.is_empty() {
                (self.pause * 2).min(self.pauses.longest)
            } else {
                self.pauses.first
            };
            self.due = self.host.now() + self.pause;
        }
    }
}
