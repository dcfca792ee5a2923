//! Hints: from this process immediately, from others by a poll, which comes immediately where the platform tells of them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use tenure_core::{
    Audience, Forward, Host, LockName, Moment, Notifications, ProcessId, WakeEvent, WakeStream, locked,
};
use tenure_ledger::Rules;
use tokio::sync::Notify;

use crate::{
    sql,
    store::{FileStore, Foremost, InUse},
    touch::Touches,
};

/// The stream of hints. Polls only while there is a listener.
pub(crate) struct PolledHints {
    store: Arc<Mutex<FileStore>>,
    host: Arc<dyn Host>,
    notifications: Notifications,
    /// Notified when an owner of this process took a place.
    placed: Arc<Notify>,
    process: ProcessId,
    audience: Audience,
    /// The last hint that was there when we last looked, if we did.
    last: Option<i64>,
    /// Of which file that was.
    generation: u64,
    found: VecDeque<WakeEvent>,
    pauses: Pauses,
    /// The front of the queue when we last looked, and when that was.
    front: Option<(LockName, i64, Moment)>,
    /// When to look next. Kept between calls: a caller that comes and goes must not put the look off for ever.
    due: Moment,
    /// Those of the file's log, while the turn is near.
    touches: Option<Touches>,
    /// The next look is for one of them.
    is_touched: bool,
    /// When one of them is worth a look again, if the last one was for somebody else.
    soonest: Moment,
}

impl PolledHints {
    pub(crate) fn new(
        store: Arc<Mutex<FileStore>>,
        notifications: Notifications,
        process: ProcessId,
        audience: Audience,
    ) -> Self {
        let (host, placed, pauses) = {
            let store = locked(&store);
            (store.host.clone(), store.placed.clone(), Pauses::of(audience, &store.config.rules))
        };
        let due = host.now();
        Self {
            store,
            host,
            notifications,
            placed,
            process,
            audience,
            last: None,
            generation: 0,
            found: VecDeque::new(),
            pauses,
            front: None,
            due,
            touches: None,
            is_touched: false,
            soonest: due,
        }
    }

    /// Reads what others left for us, and answers how long to wait for the next look. An error is no hint: the timers
    /// see to it.
    fn look(&mut self) -> Duration {
        let store = self.store.clone();
        // The thread that looks may have leases to renew: it does not wait for a transaction of this handle.
        let Some(mut store) = InUse::unless_busy(&store) else { return self.pauses.begin() };
        if !store.is_in_place() {
            // Another world: everybody must ask again.
            self.found.push_back(WakeEvent::All);
            return self.pauses.begin();
        }
        if !store.reach(false).is_ok_and(|there| there) {
            return self.pauses.lengthen(0);
        }
        if store.generation != self.generation {
            // The numbers of the old world mean nothing.
            (self.last, self.front) = (None, None);
            if self.generation != 0 {
                self.found.push_back(WakeEvent::All);
            }
            (self.generation, self.touches) = (store.generation, None);
        }
        let now = store.now();
        let waits = self.audience == Audience::Waiters;
        let mut foremost = if waits { store.places.foremost(now) } else { None };
        // Before it reads: nothing is left unheard in between.
        self.listen(&store, foremost.as_ref());
        let Some(conn) = store.conn() else { return self.pauses.lengthen(0) };
        let seen = PolledLock::read(conn, foremost.as_mut());
        let Ok(seen) = seen.and_then(|seen| self.read_hints(conn, &seen).map(|()| seen)) else {
            return self.pauses.lengthen(0);
        };
        if !self.found.is_empty() {
            return self.pauses.begin();
        }
        let Some(foremost) = foremost else { return self.pauses.lengthen(0) };
        store.places.advance(&foremost);
        if self.listen(&store, Some(&foremost)) {
            return self.pauses.begin();
        }
        self.approach(foremost, seen.front, now)
    }

    /// Listens to touches while the turn of this place is near. True if it begins to.
    fn listen(&mut self, store: &FileStore, foremost: Option<&Foremost>) -> bool {
        if foremost.is_none_or(|place| place.ahead > NEAR) {
            self.touches = None;
            return false;
        }
        if self.touches.is_some() {
            return false;
        }
        self.touches = Touches::of(&store.config.path);
        self.touches.is_some()
    }

    /// Looks, and minds whether a touch was worth it: where others change their locks all the time, it is not.
    fn look_around(&mut self) -> Duration {
        let front = self.front.as_ref().map(|(_, front, _)| *front);
        let pause = self.look();
        if std::mem::take(&mut self.is_touched) {
            let has_moved = self.front.as_ref().map(|(_, front, _)| *front) != front;
            let rest = self.pauses.rest(has_moved || !self.found.is_empty());
            self.soonest = self.host.now() + rest;
        }
        pause
    }

