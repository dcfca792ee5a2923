//! Each switch of the proxy does what it says, to the byte.

#![allow(clippy::disallowed_methods, reason = "a proxy delays real bytes by real time")]

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use tenure_testkit::{
    patience::{eventually, slowness},
    proxy::{Proxy, Traffic},
};

const PATIENCE: Duration = Duration::from_secs(10);
/// How long we look whether something does not come.
const A_WHILE: Duration = Duration::from_millis(100);

/// A server that says again what it hears, and ends when its client does. Its port.
fn echo() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("a listener has an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

fn stage() -> Proxy {
    Proxy::to(echo(), 1)
}

/// A client behind a proxy.
struct Client(TcpStream);

impl Client {
    fn of(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()));
        let client = Self(stream.expect("the proxy accepts"));
        client.set_patience(PATIENCE * slowness());
        client
    }

    fn set_patience(&self, patience: Duration) {
        self.0.set_read_timeout(Some(patience)).expect("a patience");
    }

    fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).expect("a connection that is open");
    }

    fn hear(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).expect("what was said");
        String::from_utf8(bytes).expect("a text")
    }

    fn echoes(&mut self, text: &str) -> bool {
        self.say(text);
        self.hear(text.len()) == text
    }

    fn hears_nothing(&mut self) -> bool {
        self.set_patience(A_WHILE);
        let heard = self.0.read(&mut [0]);
        self.set_patience(PATIENCE * slowness());
        heard.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// What comes at the end: bytes, an end in order (`Ok(0)`), or a reset.
    fn ending(&mut self) -> Result<usize, ErrorKind> {
        self.0.read(&mut [0; 16]).map_err(|error| error.kind())
    }
}

fn await_traffic(proxy: &Proxy, what: &str, condition: impl Fn(Traffic) -> bool) {
    eventually(what, PATIENCE, || condition(proxy.traffic()).then_some(()));
}

#[test]
fn bytes_go_through_and_are_counted_and_ends_too() {
    let proxy = stage();
    let (mut one, mut two) = (Client::of(&proxy), Client::of(&proxy));
    assert!(one.echoes("hello") && two.echoes("you"));
    let traffic = proxy.traffic();
    assert_eq!((traffic.open, traffic.accepted), (2, 2));
    assert_eq!((traffic.requested, traffic.replied, traffic.dropped), (8, 8, 0));
    one.say("last");
    one.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(one.hear(4), "last");
    assert_eq!(one.ending(), Ok(0));
    await_traffic(&proxy, "the connection is gone", |traffic| traffic.open == 1);
    assert!(two.echoes("still here"));
}

#[test]
fn a_lot_of_bytes_goes_through_whole() {
    let proxy = stage();
    let mut client = Client::of(&proxy);
    let text: String = (0..400_000).map(|n: u32| char::from(b'a' + (n % 23) as u8)).collect();
    let mut writer = client.0.try_clone().unwrap();
    let sent = text.clone();
    let speaker = thread::spawn(move || writer.write_all(sent.as_bytes()).unwrap());
    assert!(client.hear(text.len()) == text);
    speaker.join().unwrap();
}

#[test]
fn a_delay_takes_its_time_in_both_directions_and_keeps_the_order() {
    let proxy = stage();
    let mut client = Client::of(&proxy);
    proxy.delay(Duration::from_millis(30)..=Duration::from_millis(60));
    let start = Instant::now();
    assert!(client.echoes("slow"));
    assert!(start.elapsed() >= Duration::from_millis(60));
    for number in 0..30 {
        client.say(&number.to_string());
        thread::yield_now();
    }
    let expected: String = (0..30).map(|number| number.to_string()).collect();
    assert_eq!(client.hear(expected.len()), expected);
    proxy.delay(Duration::ZERO..=Duration::ZERO);
    assert!(client.echoes("fast"));
}

#[test]
fn a_cut_resets_and_refuses_until_it_is_healed() {
    let proxy = stage();
    let mut client = Client::of(&proxy);
    assert!(client.echoes("a"));
    proxy.cut();
    assert_eq!(client.ending(), Err(ErrorKind::ConnectionReset));
    for _ in 0..3 {
        let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, proxy.port())).is_err(), "the port stays ours");
    proxy.cut();
    assert_eq!(proxy.traffic().open, 0);
    for _ in 0..2 {
        proxy.heal();
        assert!(Client::of(&proxy).echoes("b"));
        proxy.cut();
    }
}

#[test]
fn a_cut_is_healed_while_an_ended_connection_still_has_the_port() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::to(server.local_addr().unwrap().port(), 1);
    let goodbye = || {
        let mut client = Client::of(&proxy);
        // The server ends it first, so that the kernel keeps the proxy's side for a minute (TIME_WAIT).
        drop(server.accept().unwrap());
        assert_eq!(client.ending(), Ok(0));
        drop(client);
        await_traffic(&proxy, "the connection is gone", |traffic| traffic.open == 0);
    };
    for _ in 0..2 {
        goodbye();
        proxy.cut();
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, proxy.port())).is_err(), "the port stays ours");
        proxy.heal();
    }
    goodbye();
}

