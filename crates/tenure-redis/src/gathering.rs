//! `Gathering`: plain claims and releases that are ready at the same time, on their way to the server in one script.
//!
//! A script costs a server more than what it does for one lock: with many requests under way, that is most of its work. Nobody waits
//! for company: a request leaves when all that was ready beside it has joined. They leave in the order in which they came, so
//! that the release of a claim that was given up does not overtake the claim (L9).

use std::{
    mem,
    sync::{Arc, Mutex},
};

use tenure_core::{BackendError, locked};
use tokio::sync::oneshot;

use crate::plain::{Freeing, Plain, Taking};

/// So many under way go one by one: company would cost them more than it saves.
const FEW: usize = 4;

/// In one script at most: the server does nothing else meanwhile.
const MOST: usize = 32;

/// What became of a request that left with others.
pub(crate) enum Told<R: Plain> {
    Answer(Result<R::Answer, BackendError>),
    /// Nothing was done for anybody; it has to be asked alone.
    Alone(R),
}

/// A request, and who waits for its answer.
pub(crate) type Asked<R> = (R, oneshot::Sender<Told<R>>);

pub(crate) enum One {
    Take(Asked<Taking>),
    Free(Asked<Freeing>),
}

/// Those that leave in one script.
pub(crate) enum Run {
    Take(Vec<Asked<Taking>>),
    Free(Vec<Asked<Freeing>>),
}

impl From<Asked<Taking>> for One {
    fn from(asked: Asked<Taking>) -> Self {
        Self::Take(asked)
    }
}

impl From<Asked<Freeing>> for One {
    fn from(asked: Asked<Freeing>) -> Self {
        Self::Free(asked)
    }
}

/// Those of one connection.
pub(crate) struct Gathering(Mutex<State>);

struct State {
    ready: Vec<One>,
    /// Somebody sends what is ready, and has not handed all of it to the connection.
    is_leaving: bool,
    under_way: usize,
    /// The server takes no such script.
    is_refused: bool,
}

/// Requests that are counted for as long as it lives.
pub(crate) struct UnderWay<'a>(&'a Gathering, usize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        locked(&self.0.0).under_way -= self.1;
    }
}

impl Gathering {
    /// For a server that can do many at once, or not.
    pub(crate) fn new(can_do_many: bool) -> Self {
        let state = State { ready: Vec::new(), is_leaving: false, under_way: 0, is_refused: !can_do_many };
        Self(Mutex::new(state))
    }

    /// Whoever comes now goes behind others.
    pub(crate) fn is_leaving(&self) -> bool {
        locked(&self.0).is_leaving
    }

    /// Whether a request may go by itself.
    pub(crate) fn alone(&self) -> Option<UnderWay<'_>> {
        let mut state = locked(&self.0);
        let is_alone = !state.is_leaving && (state.is_refused || state.under_way < FEW);
        is_alone.then(|| {
            state.under_way += 1;
            UnderWay(self, 1)
        })
    }

    pub(crate) fn enter(&self, count: usize) -> UnderWay<'_> {
        locked(&self.0).under_way += count;
        UnderWay(self, count)
    }

    /// From here on each goes alone.
    pub(crate) fn refuse(&self) {
        locked(&self.0).is_refused = true;
    }

    /// One more is ready. The first one has to see to it that they leave.
    pub(crate) fn join(self: &Arc<Self>, one: One) -> Option<Leaving> {
        let mut state = locked(&self.0);
        state.ready.push(one);
        let is_first = !mem::replace(&mut state.is_leaving, true);
        is_first.then(|| Leaving { gathering: self.clone(), is_over: false })
    }
}

/// Whoever has it sends what is ready; if it is dropped before, all who wait hear that nobody will.
pub(crate) struct Leaving {
    gathering: Arc<Gathering>,
    is_over: bool,
}

impl Leaving {
    /// What is ready, in runs; nothing if that was all, and then the next one goes by itself again.
    pub(crate) fn next(&mut self) -> Option<Vec<Run>> {
        let mut state = locked(&self.gathering.0);
        let most = state.ready.len().min(MOST);
        let ready: Vec<One> = state.ready.drain(..most).collect();
        self.is_over = ready.is_empty();
        state.is_leaving = !self.is_over;
        drop(state);
        (!self.is_over).then(|| runs(ready))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        while !self.is_over {
            drop(self.next());
        }
    }
}