    fn read_hints(&mut self, conn: &Connection, seen: &PolledLock) -> rusqlite::Result<()> {
        let PolledLock { newest, .. } = *seen;
        if self.last.is_none() && self.audience == Audience::Observers {
            // Their address is always the same: what is there was told to others.
            self.last = Some(newest);
        }
        if self.last == Some(newest) {
            return Ok(());
        }
        let oldest: Option<i64> = conn.prepare_cached(sql::OLDEST_WAKE)?.query_row([], |row| row.get(0))?;
        if self.last.zip(oldest).is_some_and(|(last, oldest)| last + 1 < oldest) {
            // Some are gone that nobody here has read.
            self.found.push_back(WakeEvent::All);
        }
        let new = (self.last.unwrap_or(0), newest, self.process.to_string(), self.audience as u8);
        let mut hints = conn.prepare_cached(sql::READ_WAKES)?;
        for owner in hints.query_map(new, |row| row.get::<_, String>(0))? {
            self.found.extend(owner?.parse().ok().map(WakeEvent::Owner));
        }
        self.last = Some(newest);
        Ok(())
    }

    /// How long to wait, for one with so many ahead, after what has moved since the last look.
    fn approach(&mut self, foremost: Foremost, front: Option<i64>, now: Moment) -> Duration {
        let Foremost { name, ahead, .. } = foremost;
        let Some(front) = front else { return self.pauses.lengthen(ahead) };
        let before = self.front.replace((name.clone(), front, now));
        let Some((_, last, at)) = before.filter(|(same, ..)| *same == name) else {
            return self.pauses.follow(ahead, 0, Duration::ZERO);
        };
        match usize::try_from(front - last) {
            Ok(left) if left > 0 => self.pauses.follow(ahead, left, at.elapsed(now)),
            _ => self.pauses.lengthen(ahead),
        }
    }

    /// An owner of this process took a place, which may be nearer to the front than the known ones.
    fn hurry(&mut self) {
        let mut store = locked(&self.store);
        let now = store.now();
        let ahead = store.places.foremost(now).map_or(0, |foremost| foremost.ahead);
        self.due = self.due.earlier(self.host.now() + self.pauses.longest(ahead));
    }
}

#[async_trait]
impl WakeStream for PolledHints {
    async fn next(&mut self) -> WakeEvent {
        loop {
            if let Some(wake) = self.found.pop_front() {
                return wake;
            }
            if self.due.elapsed(self.host.now()) > self.pauses.longest(usize::MAX) {
                // Nobody has listened for a while.
                self.pauses.begin();
            }
            let pause = tokio::select! {
                biased;
                wake = self.notifications.next() => return wake,
                () = self.placed.notified(), if self.audience == Audience::Waiters => {
                    self.hurry();
                    continue;
                }
                () = touched(&mut self.touches) => {
                    self.is_touched = true;
                    // A timer would be a millisecond late.
                    if self.soonest.is_over(self.host.now()) {
                        self.look_around()
                    } else {
                        self.due = self.due.earlier(self.soonest);
                        continue;
                    }
                }
                () = self.host.sleep_until(self.due) => self.look_around(),
            };
            self.due = self.host.now() + pause;
        }
    }

    fn forward(&mut self, to: Forward) {
        self.notifications.forward(to);
    }
}

async fn touched(touches: &mut Option<Touches>) {
    match touches {
        Some(touches) => touches.next().await,
        None => std::future::pending().await,
    }
}

/// What one statement reads: a poll takes one lock of SQLite's, reads a page or two of a table and of a queue, and
/// gives the lock back.
struct PolledLock {
    /// The last hint; zero if there was none yet.
    newest: i64,
    /// The first number of the queue.
    front: Option<i64>,
}

impl PolledLock {
    /// Also adjusts how many are ahead of the foremost one.
    fn read(conn: &Connection, foremost: Option<&mut Foremost>) -> rusqlite::Result<Self> {
        let name = foremost.as_ref().map_or("", |place| place.name.as_str());
        let seen = conn.prepare_cached(sql::GLANCE)?.query_row([name], |row| {
            Ok(Self { newest: row.get::<_, Option<i64>>(0)?.unwrap_or(0), front: row.get(1)? })
        })?;
        let Some(place) = foremost else { return Ok(seen) };
        if place.number.is_none() {
            let mut number = conn.prepare_cached(sql::READ_NUMBER)?;
            let ours = (place.name.as_str(), place.owner.to_string());
            place.number = number.query_row(ours, |row| row.get(0)).optional()?;
        }
        // Numbers have gaps where places were given up, so there may be fewer. Without a place its turn has come, or it
        // must ask.
        let (own, front) = (place.number.unwrap_or(0), seen.front.unwrap_or(i64::MAX));
        place.ahead = place.ahead.min(usize::try_from(own.saturating_sub(front)).unwrap_or(0));
        Ok(seen)
    }
}

/// The pauses between two looks.
struct Pauses {
    first: Duration,
    longest: Duration,
    /// Added to the longest for each place ahead.
    per_place: Duration,
    /// The longest of all, near the front and far from it: who is handed the lock must find that out with time left to
    /// enter.
    near: Duration,
    far: Duration,
    far_from: usize,
    pause: Duration,
    per_change: Duration,
    /// Between two looks for touches of the file.
    rest: Duration,
}

