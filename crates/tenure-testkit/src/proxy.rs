//! `Proxy`: a bad network between a client and a server, switched by a test.

mod connection;
mod desk;
mod dice;
mod door;
mod lane;

use std::{
    io::Write,
    ops::RangeInclusive,
    os::unix::net::UnixStream,
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use desk::{Desk, Order, Switch};
use door::Door;
use lane::{Flow, Way};

/// Forwards TCP connections to a port of 127.0.0.1 and does to them what a bad network does.
///
/// It has its own thread and works in real time, even where a test's time is simulated. Each switch is in force when
/// its method returns: bytes that have not left the proxy by then are treated in the new way. A connection that
/// continues never loses bytes from its middle: where some were dropped, the connection stays silent, and
/// [`heal`](Self::heal) resets it.
///
/// # Dropping
/// Closes all connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    orders: Sender<Order>,
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// What a proxy has seen until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections that are open now.
    pub open: usize,
    /// Connections that were ever accepted.
    pub accepted: u64,
    /// Bytes that were delivered to the server.
    pub requested: u64,
    /// Bytes that were delivered to clients.
    pub replied: u64,
    /// Bytes of clients that are in the proxy now: held back or delayed.
    pub held_requests: usize,
    /// Bytes of the server that are in the proxy now: held back or delayed.
    pub held_replies: usize,
    /// Bytes that were dropped, in both directions.
    pub dropped: u64,
}

impl Proxy {
    /// Starts a proxy in front of the server on this port of 127.0.0.1. The seed determines each delay.
    ///
    /// # Panics
    /// If there is no port or no thread for it.
    pub fn to(port: u16, seed: u64) -> Self {
        let door = Door::new();
        let own_port = door.port();
        let (orders, inbox) = mpsc::channel();
        let (bell, ear) = UnixStream::pair().expect("a pair of sockets");
        ear.set_nonblocking(true).expect("a socket takes this setting");
        let desk = Desk::new(port, seed, door, inbox, ear);
        let thread = thread::Builder::new().name("proxy".into()).spawn(move || desk.run());
        Self { port: own_port, orders, bell, thread: Some(thread.expect("a thread")) }
    }

    /// The port to which clients connect.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it has seen until now.
    pub fn traffic(&self) -> Traffic {
        self.order(Switch::Look)
    }

    /// New connections go to another server from now on.
    pub fn lead_to(&self, port: u16) {
        self.order(Switch::LeadTo(port));
    }

    /// Each piece of bytes that arrives from now on, in either direction, is delivered this much later. The order
    /// stays the same. Zero to zero: immediately.
    pub fn delay(&self, range: RangeInclusive<Duration>) {
        self.order(Switch::Delay(range));
    }

    /// Resets all connections and refuses new ones. What was held back is lost.
    pub fn cut(&self) {
        self.order(Switch::Cut);
    }

    /// Everything is delivered again, without delay, and new connections are accepted. That includes what was held
    /// back or stalled. Connections that lost bytes are reset. A planned [`cut_after_bytes`](Self::cut_after_bytes)
    /// is cancelled.
    pub fn heal(&self) {
        self.order(Switch::Heal);
    }

    /// Half-open: old and new connections stay open, but nothing passes, and neither side sees that the other has
    /// ended. With [`pass_new`](Self::pass_new) this applies to the old connections only.
    pub fn stall(&self) {
        self.flow(&[Way::Requests, Way::Replies], Flow::Stall);
    }

    /// Requests get through, replies are dropped.
    pub fn drop_replies(&self) {
        self.flow(&[Way::Replies], Flow::Drop);
    }

    /// Requests are dropped; replies to earlier ones get through.
    pub fn drop_requests(&self) {
        self.flow(&[Way::Requests], Flow::Drop);
    }

    /// Keeps what clients send until [`release`](Self::release) delivers it, even if the client has given up by then.
    /// With [`pass_new`](Self::pass_new) the client can ask again before that, and the old request arrives late.
    pub fn hold_requests(&self) {
        self.flow(&[Way::Requests], Flow::Hold);
    }

    /// Keeps what the server answers until [`release`](Self::release) delivers it.
    pub fn hold_replies(&self) {
        self.flow(&[Way::Replies], Flow::Hold);
    }

    /// Keeps both until [`release`](Self::release) delivers them.
    pub fn hold(&self) {
        self.flow(&[Way::Requests, Way::Replies], Flow::Hold);
    }

    /// Delivers what was held back, and stops holding. Other switches stay.
    pub fn release(&self) {
        self.order(Switch::Release);
    }

    /// Connections that are made from now on pass, whatever was switched for those that exist.
    pub fn pass_new(&self) {
        self.order(Switch::PassNew);
    }

    /// After `count` more bytes to clients, the connection that got the last of them is reset: a reply is cut off.
    /// This happens once; then everything continues.
    pub fn cut_after_bytes(&self, count: u64) {
        self.order(Switch::CutAfter(count));
    }

    fn flow(&self, ways: &'static [Way], flow: Flow) {
        self.order(Switch::Flow(ways, flow));
    }

    /// Returns when the switch is in force.
    fn order(&self, switch: Switch) -> Traffic {
        let (done, is_done) = mpsc::channel();
        self.orders.send(Order { switch, done }).expect("the proxy's thread lives");
        self.ring();
        is_done.recv().expect("the proxy's thread lives")
    }

    fn ring(&self) {
        (&self.bell).write_all(&[0]).expect("the proxy's thread lives");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let (done, _) = mpsc::channel();
        // OK to ignore because a thread that has panicked has reported that, and there is nothing to end.
        let _ = self.orders.send(Order { switch: Switch::End, done });
        let _ = (&self.bell).write_all(&[0]);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
