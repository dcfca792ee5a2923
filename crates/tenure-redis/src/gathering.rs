//! `Gathering`: plain claims and releases that are ready at the same time, on their way to the server in one script.
//!
//! A script costs a server more than what it does for one lock: with many requests under way, that is most of its work. A request
//! leaves when all that was ready beside it has joined; none waits for others to become ready (decision 0073).

use std::{
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{Host, Moment, locked};
use tokio::sync::{Notify, oneshot};

use crate::plain::{Plain, Ready, Run, Told};

/// So many under way go one by one: company would cost them more than it saves.
const FEW: usize = 4;

/// In one script at most: the server does nothing else meanwhile.
const MOST: usize = 32;

/// Those of one connection.
pub(crate) struct Gathering {
    state: Mutex<State>,
    /// Something is ready, or it is over.
    rings: Notify,
}

/// The way in for those who ask. Without it nothing is sent any more.
pub(crate) struct Entrance(pub(crate) Arc<Gathering>);

impl Drop for Entrance {
    fn drop(&mut self) {
        self.0.end();
    }
}

struct State {
    ready: Ready,
    /// Since when somebody waits to leave, and nobody leaves.
    since: Option<Moment>,
    under_way: usize,
    /// Each goes alone.
    is_refused: bool,
    is_over: bool,
}

/// Requests that are counted for as long as it lives.
pub(crate) struct UnderWay<'a>(&'a Gathering, usize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).under_way -= self.1;
    }
}

impl Gathering {
    /// For a server that can do many at once, or not.
    pub(crate) fn new(can_do_many: bool) -> Self {
        let state = State {
            ready: Ready::default(),
            since: None,
            under_way: 0,
            is_refused: !can_do_many,
            is_over: false,
        };
        Self { state: Mutex::new(state), rings: Notify::new() }
    }

    /// Whether a request may go by itself.
    pub(crate) fn alone(&self) -> Option<UnderWay<'_>> {
        let mut state = locked(&self.state);
        let is_alone = state.is_refused || state.is_over || state.ready.is_empty() && state.under_way < FEW;
        is_alone.then(|| {
            state.under_way += 1;
            UnderWay(self, 1)
        })
    }

    pub(crate) fn enter(&self, count: usize) -> UnderWay<'_> {
        locked(&self.state).under_way += count;
        UnderWay(self, count)
    }

    /// From here on each goes alone.
    pub(crate) fn refuse(&self) {
        locked(&self.state).is_refused = true;
    }

    /// Nobody has left for longer than `limit`: the runtime of who sends stands still.
    pub(crate) fn is_stuck(&self, clock: &dyn Host, limit: Duration) -> bool {
        locked(&self.state).since.is_some_and(|since| since.elapsed(clock.now()) > limit)
    }

    /// One more is ready; what waits for its answer. It waits for as long as who sends stands still: the time of a request is that of
    /// whoever asks.
    pub(crate) fn join<R: Plain>(&self, request: R, clock: &dyn Host) -> oneshot::Receiver<Told<R>> {
        let (tell, told) = oneshot::channel();
        let mut state = locked(&self.state);
        // Whoever comes when it is over hears at once that nobody will send it.
        if !state.is_over {
            if state.ready.is_empty() {
                self.rings.notify_one();
            }
            R::waiting(&mut state.ready).push((request, tell));
            state.since.get_or_insert_with(|| clock.now());
        }
        told
    }

    /// Nothing is sent any more; all who wait to leave hear that.
    pub(crate) fn end(&self) {
        let mut state = locked(&self.state);
        state.is_over = true;
        state.since = None;
        let ready = mem::take(&mut state.ready);
        drop(state);
        drop(ready);
        self.rings.notify_one();
    }

    /// Waits until something is ready; false if it is over.
    pub(crate) async fn is_ready(&self) -> bool {
        while !self.has_news() {
            self.rings.notified().await;
        }
        !locked(&self.state).is_over
    }

    fn has_news(&self) -> bool {
        let state = locked(&self.state);
        state.is_over || !state.ready.is_empty()
    }

    /// What is ready, as far as it goes into one script of each kind.
    pub(crate) fn next(&self) -> Vec<Run> {
        let mut state = locked(&self.state);
        let Ready { takes, frees } = &mut state.ready;
        let ready = Ready { takes: first(takes), frees: first(frees) };
        state.since = None;
        drop(state);
        runs(ready)
    }
}

/// The first of them, as many as go into one script.
fn first<T>(all: &mut Vec<T>) -> Vec<T> {
    let most = all.len().min(MOST);
    let rest = all.split_off(most);
    mem::replace(all, rest)
}

