//! Hints: from this process immediately, from others by a poll. Where the platform reports touches, the poll is immediate.

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
    front, sql,
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
    /// The last hint that was in the file at the last poll, if there was one.
    last: Option<i64>,
    /// The file of that poll.
    generation: u64,
    found: VecDeque<WakeEvent>,
    pauses: Pauses,
    /// The front of the queue at the last poll, and when that was.
    front: Option<(LockName, i64, Moment)>,
    /// When the next poll is due. Kept between calls: a caller that comes and goes must not delay the poll indefinitely.
    due: Moment,
    /// The touches of the file's log, while the turn is near.
    touches: Option<Touches>,
    /// The next poll is because of a touch.
    is_touched: bool,
    /// When a touch is worth a poll again, if the last one was for another process.
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

    /// Reads the hints that other processes left for this one, and returns how long to wait until the next poll. An error is
    /// not a hint: the timers cover that case.
    fn look(&mut self) -> Duration {
        let store = self.store.clone();
        // The thread that polls may have leases to renew: it does not wait for a transaction of this handle.
        let Some(mut store) = InUse::unless_busy(&store) else { return self.pauses.begin() };
        if !store.is_in_place() {
            // Another file: every owner must ask again.
            self.found.push_back(WakeEvent::All);
            return self.pauses.begin();
        }
        if !store.reach(false).is_ok_and(|there| there) {
            return self.pauses.lengthen(0);
        }
        if store.generation != self.generation {
            // The numbers of the old file mean nothing.
            (self.last, self.front) = (None, None);
            if self.generation != 0 {
                self.found.push_back(WakeEvent::All);
            }
            (self.generation, self.touches) = (store.generation, None);
        }
        let now = store.now();
        let waits = self.audience == Audience::Waiters;
        let mut foremost = if waits { store.places.foremost(now) } else { None };
        // Before the read, so that no touch is missed in between.
        self.listen(&store, foremost.as_ref());
        let Some(conn) = store.conn() else { return self.pauses.lengthen(0) };
        let seen = PolledLock::read(conn, foremost.as_mut());
        let Ok(seen) = seen.and_then(|seen| self.read_hints(conn, &seen).map(|()| seen)) else {
            return self.pauses.lengthen(0);
        };
        if let Some(place) = foremost.as_ref().filter(|place| place.ahead <= NEAR)
            && has_dead_holder(&store, conn, place)
        {
            self.found.push_back(WakeEvent::Owner(place.owner));
        }
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

    /// Listens to touches while the turn of this place is near. True if it starts to.
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

    /// Polls, and records whether a touch was worth it. Where others change their locks all the time, it is not.
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
            // The address of observers is always the same: the hints in the file were for earlier ones.
            self.last = Some(newest);
        }
        if self.last == Some(newest) {
            return Ok(());
        }
        let oldest: Option<i64> = conn.prepare_cached(sql::OLDEST_WAKE)?.query_row([], |row| row.get(0))?;
        if self.last.zip(oldest).is_some_and(|(last, oldest)| last + 1 < oldest) {
            // Some hints were deleted before this process read them.
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

    /// How long to wait, with this many places ahead, by how far the queue has moved since the last poll.
    fn approach(&mut self, foremost: Foremost, front: Option<i64>, now: Moment) -> Duration {
        let Foremost { name, ahead, .. } = foremost;
        let Some(front) = front else { return self.pauses.lengthen(ahead) };
        let before = self.front.replace((name.clone(), front, now));
        let Some((_, last, at)) = before.filter(|(same, ..)| *same == name) else {
            return self.pauses.follow(ahead, 0, Duration::ZERO);
        };
        match usize::try_from(front - last) {
            // Between two classes there is a large gap.
            Ok(left) if left > LEFT_MAX => self.pauses.follow(ahead, 1, at.elapsed(now)),
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
                // No task has polled this stream for a while.
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

/// Whether a process has ended without which the lease of a holder ends. Then the claim of any waiter ends that lease.
fn has_dead_holder(store: &FileStore, conn: &Connection, place: &Foremost) -> bool {
    // An error is reported by the waiter's claim.
    front::holders(conn, &place.name).is_ok_and(|ledger| ledger.processes().any(|mark| store.is_dead(mark)))
}

/// What one statement reads. A poll takes one lock of SQLite's, reads a page or two of a table and of a queue, and releases
/// it.
struct PolledLock {
    /// The last hint; zero if there was none yet.
    newest: i64,
    /// The first number of the queue.
    front: Option<i64>,
}

impl PolledLock {
    /// Also updates how many places are ahead of the foremost one.
    fn read(conn: &Connection, foremost: Option<&mut Foremost>) -> rusqlite::Result<Self> {
        let name = foremost.as_ref().map_or("", |place| place.name.as_str());
        let seen = conn.prepare_cached(sql::GLANCE)?.query_row([name], |row| {
            Ok(Self { newest: row.get::<_, Option<i64>>(0)?.unwrap_or(0), front: row.get(1)? })
        })?;
        let Some(place) = foremost else { return Ok(seen) };
        // In front of places of the default class there are others, and a place may be moved there.
        if place.number.is_none() || seen.front.is_some_and(|front| front < 0) {
            let mut number = conn.prepare_cached(sql::READ_NUMBER)?;
            let ours = (place.name.as_str(), place.owner.to_string());
            place.number = number.query_row(ours, |row| row.get(0)).optional()?;
        }
        // Numbers have gaps where places were given up, so fewer may be ahead. Without a place it has its turn, or must ask.
        let left = place.number.zip(seen.front).map_or(0, |(own, front)| own.saturating_sub(front));
        place.ahead = place.ahead.min(usize::try_from(left).unwrap_or(0));
        Ok(seen)
    }
}

/// The pauses between two polls.
struct Pauses {
    first: Duration,
    longest: Duration,
    /// Added to the longest for each place ahead.
    per_place: Duration,
    /// The longest of all, near the front and far from it. A waiter that is handed the lock must detect that with time left
    /// to acquire it.
    near: Duration,
    far: Duration,
    far_from: usize,
    pause: Duration,
    per_change: Duration,
    /// Between two polls because of touches of the file.
    rest: Duration,
}

impl Pauses {
    fn of(audience: Audience, rules: &Rules) -> Self {
        let ms = Duration::from_millis;
        let (first, longest, per_place) = match audience {
            Audience::Waiters => (ms(1), ms(25), PER_PLACE),
            // A lock is rarely broken, and a leader rarely changes.
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

    /// The longest pause of a waiter with this many places ahead.
    fn longest(&self, ahead: usize) -> Duration {
        let more = self.per_place.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX));
        let bound = if ahead < self.far_from { self.near } else { self.far };
        self.longest.saturating_add(more).min(bound)
    }

    /// There was a hint, or no task polled the stream for a while.
    fn begin(&mut self) -> Duration {
        self.pause = self.first;
        self.pause
    }

    /// How long touches of the file cause no poll, after one that a touch caused: zero, if that poll found something.
    fn rest(&mut self, is_worth_it: bool) -> Duration {
        self.rest =
            if is_worth_it { Duration::ZERO } else { (self.rest * 2).clamp(self.first, self.longest(0)) };
        self.rest
    }

    /// Nothing has moved since the last poll.
    fn lengthen(&mut self, ahead: usize) -> Duration {
        self.pause = (self.pause * 2).clamp(self.first, self.longest(ahead));
        self.pause
    }

    /// `left` places went from the front in this time. The next poll is half way to the waiter's turn. So the number of
    /// polls while a queue moves is the logarithm of the places ahead.
    fn follow(&mut self, ahead: usize, left: usize, time: Duration) -> Duration {
        if let Some(per_change) = time.checked_div(u32::try_from(left).unwrap_or(u32::MAX)) {
            // One stall does not predict the next change: a waiter that relied on it would be late, and be the next stall.
            self.per_change = per_change.min(self.per_change * 2).max(FASTEST_CHANGE);
        }
        let half = self.per_change.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX)) / 2;
        self.pause = half.clamp(self.first, self.longest(ahead));
        self.pause
    }
}

/// A waiter with at most this many ahead is notified of others' hints immediately. Those behind would wake for nothing.
const NEAR: usize = 4;
/// More places than this do not leave a queue between two polls.
const LEFT_MAX: usize = 4096;
/// Added to the longest pause for each place ahead: a waiter that is alone finds its turn soon, and a thousand cost little.
const PER_PLACE: Duration = Duration::from_millis(5);
/// How long a change of owner is assumed to take, until one was seen. Short, so that the first poll is not too late.
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

    /// L6: a waiter that is handed the lock detects that while at least half of its time to acquire is left.
    #[test]
    fn no_pause_is_longer_than_a_turn_can_wait() {
        let pauses = pauses();
        for ahead in 0..10_000 {
            let bound = if ahead < 32 { ms(125) } else { ms(500) };
            assert!(pauses.longest(ahead) <= bound, "{ahead}");
        }
        assert_eq!([0, 1, 10, 50, 4000].map(|ahead| pauses.longest(ahead)), [25, 30, 75, 275, 500].map(ms));
    }

    /// L6: while a queue moves, a waiter polls before its turn has come, and not for each change.
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

    /// One stall of a queue was taken for its pace. The next poll came too late for the waiter's turn, which was the next
    /// stall.
    #[test]
    fn a_stall_is_not_taken_for_the_pace() {
        let mut pauses = pauses();
        pauses.follow(20, 10, ms(10));
        assert_eq!(pauses.follow(20, 2, ms(100)), ms(20), "half of 20 places at twice the pace");
        assert_eq!(pauses.follow(20, 10, ms(10)), ms(10));
    }

    /// Others that change their locks all the time cause no more polls than the timer does.
    #[test]
    fn touches_that_are_for_others_are_minded_ever_more_rarely() {
        let mut pauses = pauses();
        let rests = [false, false, false, false, false, false, true, false].map(|worth| pauses.rest(worth));
        assert_eq!(rests, [1, 2, 4, 8, 16, 25, 0, 1].map(ms));
    }
}
