//! `Process`: a process that takes the lock, as a scene sees it from outside.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::patience::slowness;

use crate::{
    protocol::{Message, Order, Stamped},
    record::{Kind, Referee, What},
};

/// A client in its own process. It ends with the scene.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    input: ChildStdin,
    messages: Receiver<Message>,
    referee: Arc<Referee>,
}

impl Process {
    /// Starts it; returns immediately.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub(crate) fn start(name: &str, command: &mut Command, referee: &Arc<Referee>) -> Self {
        referee.note(name, What::Opens(Kind::Client));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start a client: {error}"));
        let input = child.stdin.take().expect("BUG: it was piped");
        let output = child.stdout.take().expect("BUG: it was piped");
        let errors = child.stderr.take().expect("BUG: it was piped");
        let (tell, messages) = mpsc::channel();
        let (referee, lane) = (Arc::clone(referee), name.to_owned());
        let log = Arc::clone(&referee);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                record(&log, &lane, &line, &tell);
            }
            let last = BufReader::new(errors).lines().map_while(Result::ok).last();
            // OK to ignore because a scene that has ended receives no more messages.
            let _ = tell.send(Message::Fails(last.unwrap_or_else(|| "it has ended".into())));
        });
        Self { name: name.to_owned(), child, input, messages, referee }
    }

    /// It is connected.
    pub(crate) fn is_ready(&mut self) {
        self.awaits("is connected", |message| (*message == Message::Ready).then_some(()));
    }

    /// It asks for the lock, and does not stop in between.
    pub(crate) fn asks(&mut self) {
        self.asks_and_stops_if(false);
    }

    /// It asks for the lock. If `pauses`, it stops in the gap of its scheme, if the scheme has one.
    pub(crate) fn asks_and_stops_if(&mut self, pauses: bool) {
        self.referee.note(&self.name, What::Asks);
        self.order(&Order::Lock { pauses });
    }

    /// Waits until it has the lock or stops in a gap. Returns whether it has the lock.
    pub(crate) fn is_in_or_stands(&mut self) -> bool {
        self.awaits("is in, or stands in a gap", is_in_or_stands)
    }

    /// The same within this time.
    pub(crate) fn is_in_or_stands_within(&mut self, time: Duration) -> Option<bool> {
        self.awaits_within(time, is_in_or_stands)
    }

    /// Waits until it has the lock.
    pub(crate) fn is_in(&mut self) {
        self.awaits("is in", is_in);
    }

    /// Whether it has the lock within this time.
    pub(crate) fn is_in_within(&mut self, time: Duration) -> bool {
        self.awaits_within(time, is_in).is_some()
    }

    /// It asks for the lock and gets it.
    pub(crate) fn enters(&mut self) {
        self.asks();
        self.is_in();
    }

    /// It releases the lock, without a stop.
    pub(crate) fn leaves(&mut self) {
        self.order(&Order::Unlock { pauses: false });
        self.has_left();
    }

    /// It releases the lock. If `pauses`, it stops in the gap of its scheme, if the scheme has one. Returns whether it is
    /// done.
    pub(crate) fn leaves_and_stops_if(&mut self, pauses: bool) -> bool {
        self.order(&Order::Unlock { pauses });
        self.awaits("has left, or stands in a gap", |message| match message {
            Message::Unlocked => Some(true),
            Message::Gap(_) => Some(false),
            _ => None,
        })
    }

    /// Waits until it has released.
    pub(crate) fn has_left(&mut self) {
        self.awaits("has left", |message| (*message == Message::Unlocked).then_some(()));
    }

    /// It makes its connection.
    pub(crate) fn connects(&mut self) {
        self.order(&Order::Connect);
        self.has_left();
    }

    /// It takes the lock, works for `work`, and releases the lock without another order.
    pub(crate) fn turn(&mut self, work: Duration) {
        self.referee.note(&self.name, What::Asks);
        self.order(&Order::Turn { work });
    }

    /// Its worker ends and does not release the lock; the process lives on.
    pub(crate) fn forgets(&mut self) {
        self.order(&Order::Forget);
        self.awaits("has forgotten", |message| (*message == Message::Abandons).then_some(()));
    }

    /// It checks whether it has the lock, and writes if so.
    pub(crate) fn writes(&mut self, text: &str) {
        self.is_about_to_write(text, false);
        self.has_written();
    }

    /// It checks whether it has the lock. If `pauses`, it stops before the write.
    pub(crate) fn is_about_to_write(&mut self, text: &str, pauses: bool) {
        self.order(&Order::Write { text: text.to_owned(), pauses });
        if pauses {
            self.awaits("stands before the write", |message| {
                matches!(message, Message::Gap(_) | Message::HeldBack).then_some(())
            });
        }
    }

    /// Waits until it has written, or has not because it no longer treats the lock as held.
    pub(crate) fn has_written(&mut self) {
        self.awaits("has written", |message| {
            matches!(message, Message::Writes { .. } | Message::HeldBack).then_some(())
        });
    }

    /// It reads a number, adds one, and writes it back. If `pauses`, it stops in between.
    pub(crate) fn adds_and_stops_if(&mut self, pauses: bool) {
        self.order(&Order::Add { pauses });
    }

    /// Whether it stops in a gap within this time.
    pub(crate) fn stands_within(&mut self, time: Duration) -> bool {
        self.awaits_within(time, |message| matches!(message, Message::Gap(_)).then_some(())).is_some()
    }

    /// Whether it has added within this time.
    pub(crate) fn has_added_within(&mut self, time: Duration) -> bool {
        self.awaits_within(time, has_added).is_some()
    }

    /// Waits until it has added.
    pub(crate) fn has_added(&mut self) {
        self.awaits("has added", has_added);
    }

    /// Goes on after a gap.
    pub(crate) fn goes_on(&mut self) {
        self.order(&Order::GoOn);
    }

    /// Waits until the work under its lock has begun. Its process.
    pub(crate) fn starts_working(&mut self) -> u32 {
        self.awaits("works", |message| match message {
            Message::Locked { alias, .. } => alias.parse().ok(),
            _ => None,
        })
    }

    /// `kill -9` of the process that holds the lock, not of the work.
    pub(crate) fn is_killed(&mut self) {
        self.referee.note(&self.name, What::Fault("loses its script to kill -9".into()));
        self.end();
    }

    /// `kill -9`.
    pub(crate) fn dies(&mut self) {
        self.end();
        self.referee.note(&self.name, What::Dies);
    }

    /// It does nothing any more, and cannot notice that.
    pub(crate) fn stops(&self) {
        self.referee.note(&self.name, What::Stops);
        self.signal(Signal::SIGSTOP);
    }

    /// It goes on after it was stopped, as if nothing had happened.
    pub(crate) fn continues(&self) {
        self.referee.note(&self.name, What::GoesOn);
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id is an i32");
        // OK because only `end` reaps the child, so the number is still its own.
        kill(Pid::from_raw(pid), signal).expect("our own child can be signalled");
    }

    fn order(&mut self, order: &Order) {
        let line = serde_json::to_string(order).expect("BUG: an order is JSON");
        writeln!(self.input, "{line}")
            .unwrap_or_else(|error| panic!("{} takes no order: {error}", self.name));
    }

    fn awaits<T>(&mut self, what: &str, find: impl Fn(&Message) -> Option<T>) -> T {
        let patience = PATIENCE * slowness();
        let found = self.awaits_within(patience, find);
        found.unwrap_or_else(|| panic!("waited {patience:?} in vain until {} {what}", self.name))
    }

    fn awaits_within<T>(&mut self, time: Duration, find: impl Fn(&Message) -> Option<T>) -> Option<T> {
        let until = Instant::now() + time;
        loop {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Message::Fails(why)) => panic!("{}: {why}", self.name),
                Ok(word) => {
                    if let Some(found) = find(&word) {
                        return Some(found);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => panic!("{} has ended", self.name),
            }
        }
    }

    fn end(&mut self) {
        // OK to ignore because a child that has ended cannot be killed, and the wait reaps it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn is_in(message: &Message) -> Option<()> {
    matches!(message, Message::Locked { .. }).then_some(())
}