/// Releases first: they may free what others came for. A claim that was cancelled before it left is not sent.
fn runs(Ready { takes, frees }: Ready) -> Vec<Run> {
    let mut runs = Vec::new();
    if !frees.is_empty() {
        runs.push(Run::Free(frees));
    }
    for (take, tell) in takes {
        if let Err(gone) = take.asker.must_be_there() {
            // OK to ignore: it may have gone altogether.
            let _ = tell.send(Told::Answer(Err(gone)));
            continue;
        }
        match runs.last_mut() {
            Some(Run::Take(run)) if run[0].0.gate == take.gate => run.push((take, tell)),
            _ => runs.push(Run::Take(vec![(take, tell)])),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use tenure_core::{Asker, LockName, Outcome};
    use tenure_testkit::{
        host::{PausedHost, pass},
        polls::is_pending,
    };

    use super::*;
    use crate::{
        keys::{Counting, Keys},
        plain::{Freeing, Taking},
    };

    const LIMIT: Duration = Duration::from_secs(1);

    fn gathering() -> Gathering {
        Gathering::new(true)
    }

    fn clock() -> Arc<PausedHost> {
        PausedHost::new(1)
    }

    fn take(name: &str, gate: &str) -> Taking {
        let name = LockName::new(name).unwrap();
        let keys = Keys::new("%s", &name, Counting::One).unwrap();
        let (gate, owner) = (Arc::from(gate), [b'0'; 48]);
        Taking { asker: Asker::default(), keys, gate, owner, tail: String::new(), ttl_ms: 1, block: 1 }
    }

    fn free(name: &str) -> Freeing {
        Freeing { lock: name.to_owned(), owner: [b'0'; 48] }
    }

    fn shown(runs: &[Run]) -> Vec<String> {
        let names = |run: &Run| match run {
            Run::Take(run) => run.iter().map(|one| one.0.keys.lock.clone()).collect::<Vec<_>>(),
            Run::Free(run) => run.iter().map(|one| format!("-{}", one.0.lock)).collect(),
        };
        runs.iter().map(|run| names(run).join(" ")).collect()
    }

    /// One gate for each script; a claim that was cancelled is not sent, and is told so.
    #[tokio::test]
    async fn those_that_are_ready_leave_together() {
        let gathering = gathering();
        let _a = gathering.join(take("a", "g"), &*clock());
        let cancelled = take("b", "g");
        let asker = Asker::new();
        let b = gathering.join(Taking { asker: asker.clone(), ..cancelled }, &*clock());
        let _c = gathering.join(take("c", "g"), &*clock());
        let _d = gathering.join(take("d", "h"), &*clock());
        let _f = gathering.join(free("f"), &*clock());
        asker.leave();
        assert!(gathering.is_ready().await);
        assert_eq!(shown(&gathering.next()), ["-f", "a c", "d"]);
        let Ok(Told::Answer(Err(gone))) = b.await else { panic!("it was sent") };
        assert_eq!(gone.outcome(), Outcome::NotApplied);
        assert!(is_pending(&mut Box::pin(gathering.is_ready())).await);
        assert!(gathering.next().is_empty());
    }

    /// No more leave at a time than one script takes, and all in the end.
    #[tokio::test]
    async fn a_script_takes_so_many() {
        let gathering = gathering();
        let _told: Vec<_> = (0..=MOST).map(|n| gathering.join(free(&n.to_string()), &*clock())).collect();
        let first = gathering.next();
        assert!(matches!(&first[..], [Run::Free(run)] if run.len() == MOST));
        assert!(gathering.is_ready().await);
        assert_eq!(shown(&gathering.next()), [format!("-{MOST}")]);
    }

    /// Who waits to be woken is: by the first one that is ready, and by the end.
    #[tokio::test]
    async fn the_first_one_and_the_end_wake_the_sender() {
        let gathering = gathering();
        let mut ready = Box::pin(gathering.is_ready());
        assert!(is_pending(&mut ready).await);
        let _told = gathering.join(free("a"), &*clock());
        assert!(ready.await);
        gathering.next();
        let mut ready = Box::pin(gathering.is_ready());
        assert!(is_pending(&mut ready).await);
        gathering.end();
        assert!(!ready.await);
    }

    /// L8: whoever waits to leave when it is over hears of it, and the next one is not held up.
    #[tokio::test]
    async fn if_nobody_sends_them_they_hear_of_it() {
        let gathering = gathering();
        let told = gathering.join(free("a"), &*clock());
        gathering.end();
        assert!(told.await.is_err());
        assert!(gathering.join(take("b", "g"), &*clock()).await.is_err());
        let alone: Vec<_> = (0..=FEW).map(|_| gathering.alone().is_some()).collect();
        assert_eq!(alone, [true; FEW + 1]);
    }

    /// L6: a sender that stands still is found by whoever asks later; one that gets on is not.
    #[tokio::test(start_paused = true)]
    async fn a_sender_that_stands_still_is_found() {
        let (gathering, clock) = (gathering(), clock());
        let is_stuck = async |after| {
            pass(Duration::from_millis(after)).await;
            gathering.is_stuck(&*clock, LIMIT)
        };
        assert!(!is_stuck(5000).await, "nobody waits");
        let _first = gathering.join(free("a"), &*clock);
        assert!(!is_stuck(900).await);
        let _second = gathering.join(free("b"), &*clock);
        assert!(!is_stuck(100).await && is_stuck(1).await);
        gathering.next();
        assert!(!is_stuck(5000).await, "they have left");
        let _third = gathering.join(free("c"), &*clock);
        assert!(!is_stuck(1000).await && is_stuck(1).await);
        gathering.end();
        assert!(!is_stuck(5000).await, "it is over");
    }

    #[tokio::test]
    async fn few_go_alone_and_all_where_the_server_can_do_no_more() {
        let gathering = gathering();
        let few: Vec<_> = (0..FEW).map(|_| gathering.alone().unwrap()).collect();
        assert!(gathering.alone().is_none());
        drop(few);
        let many = gathering.enter(MOST);
        assert!(gathering.alone().is_none());
        drop(many);
        let _waits = gathering.join(free("a"), &*clock());
        assert!(gathering.alone().is_none(), "nobody passes those who wait to leave");
        gathering.refuse();
        assert!(gathering.alone().is_some());
        assert!(Gathering::new(false).alone().is_some());
    }
}