#[test]
fn a_stall_keeps_connections_open_and_delivers_later() {
    let proxy = stage();
    let mut old = Client::of(&proxy);
    assert!(old.echoes("a"));
    proxy.stall();
    old.say("b");
    let mut new = Client::of(&proxy);
    new.say("c");
    assert!(old.hears_nothing() && new.hears_nothing());
    assert_eq!(proxy.traffic().requested, 1);
    proxy.heal();
    assert_eq!((old.hear(1), new.hear(1)), ("b".into(), "c".into()));
}

#[test]
fn a_stall_of_the_old_connections_lets_new_ones_pass() {
    let proxy = stage();
    let mut old = Client::of(&proxy);
    assert!(old.echoes("a"));
    proxy.stall();
    proxy.pass_new();
    assert!(Client::of(&proxy).echoes("b"));
    old.say("c");
    assert!(old.hears_nothing());
    proxy.heal();
    assert_eq!(old.hear(1), "c");
}

#[test]
fn dropped_replies_belong_to_requests_that_arrived() {
    let proxy = stage();
    let mut client = Client::of(&proxy);
    proxy.drop_replies();
    client.say("abc");
    await_traffic(&proxy, "the reply is dropped", |traffic| (traffic.requested, traffic.dropped) == (3, 3));
    assert!(client.hears_nothing());
    proxy.heal();
    assert_eq!(client.ending(), Err(ErrorKind::ConnectionReset), "never a stream with a hole");
    assert!(Client::of(&proxy).echoes("new"));
}

#[test]
fn dropped_requests_never_arrive() {
    let proxy = stage();
    let (mut client, mut silent) = (Client::of(&proxy), Client::of(&proxy));
    assert!(silent.echoes("a"));
    proxy.drop_requests();
    client.say("abc");
    await_traffic(&proxy, "the request is dropped", |traffic| traffic.dropped == 3);
    assert_eq!(proxy.traffic().requested, 1);
    proxy.heal();
    assert_eq!(client.ending(), Err(ErrorKind::ConnectionReset));
    assert!(silent.echoes("who lost nothing goes on"));
}

#[test]
fn a_held_request_arrives_after_its_client_has_gone() {
    let proxy = stage();
    let mut gone = Client::of(&proxy);
    assert!(gone.echoes("a"));
    proxy.hold_requests();
    proxy.pass_new();
    gone.say("late");
    await_traffic(&proxy, "the request is held", |traffic| traffic.held_requests == 4);
    drop(gone);
    assert!(Client::of(&proxy).echoes("b"));
    assert_eq!(proxy.traffic().requested, 2);
    proxy.release();
    assert_eq!((proxy.traffic().requested, proxy.traffic().held_requests), (6, 0));
    await_traffic(&proxy, "all connections are gone", |traffic| traffic.open == 0);
}

#[test]
fn a_held_reply_comes_late() {
    let proxy = stage();
    let mut client = Client::of(&proxy);
    proxy.hold_replies();
    client.say("abc");
    await_traffic(&proxy, "the reply is held", |traffic| traffic.held_replies == 3);
    assert!(client.hears_nothing());
    proxy.release();
    assert_eq!(client.hear(3), "abc");
    proxy.hold();
    client.say("de");
    await_traffic(&proxy, "the request is held", |traffic| traffic.held_requests == 2);
    proxy.release();
    assert_eq!(client.hear(2), "de");
}

#[test]
fn a_reply_is_torn_at_the_byte() {
    let proxy = stage();
    let (mut client, mut other) = (Client::of(&proxy), Client::of(&proxy));
    assert!(client.echoes("a") && other.echoes("b"));
    proxy.cut_after_bytes(2);
    client.say("hello");
    assert_eq!(client.hear(2), "he");
    assert_eq!(client.ending(), Err(ErrorKind::ConnectionReset));
    assert!(other.echoes("once only"));
    proxy.cut_after_bytes(0);
    other.say("x");
    assert_eq!(other.ending(), Err(ErrorKind::ConnectionReset));
    assert!(Client::of(&proxy).echoes("c"));
}

#[test]
fn where_no_server_is_a_client_is_reset() {
    let nobody = Proxy::to(1, 1);
    assert_eq!(Client::of(&nobody).ending(), Err(ErrorKind::ConnectionReset));
    assert_eq!(nobody.traffic().open, 0);
    nobody.lead_to(echo());
    assert!(Client::of(&nobody).echoes("now"));
}

#[test]
fn the_switches_can_be_used_from_several_threads() {
    let proxy = stage();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    proxy.hold();
                    proxy.release();
                    proxy.traffic();
                }
            });
        }
        let mut client = Client::of(&proxy);
        assert!((0..50).all(|_| client.echoes("hello")));
    });
}

#[test]
fn a_proxy_that_is_dropped_closes_everything() {
    let proxy = stage();
    let mut client = Client::of(&proxy);
    assert!(client.echoes("a"));
    let port = proxy.port();
    drop(proxy);
    assert!(!matches!(client.ending(), Ok(1..)));
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}