fn is_in_or_stands(message: &Message) -> Option<bool> {
    match message {
        Message::Locked { .. } => Some(true),
        Message::Gap(_) => Some(false),
        _ => None,
    }
}

fn has_added(message: &Message) -> Option<()> {
    matches!(message, Message::Added(_)).then_some(())
}

/// Records what a client sends, and passes it on.
fn record(referee: &Referee, lane: &str, line: &str, tell: &Sender<Message>) {
    let sent: Stamped = serde_json::from_str(line).unwrap_or_else(|error| Stamped {
        at: Duration::ZERO,
        what: Message::Fails(format!("{error}: {line}")),
    });
    let note = |what| referee.note_at(sent.at, lane, what);
    match &sent.what {
        Message::Locked { alias, .. } => {
            referee.knows(lane, alias);
            note(What::Enters);
        }
        Message::Leaves => note(What::Leaves),
        Message::Abandons => note(What::Abandons),
        Message::Lost { by_clock } => note(What::Hears { by_clock: *by_clock }),
        Message::HeldBack => note(What::Note("does not write: it knows that the lock is not its own".into())),
        Message::Writes { text, token } => referee.write(lane, text, *token),
        Message::Added(is_taken) => note(What::Adds { is_taken: *is_taken }),
        Message::Notes(text) => note(What::Note(text.clone())),
        Message::Gap(gap) => note(What::Note(format!("pauses {gap}"))),
        Message::Ready | Message::Unlocked | Message::Fails(_) => {}
    }
    // OK to ignore because a scene that has ended receives no more messages.
    let _ = tell.send(sent.what);
}

const PATIENCE: Duration = Duration::from_secs(20);
