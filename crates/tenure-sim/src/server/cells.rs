//! A server of cells. It compares and sets, and knows nothing of locks: comparing ledgers shows what a write did to them.

use std::{collections::BTreeMap, time::Duration};

use tenure_cas::{
    CellReading, CellWrite, NewCell, NewPlace, Newcomer, OldPlace, Patience, ReadRequest, ShownOwner,
    WriteAnswer, WrittenCell, decode,
};
use tenure_core::{Hint, HolderView, LockName, LockView, Moment, OwnerId, Priority};
use tenure_ledger::{Ledger, Place};
use tenure_testkit::cells::Cells;

use super::{Effects, Node, noted};
use crate::{clockwork::Micros, history::Served};

/// What a client asks of it.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Connect,
    Tell(Hint),
    Read(Vec<LockName>, ReadRequest),
    Make(LockName, String),
    Write(Vec<(LockName, WriteAsk)>),
    Enqueue(LockName, EnqueueAsk),
    Append {
        name: LockName,
        owner: OwnerId,
        class: &'static str,
        state: String,
        may_be_there: bool,
        behind: String,
        within: (Duration, Duration),
    },
    Keep {
        key: String,
        state: String,
        within: (Duration, Duration),
    },
    /// The owner with this text, which the write would end.
    StopRelying(LockName, WriteAsk, String),
    Remove {
        name: LockName,
        owner: OwnerId,
        key: String,
        may_have_another: bool,
    },
}

/// A write on its way.
#[derive(Clone, Debug)]
pub(crate) struct WriteAsk {
    on: (i64, String),
    state: String,
    is_busy: bool,
    within: (Duration, Duration),
    patience: Patience,
    hints: Vec<Hint>,
    gone: Vec<String>,
    is_last: bool,
    shown: Option<(u32, String)>,
}

/// A place on its way into a cell.
#[derive(Clone, Debug)]
pub(crate) struct EnqueueAsk {
    owner: OwnerId,
    state: String,
    long: String,
    each: String,
    most: usize,
    within: (Duration, Duration),
}

/// What it answers.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// In this epoch.
    Connected(u64),
    Read(Vec<CellReading>),
    Made(Option<NewCell>),
    Written(Vec<WriteAnswer>),
    /// A stranger has the cell locked, for this time.
    Locked(Duration),
    Enqueued(Option<CellReading>),
    Appended(Option<String>),
    Done(bool),
}

/// What strangers do to the cells of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strangers {
    /// Until then, a trigger undoes what is written.
    pub(crate) undo_until: Micros,
    /// By how much the clock of readings is ahead, until when.
    pub(crate) split: (i64, Micros),
    /// A transaction has all cells locked until then.
    pub(crate) lock_until: Micros,
    /// The machine from which each owner was first seen: no other machine's write may end its lease.
    homes: BTreeMap<OwnerId, usize>,
}

impl WriteAsk {
    pub(crate) fn of(write: &CellWrite<'_>) -> Self {
        Self {
            on: (write.on.0, write.on.1.to_owned()),
            state: write.state.to_owned(),
            is_busy: write.is_busy,
            within: write.within,
            patience: write.patience,
            hints: write.hints.to_vec(),
            gone: write.gone.to_vec(),
            is_last: write.is_last,
            shown: write.shown.map(|shown| (shown.slot, shown.text.to_owned())),
        }
    }

    fn write(&self) -> CellWrite<'_> {
        CellWrite {
            on: (self.on.0, &self.on.1),
            state: &self.state,
            is_busy: self.is_busy,
            within: self.within,
            patience: self.patience,
            hints: &self.hints,
            gone: &self.gone,
            is_last: self.is_last,
            shown: self.shown.as_ref().map(|(slot, text)| ShownOwner { slot: *slot, text }),
        }
    }
}

impl EnqueueAsk {
    pub(crate) fn of(place: &Newcomer<'_>) -> Self {
        let Newcomer { owner, state, long, each, most, within } = *place;
        Self { owner, state: state.to_owned(), long: long.to_owned(), each: each.to_owned(), most, within }
    }

    fn newcomer(&self) -> Newcomer<'_> {
        let Self { owner, state, long, each, most, within } = self;
        Newcomer { owner: *owner, state, long, each, most: *most, within: *within }
    }
}

/// Holders that have a token, and until when they hold.
fn entered(view: &LockView) -> impl Iterator<Item = (OwnerId, u64, Duration)> {
    let entered = |holder: &HolderView| {
        let owner = holder.owner.parse().ok()?;
        Some((owner, holder.token?.get(), holder.expires_in.unwrap_or_default()))
    };
    view.holders.iter().filter_map(entered)
}

