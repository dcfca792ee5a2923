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
#[derive(Clone, Copy)]
struct Pauses {
    first: Duration,
    longest: Duration,
    /// Added to the longest for each place ahead. So one process that waits alone is told soon, and a thousand of them cost
    /// little.
    per_place: Duration,
    /// The longest pause of all: who is handed the lock must enter within the claim ttl.
    far: Duration,
}

impl Pauses {
    fn of(audience: Audience, claim_ttl: Duration) -> Self {
        let ms = Duration::from_millis;
        match audience {
            Audience::Waiters => {
                let (longest, per_place) = (ms(25), ms(2));
                Self { first: ms(1), longest, per_place, far: longest.max(claim_ttl / 4) }
            }
            // A holder is robbed once in a blue moon.
            Audience::Holders => Self { first: ms(100), longest: ms(100), per_place: ms(0), far: ms(100) },
        }
    }

    /// The pause after a look. `nearest` is how many places are ahead at least; it grows smaller while the queue moves.
    fn after(&self, pause: Duration, nearest: u64, moved: bool) -> Duration {
        let ahead = self.per_place.saturating_mul(u32::try_from(nearest).unwrap_or(u32::MAX));
        let next = if moved { ahead.max(self.first) } else { pause * 2 };
        next.min(self.longest.saturating_add(ahead)).min(self.far)
    }
}

/// The stream of hints. Polls only while somebody listens.
pub(crate) struct Hints {
    store: Arc<Mutex<Store>>,
    host: Arc<dyn Host>,
    ringing: Ringing,
    process: ProcessId,
    audience: Audience,
    /// The last hint that was there when we last looked, if we did.
    last: Option<i64>,
    /// Of which file that was.
    generation: u64,
    found: VecDeque<Wake>,
    pauses: Pauses,
    /// How many places at least were ahead when we last looked, and whether the queue had moved.
    nearest: u64,
    moved: bool,
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
        let (host, claim_ttl) = {
            let store = store.lock().unwrap_or_else(PoisonError::into_inner);
            (store.host.clone(), store.config.rules.claim_ttl)
        };
        let (pauses, due) = (Pauses::of(audience, claim_ttl), host.now());
        let (pause, found) = (pauses.first, VecDeque::new());
        Self {
            store,
            host,
            ringing,
            process,
            audience,
            last: None,
            generation: 0,
            found,
            pauses,
            nearest: 0,
            moved: false,
            pause,
            due,
        }
    }

    /// Reads what others left for us. An error is no hint: the timers see to it.
    fn look(&mut self) {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        self.moved = false;
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
            self.last = None;
            if self.generation != 0 {
                self.found.push_back(Wake::All);
            }
            self.generation = store.generation;
        }
        let Some(conn) = store.conn() else { return };
        let Ok(news) = News::read(conn, self.last, self.process, self.audience) else { return };
        self.found.extend(news.owners.iter().filter_map(|owner| owner.parse().ok()).map(Wake::Owner));
        if self.audience == Audience::Waiters {
            let is_first = self.last.is_none();
            self.moved = news.passed.iter().filter(|name| !is_first && store.seats.pass(name)).count() > 0;
            self.nearest = store.seats.nearest(store.now());
        }
        self.last = Some(news.last);
    }
}

/// The hints that are new since the last look.
struct News {
    last: i64,
    /// Of which locks waiters were told, of any process: every change of owner leaves a hint or two.
    passed: Vec<String>,
    /// Those of this process who were told, of this audience.
    owners: Vec<String>,
}

impl News {
    /// One statement: a poll takes one lock of SQLite's, reads the end of one table, and gives the lock back.
    fn read(
        conn: &Connection,
        last: Option<i64>,
        process: ProcessId,
        audience: Audience,
    ) -> rusqlite::Result<Self> {
        let last = last.unwrap_or(0);
        let mut news = Self { last, passed: Vec::new(), owners: Vec::new() };
        let mut hints = conn.prepare_cached(sql::READ_WAKES)?;
        let mut rows = hints.query((last, process.to_string()))?;
        while let Some(row) = rows.next()? {
            news.last = row.get(0)?;
            let told: u8 = row.get(1)?;
            if told == Audience::Waiters as u8 {
                news.passed.push(row.get(2)?);
            }
            if told == audience as u8 {
                news.owners.extend(row.get::<_, Option<String>>(3)?);
            }
        }
        Ok(news)
    }
}

#[async_trait]
impl Wakes for Hints {
    async fn next(&mut self) -> Wake {
        loop {
            if let Some(wake) = self.found.pop_front() {
                return wake;
            }
            if self.due.elapsed(self.host.now()) > self.pauses.far {
                // Nobody has listened for a while.
                self.pause = self.pauses.first;
            }
            tokio::select! {
                biased;
                wake = self.ringing.next() => return wake,
                () = self.host.sleep_until(self.due) => self.look(),
            }
            self.pause = if self.found.is_empty() {
                self.pauses.after(self.pause, self.nearest, self.moved)
            } else {
                self.pauses.first
            };
            self.due = self.host.now() + self.pause;
        }
    }
}