/// In their order. A claim that was given up before it left is not sent.
fn runs(ready: Vec<One>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for one in ready {
        match (runs.last_mut(), one) {
            (_, One::Take((_, ear))) if ear.is_closed() => {}
            (Some(Run::Take(run)), One::Take(one)) if run.len() < MOST && run[0].0.gate == one.0.gate => {
                run.push(one);
            }
            (Some(Run::Free(run)), One::Free(one)) if run.len() < MOST => run.push(one),
            (_, One::Take(one)) => runs.push(Run::Take(vec![one])),
            (_, One::Free(one)) => runs.push(Run::Free(vec![one])),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use tenure_core::LockName;

    use super::*;
    use crate::keys::{Counting, Keys};

    type Ear<R> = oneshot::Receiver<Told<R>>;

    fn take(name: &str, gate: &str) -> (One, Ear<Taking>) {
        let keys = Keys::new("%s", &LockName::new(name).unwrap(), Counting::One).unwrap();
        let (gate, owner) = (Arc::from(gate), [b'0'; 48]);
        let taking = Taking { keys, gate, owner, tail: String::new(), ttl_ms: 1, block: 1 };
        let (mouth, ear) = oneshot::channel();
        (One::Take((taking, mouth)), ear)
    }

    fn free(name: &str) -> (One, Ear<Freeing>) {
        let (mouth, ear) = oneshot::channel();
        (One::Free((Freeing { lock: name.to_owned(), owner: [b'0'; 48] }, mouth)), ear)
    }

    fn shown(runs: &[Run]) -> Vec<String> {
        let names = |run: &Run| match run {
            Run::Take(run) => run.iter().map(|one| one.0.keys.lock.clone()).collect::<Vec<_>>(),
            Run::Free(run) => run.iter().map(|one| format!("-{}", one.0.lock)).collect(),
        };
        runs.iter().map(|run| names(run).join(" ")).collect()
    }

    /// L9: a release never overtakes a claim. One gate for each script; a claim that was given up is not sent, a release is.
    #[test]
    fn they_leave_in_the_order_in_which_they_came() {
        let gathering = Arc::new(Gathering::new(true));
        let (a, _a) = take("a", "g");
        let (b, b_ear) = take("b", "g");
        let (c, _c) = take("c", "g");
        let (d, _d) = take("d", "h");
        let (e, e_ear) = free("e");
        let (f, _f) = free("f");
        let (g, _g) = take("g", "g");
        let mut leaving = gathering.join(a).expect("it is the first");
        for one in [b, c, d, e, f, g] {
            assert!(gathering.join(one).is_none(), "the first one sees to it");
        }
        drop((b_ear, e_ear));
        assert_eq!(shown(&leaving.next().unwrap()), ["a c", "d", "-e -f", "g"]);
    }

    /// While some are on their way to the connection, nobody passes them; then all is as before.
    #[test]
    fn nobody_passes_those_who_are_leaving() {
        let gathering = Arc::new(Gathering::new(true));
        assert!(gathering.alone().is_some());
        let (ones, _ears): (Vec<_>, Vec<_>) = (0..=MOST).map(|n| free(&n.to_string())).unzip();
        let mut leavings: Vec<_> = ones.into_iter().filter_map(|one| gathering.join(one)).collect();
        let mut leaving = leavings.pop().unwrap();
        assert!(leavings.is_empty() && gathering.alone().is_none() && gathering.is_leaving());
        let first = leaving.next().unwrap();
        assert!(matches!(&first[..], [Run::Free(run)] if run.len() == MOST), "no more than one script takes");
        assert!(gathering.alone().is_none() && leaving.next().is_some() && gathering.alone().is_none());
        assert!(leaving.next().is_none() && gathering.alone().is_some() && !gathering.is_leaving());
    }

    /// L8: whoever waits for one that is gone hears of it, and the next one is not held up.
    #[test]
    fn if_nobody_sends_them_they_hear_of_it() {
        let gathering = Arc::new(Gathering::new(true));
        let (one, mut ear) = free("a");
        drop(gathering.join(one).unwrap());
        assert!(matches!(ear.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(gathering.alone().is_some() && !gathering.is_leaving());
    }

    #[test]
    fn few_go_alone_and_all_where_the_server_can_do_no_more() {
        let gathering = Arc::new(Gathering::new(true));
        let few: Vec<_> = (0..FEW).map(|_| gathering.alone().unwrap()).collect();
        assert!(gathering.alone().is_none());
        drop(few);
        let many = gathering.enter(MOST);
        assert!(gathering.alone().is_none());
        gathering.refuse();
        assert!(gathering.alone().is_some());
        drop(many);
        assert!(Gathering::new(false).alone().is_some());
    }
}