impl Pauses {
    fn of(audience: Audience, rules: &Rules) -> Self {
        let ms = Duration::from_millis;
        let (first, longest, per_place) = match audience {
            Audience::Waiters => (ms(1), ms(25), PER_PLACE),
            // A holder is robbed once in a blue moon, and a leader changes as rarely.
            Audience::Holders | Audience::Observers => (ms(100), ms(100), ms(0)),
        };
        Self {
            first,
            longest,
            per_place,
            near: longest.max(rules.claim_ttl / 4),
            far: longest.max(rules.claim_ttl),
            far_from: rules.far.unwrap_or(usize::MAX),
            pause: first,
            per_change: FAST_CHANGE,
            rest: Duration::ZERO,
        }
    }

    /// The longest pause of one with so many ahead.
    fn longest(&self, ahead: usize) -> Duration {
        let more = self.per_place.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX));
        let bound = if ahead < self.far_from { self.near } else { self.far };
        self.longest.saturating_add(more).min(bound)
    }

    /// There was something to hear, or nobody listened for a while.
    fn begin(&mut self) -> Duration {
        self.pause = self.first;
        self.pause
    }

    /// How long touches of the file are worth no look, after one that was made for such a touch: none, if there was something to see.
    fn rest(&mut self, is_worth_it: bool) -> Duration {
        self.rest =
            if is_worth_it { Duration::ZERO } else { (self.rest * 2).clamp(self.first, self.longest(0)) };
        self.rest
    }

    /// Nothing has moved since the last look.
    fn lengthen(&mut self, ahead: usize) -> Duration {
        self.pause = (self.pause * 2).clamp(self.first, self.longest(ahead));
        self.pause
    }

    /// So many left the front in that time. The next look is half way to the own turn: so the looks while a queue moves are
    /// as many as the logarithm of the places ahead.
    fn follow(&mut self, ahead: usize, left: usize, time: Duration) -> Duration {
        if let Some(per_change) = time.checked_div(u32::try_from(left).unwrap_or(u32::MAX)) {
            // One stall says little about the next change: who believed it would look too late, and be the next stall.
            self.per_change = per_change.min(self.per_change * 2).max(FASTEST_CHANGE);
        }
        let half = self.per_change.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX)) / 2;
        self.pause = half.clamp(self.first, self.longest(ahead));
        self.pause
    }
}

/// Who has so many ahead hears immediately that others leave hints. Those behind are woken for nothing.
const NEAR: usize = 4;
/// Added to the longest pause for each place ahead: one that waits alone is told soon, and a thousand cost little.
const PER_PLACE: Duration = Duration::from_millis(5);
/// How long a change of owner takes, as long as none was seen: a short time, so that the first look is not too late.
const FAST_CHANGE: Duration = Duration::from_millis(1);
/// No change of owner takes less.
const FASTEST_CHANGE: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn pauses() -> Pauses {
        Pauses::of(Audience::Waiters, &Rules { far: Some(32), ..Rules::default() })
    }

    /// L6: a waiter that is handed the lock has at least half of the time in which it must enter, when it finds that out.
    #[test]
    fn no_pause_is_longer_than_a_turn_can_wait() {
        let pauses = pauses();
        for ahead in 0..10_000 {
            let bound = if ahead < 32 { ms(125) } else { ms(500) };
            assert!(pauses.longest(ahead) <= bound, "{ahead}");
        }
        assert_eq!([0, 1, 10, 50, 4000].map(|ahead| pauses.longest(ahead)), [25, 30, 75, 275, 500].map(ms));
    }

    /// L6: a waiter with one ahead for each change that comes looks in time, and not for each change.
    #[test]
    fn a_queue_that_moves_is_looked_at_as_often_as_its_length_has_digits() {
        for per_change in [1, 2, 10] {
            let (mut pauses, mut ahead, mut looks) = (pauses(), 400_usize, 0);
            let mut pause = pauses.follow(ahead, 0, ms(0));
            while ahead > 0 {
                let left = usize::try_from(pause.as_millis()).unwrap() / per_change;
                ahead = ahead.checked_sub(left).expect("it looks before its turn has come");
                pause = if left == 0 { pauses.lengthen(ahead) } else { pauses.follow(ahead, left, pause) };
                looks += 1;
            }
            assert!(looks < 60, "{looks} looks at {per_change} ms for each change");
        }
    }

    /// One stall of a queue was taken for its pace: the next look came too late for the own turn, which was the next stall.
    #[test]
    fn a_stall_is_not_taken_for_the_pace() {
        let mut pauses = pauses();
        pauses.follow(20, 10, ms(10));
        assert_eq!(pauses.follow(20, 2, ms(100)), ms(20), "half of 20 places at twice the pace");
        assert_eq!(pauses.follow(20, 10, ms(10)), ms(10));
    }

    /// Others that change their locks all the time cost no more looks than the poll.
    #[test]
    fn touches_that_are_for_others_are_minded_ever_more_rarely() {
        let mut pauses = pauses();
        let rests = [false, false, false, false, false, false, true, false].map(|worth| pauses.rest(worth));
        assert_eq!(rests, [1, 2, 4, 8, 16, 25, 0, 1].map(ms));
    }
}
