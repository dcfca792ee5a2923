//! `Desk`: the proxy's thread, which takes orders and moves bytes.

use std::{
    io::Read,
    ops::RangeInclusive,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::proxy::{
    Traffic,
    connection::Connection,
    dice::Dice,
    door::Door,
    lane::{Flow, Way},
};

/// A request of the test, and where to report that it is done.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) switch: Switch,
    pub(super) done: Sender<Traffic>,
}

/// What to do.
#[derive(Debug)]
pub(super) enum Switch {
    Look,
    LeadTo(u16),
    Delay(RangeInclusive<Duration>),
    Flow(&'static [Way], Flow),
    Release,
    PassNew,
    CutAfter(u64),
    Cut,
    Heal,
    End,
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct Desk {
    server: u16,
    dice: Dice,
    door: Door,
    inbox: Receiver<Order>,
    ear: UnixStream,
    connections: Vec<Connection>,
    delay: RangeInclusive<Duration>,
    /// For new connections: requests, replies.
    flows: [Flow; 2],
    /// Bytes that clients may still get before the planned cut.
    limit: Option<u64>,
    /// The traffic of connections that have ended.
    past: Traffic,
}

impl Desk {
    pub(super) fn new(server: u16, seed: u64, door: Door, inbox: Receiver<Order>, ear: UnixStream) -> Self {
        Self {
            server,
            dice: Dice::new(seed),
            door,
            inbox,
            ear,
            connections: Vec::new(),
            delay: AT_ONCE,
            flows: [Flow::Pass; 2],
            limit: None,
            past: Traffic::default(),
        }
    }

    /// Runs until it receives `Switch::End`.
    pub(super) fn run(mut self) {
        loop {
            self.wait();
            let mut done = Vec::new();
            while let Ok(order) = self.inbox.try_recv() {
                if matches!(order.switch, Switch::End) {
                    return;
                }
                self.apply(order.switch);
                done.push(order.done);
            }
            self.accept();
            self.pump();
            let traffic = self.traffic();
            for done in done {
                // OK to ignore because the sender of the order may have panicked by now.
                let _ = done.send(traffic);
            }
        }
    }

    fn wait(&mut self) {
        let now = Instant::now();
        let mut waits = vec![PollFd::new(self.ear.as_fd(), PollFlags::POLLIN)];
        waits.extend(self.door.waits().map(|door| PollFd::new(door, PollFlags::POLLIN)));
        let sides = self.connections.iter().flat_map(|connection| connection.waits(now));
        waits.extend(sides.map(|(side, flags)| PollFd::new(side, flags)));
        // OK to ignore because an error is an interruption; the thread then checks everything, which is never wrong.
        let _ = poll(&mut waits, self.patience(now));
        let _ = (&self.ear).read(&mut [0; 64]);
    }

    /// The time until the next delayed piece is due. A piece that is due already waits for its socket, not for this
    /// timeout.
    fn patience(&self, now: Instant) -> PollTimeout {
        let lanes =
            self.connections.iter().flat_map(|connection| [&connection.requests, &connection.replies]);
        let next = lanes.filter_map(|lane| lane.due().filter(|due| *due > now)).min();
        let Some(next) = next else { return PollTimeout::NONE };
        // Rounded up. Otherwise the thread would poll without success for the rest of a millisecond.
        let ms = (next - now).as_micros().div_ceil(1000);
        PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
    }

    fn apply(&mut self, switch: Switch) {
        match switch {
            Switch::Look | Switch::End => {}
            Switch::LeadTo(port) => self.server = port,
            Switch::Delay(range) => self.delay = range,
            Switch::PassNew => self.flows = [Flow::Pass; 2],
            Switch::CutAfter(count) => self.limit = Some(count),
            Switch::Flow(ways, flow) => ways.iter().for_each(|way| {
                self.flows[*way as usize] = flow;
                self.connections.iter_mut().for_each(|connection| connection.lane(*way).switch(flow));
            }),
            Switch::Release => self.release(),
            Switch::Cut => {
                self.door.close();
                self.end(|_| true);
            }
            Switch::Heal => self.heal(),
        }
    }

    fn release(&mut self) {
        let lanes = self.connections.iter_mut().flat_map(Connection::lanes);
        let flows = lanes.map(|lane| &mut lane.flow).chain(&mut self.flows);
        flows.filter(|flow| **flow == Flow::Hold).for_each(|flow| *flow = Flow::Pass);
    }

    fn heal(&mut self) {
        self.door.open();
        self.end(Connection::is_to_reset);
        (self.flows, self.delay, self.limit) = ([Flow::Pass; 2], AT_ONCE, None);
        let now = Instant::now();
        for lane in self.connections.iter_mut().flat_map(Connection::lanes) {
            lane.switch(Flow::Pass);
            lane.hurry(now);
        }
    }

    fn accept(&mut self) {
        while let Some(client) = self.door.accept() {
            self.past.accepted += 1;
            let dice = self.dice.branch(self.past.accepted);
            self.connections.extend(Connection::new(client, self.server, self.flows, &dice));
        }
    }

    fn pump(&mut self) {
        for connection in &mut self.connections {
            connection.pump(&self.delay, &mut self.limit);
        }
        self.end(Connection::is_done);
    }

    /// Ends these connections: with a reset, unless both sides have ended in order.
    fn end(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in self.connections.extract_if(.., |connection| which(connection)) {
            count(&mut self.past, &connection);
            if connection.is_to_reset() || !connection.is_done() {
                connection.reset();
            }
        }
    }

    fn traffic(&mut self) -> Traffic {
        let mut traffic = Traffic { open: self.connections.len(), ..self.past };
        for connection in &mut self.connections {
            count(&mut traffic, connection);
            traffic.held_requests += connection.requests.size();
            traffic.held_replies += connection.replies.size();
        }
        traffic
    }
}

/// Adds what went through a connection.
fn count(traffic: &mut Traffic, connection: &Connection) {
    traffic.requested += connection.requests.delivered;
    traffic.replied += connection.replies.delivered;
    traffic.dropped += connection.requests.dropped + connection.replies.dropped;
}

const AT_ONCE: RangeInclusive<Duration> = Duration::ZERO..=Duration::ZERO;