/// Each owner that holds, was handed the lock or waits.
fn everybody(view: &LockView) -> impl Iterator<Item = OwnerId> {
    let owners = view.holders.iter().map(|holder| &holder.owner);
    owners.chain(view.queue.iter().map(|waiter| &waiter.owner)).filter_map(|owner| owner.parse().ok())
}

fn ledger(state: &str) -> Ledger {
    if state.is_empty() { Ledger::new(0) } else { decode(state).unwrap_or_default() }
}

/// A ledger as it is written, with points in time as durations since the epoch of the clock.
fn shown(state: &str, name: &LockName) -> LockView {
    ledger(state).view(name.clone(), Moment { boot: Duration::ZERO, wall: Duration::ZERO })
}

impl Node {
    /// Carries out what is asked, as one atomic step.
    pub(super) fn serve_cells(
        &mut self,
        now: Micros,
        (from, ask): (usize, &Ask),
        effects: &mut Effects,
    ) -> Told {
        let clock = Duration::from_micros(self.life.clock.wall(now));
        match ask {
            Ask::Tell(hint) => {
                effects.wakes.push((hint.audience, hint.owner));
                Told::Done(true)
            }
            Ask::Connect => Told::Connected(self.epoch),
            Ask::Read(names, look) => {
                let (by, until) = self.strangers.split;
                let by = if until > now { by } else { 0 };
                let clock = Duration::from_micros(self.life.clock.wall(now).saturating_add_signed(by));
                Told::Read(names.iter().map(|name| self.data.cells.read(name, look, clock)).collect())
            }
            Ask::Make(name, state) => Told::Made(self.make_cell((now, clock), name, state)),
            Ask::Write(writes) => {
                let is_locked = self.strangers.lock_until > now;
                let waits = writes.iter().any(|(_, write)| write.patience != Patience::None);
                if is_locked && waits {
                    return Told::Locked(Duration::from_micros(self.strangers.lock_until - now));
                }
                let write = |(name, write)| {
                    if is_locked {
                        WriteAnswer::Locked(None)
                    } else {
                        self.write_cell((now, clock), from, (name, write), effects)
                    }
                };
                Told::Written(writes.iter().map(|(name, write)| (name, write)).map(write).collect())
            }
            Ask::Enqueue(name, place) => self.enqueue((now, clock), from, (name, place), effects),
            Ask::Append { name, owner, class, state, may_be_there, behind, within } => {
                let (owner, may_be_there, within) = (*owner, *may_be_there, *within);
                let place = NewPlace { key: None, owner, class, state, may_be_there, behind, within };
                let key = self.data.cells.append(name, &place, clock);
                if key.is_some() {
                    self.strangers.homes.entry(owner).or_insert(from);
                    self.note(
                        name,
                        owner,
                        Served::Queued { has_turn: true, priority: Priority::Normal },
                        effects,
                    );
                }
                Told::Appended(key)
            }
            Ask::Keep { key, state, within } => {
                Told::Done(self.data.cells.keep((key, state), *within, clock))
            }
            Ask::StopRelying(name, write, text) => {
                self.data.cells.stop_relying(name, &write.write(), text, clock);
                Told::Done(true)
            }
            Ask::Remove { name, owner, key, may_have_another } => {
                let place = OldPlace { owner: *owner, key, may_have_another: *may_have_another };
                let was_there = self.data.cells.remove(name, &place);
                self.note(name, *owner, Served::Left(was_there), effects);
                Told::Done(was_there)
            }
        }
    }

    fn make_cell(
        &mut self,
        (now, clock): (Micros, Duration),
        name: &LockName,
        state: &str,
    ) -> Option<NewCell> {
        let before = self.data.cells.clone();
        let made = self.data.cells.make(name, state, clock)?;
        if self.strangers.undo_until > now {
            self.data.cells = before;
            return Some(NewCell { is_ours: false, ..made });
        }
        Some(made)
    }

    fn write_cell(
        &mut self,
        (now, clock): (Micros, Duration),
        from: usize,
        (name, ask): (&LockName, &WriteAsk),
        effects: &mut Effects,
    ) -> WriteAnswer {
        let before = self.data.cells.clone();
        let stored = match self.data.cells.write(name, &ask.write(), clock) {
            WriteAnswer::Done(stored) => stored,
            other => return other,
        };
        if self.strangers.undo_until > now {
            self.data.cells = before;
            return WriteAnswer::Done(WrittenCell { is_ours: false, ..stored });
        }
        effects.wakes.extend(ask.hints.iter().map(|hint| (hint.audience, hint.owner)));
        self.note_change(name, (&before, clock), from, effects);
        WriteAnswer::Done(stored)
    }

    fn enqueue(
        &mut self,
        (now, clock): (Micros, Duration),
        from: usize,
        (name, place): (&LockName, &EnqueueAsk),
        effects: &mut Effects,
    ) -> Told {
        if self.strangers.lock_until > now {
            return Told::Locked(Duration::from_micros(self.strangers.lock_until - now));
        }
        let before = self.data.cells.clone();
        let reading = self.data.cells.enqueue(name, &place.newcomer(), clock);
        if self.strangers.undo_until > now {
            self.data.cells = before;
            return Told::Enqueued(None);
        }
        if reading.is_some() {
            self.note_change(name, (&before, clock), from, effects);
        }
        Told::Enqueued(reading)
    }

    /// Notes what a write did to which owner.
    fn note_change(
        &mut self,
        name: &LockName,
        (before, clock): (&Cells, Duration),
        from: usize,
        effects: &mut Effects,
    ) {
        let (old, new) = (shown(before.state(name), name), shown(self.data.cells.state(name), name));
        let beside = |cells: &Cells| -> Vec<OwnerId> {
            let texts = cells.places(name);
            texts.iter().filter_map(|text| Place::from_text(text).ok()).map(|place| place.owner()).collect()
        };
        let (known, remain) = (beside(before), beside(&self.data.cells));
        let is_in = |owner: &OwnerId| everybody(&new).any(|kept| kept == *owner);
        // An owner that was put next to the cell twice leaves once.
        let went = known.iter().copied().filter(|owner| !remain.contains(owner));
        for owner in everybody(&old).chain(went).filter(|owner| !is_in(owner)) {
            self.note(name, owner, Served::Left(true), effects);
        }
        for (owner, _, ends) in entered(&old).filter(|(_, _, ends)| *ends > clock) {
            let later = entered(&new).find(|(kept, ..)| *kept == owner).map(|(_, _, later)| later);
            let is_strange = self.strangers.homes.get(&owner).is_some_and(|home| *home != from);
            if is_strange && later.is_none_or(|later| later < ends) {
                let by = entered(&new).map(|(other, ..)| other).find(|other| *other != owner);
                self.note(name, owner, Served::Robbed(by.unwrap_or(owner)), effects);
            }
        }
        for (owner, token, ends) in entered(&new) {
            self.strangers.homes.entry(owner).or_insert(from);
            let did = match entered(&old).find(|(known, ..)| *known == owner) {
                // A release that leaves the owner to a transaction ends the lease.
                Some((_, known, earlier)) if known == token && ends <= earlier => continue,
                Some((_, known, _)) if known == token => Served::Renewed(true),
                _ if token > old.fence.get() => {
                    Served::Granted { first: token, last: new.fence.get(), priority: Priority::Normal }
                }
                _ => Served::Recreated,
            };
            self.note(name, owner, did, effects);
        }
        let at = Moment { boot: clock, wall: clock };
        let [was, is] =
            [before, &self.data.cells].map(|cells| ledger(cells.state(name)).view(name.clone(), at));
        if let Some(memo) = is.memo.filter(|memo| Some(memo) != was.memo.as_ref())
            && let Ok(owner) = memo.owner.parse()
        {
            self.note(name, owner, noted(&was, owner, memo.token), effects);
        }
        let came = new.queue.iter().filter_map(|waiter| waiter.owner.parse().ok());
        for owner in came.filter(|owner| !everybody(&old).chain(known.iter().copied()).any(|k| k == *owner)) {
            self.strangers.homes.entry(owner).or_insert(from);
            self.note(name, owner, Served::Queued { has_turn: true, priority: Priority::Normal }, effects);
        }
    }

    /// Owners that held in these cells, and do so no more or not as long: what this server has forgotten.
    pub(crate) fn forgotten_since(&self, before: &Cells) -> Vec<(LockName, OwnerId)> {
        let mut forgotten = Vec::new();
        for name in before.names() {
            let (old, new) = (shown(before.state(name), name), shown(self.data.cells.state(name), name));
            let is_kept = |owner, token, ends| {
                entered(&new).any(|(kept, same, later)| (kept, same) == (owner, token) && later >= ends)
            };
            let lost = entered(&old).filter(|(owner, token, ends)| !is_kept(*owner, *token, *ends));
            forgotten.extend(lost.map(|(owner, ..)| (name.clone(), owner)));
        }
        forgotten
    }

    /// A view of each lock.
    pub(super) fn leftover_cells(&self, clock: Duration) -> Vec<LockView> {
        let at = Moment { boot: clock, wall: clock };
        let view = |name: &LockName| ledger(self.data.cells.state(name)).view(name.clone(), at);
        self.data.cells.names().map(view).collect()
    }
}
