//! The schedules: which client does what, in which order, and where the fault comes. Each is the same for both schemes.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tenure_testkit::{
    clock::Clock,
    proxy::Proxy,
    redis::{Recipe, RedisServer},
};

use crate::{
    client::WORK,
    process::Process,
    record::{Kind, What},
    servers::{Count, LANE, MasterAndReplica, OneRedis, Postgres, Quorum, Rows, ZooKeeper, address},
    world::World,
};

/// B comes while A is held up in the gap of its scheme, or has the lock.
pub(crate) fn a_pauses(world: &mut World) {
    let (_server, [mut a, mut b]) = one_redis(world);
    a.asks_and_stops_if(world.has_fault());
    let a_is_in = a.is_in_or_stands();
    b.asks();
    let b_is_in = b.is_in_within(world.ttl / 4);
    if !a_is_in {
        a.goes_on();
        a.is_in();
    }
    leave_in_turn(world, a, b, b_is_in);
}

/// A dies while it holds the lock, or in the gap of its scheme. B comes, and waits for what A left behind.
pub(crate) fn a_dies(world: &mut World) {
    let (_server, [mut a, mut b]) = one_redis(world);
    a.asks_and_stops_if(world.has_fault());
    a.is_in_or_stands();
    b.asks();
    world.pass(0.2);
    if world.has_fault() {
        a.dies();
    } else {
        a.leaves();
    }
    if b.is_in_within(3 * world.ttl) {
        world.pass(0.1);
        b.leaves();
    }
}

/// B has a clock that is ahead.
pub(crate) fn clocks_differ(world: &mut World) {
    let server = OneRedis::open(world);
    let clock = Clock::new();
    if world.has_fault() {
        clock.step(HOUR_MS);
        world.note("B", "has a clock that is one hour ahead");
    }
    let mut a = world.client("A", &server.address);
    let b = world.client_in("B", &server.address, &clock.env());
    a.enters();
    comes_beside(world, a, b, world.ttl / 3);
}

/// A is stopped until B has the lock, and then releases; C comes.
pub(crate) fn a_is_stopped(world: &mut World) {
    let (_server, [mut a, mut b, c]) = one_redis(world);
    a.enters();
    b.asks();
    world.pass(0.2);
    if world.has_fault() {
        a.stops();
        b.is_in();
        a.continues();
        a.leaves();
    } else {
        a.leaves();
        b.is_in();
    }
    comes_beside(world, b, c, world.ttl / 3);
}

/// A is held up in the middle of its release until B has the lock; C comes.
pub(crate) fn a_pauses_at_the_release(world: &mut World) {
    let (_server, [mut a, mut b, c]) = one_redis(world);
    a.enters();
    b.asks();
    world.pass(0.2);
    let has_left = a.leaves_and_stops_if(world.has_fault());
    b.is_in();
    if !has_left {
        a.goes_on();
        a.has_left();
    }
    comes_beside(world, b, c, world.ttl / 3);
}

/// Ten clients come at the same time, and the requests are counted.
pub(crate) fn ten_at_once(world: &mut World) {
    let server = OneRedis::unwatched(world);
    let mut clients: Vec<Process> =
        (1..=10).map(|n| world.client(&format!("C{n}"), &server.address)).collect();
    // Connected, so that only the work is counted.
    clients.iter_mut().for_each(Process::connects);
    let count = Count::begin(world, server.server());
    for client in &mut clients {
        client.turn(world.ttl / 20);
        if !world.has_fault() {
            client.has_left();
        }
    }
    if world.has_fault() {
        clients.iter_mut().for_each(Process::has_left);
    }
    count.end(world);
}

/// The work of A lasts longer than its lock, and B comes.
pub(crate) fn long_work(world: &mut World) {
    let (_server, [mut a, b]) = one_redis(world);
    a.enters();
    comes_beside(world, a, b, world.ttl.mul_f64(if world.has_fault() { 2.0 } else { 0.3 }));
}

/// The network of A is cut off, and B comes. Then the worker of C ends without a release, and D comes.
pub(crate) fn cut_off_and_forgotten(world: &mut World) {
    let server = OneRedis::own(world, Recipe::new());
    let network = Proxy::to(server.server().port(), 1);
    let far = address(world, network.port());
    let [mut a, mut b] = [world.client("A", &far), world.client("B", &server.address)];
    a.enters();
    b.asks();
    if world.has_fault() {
        network.stall();
        world.fault("A", "is cut off");
        b.is_in();
        world.pass(0.3);
        network.heal();
        a.leaves();
    } else {
        a.leaves();
        b.is_in();
    }
    b.leaves();
    drop((a, b));
    let [mut c, mut d] = ["C", "D"].map(|name| world.client(name, &server.address));
    c.enters();
    d.asks();
    world.pass(0.2);
    if world.has_fault() {
        c.forgets();
    } else {
        c.leaves();
    }
    if d.is_in_within(6 * world.ttl) {
        world.pass(0.1);
        d.leaves();
    }
}

/// A replica that has not received the lock of A is promoted, and B comes.
pub(crate) fn fail_over(world: &mut World) {
    let servers = MasterAndReplica::open(world);
    let [mut a, mut b] = ["A", "B"].map(|name| world.client(name, &servers.address));
    if world.has_fault() {
        servers.link.hold_replies();
        world.fault("replica", "receives nothing");
    }
    a.enters();
    if !world.has_fault() {
        servers.is_copied(&world.lock);
    }
    servers.fails_over(world);
    b.asks();
    if b.is_in_within(world.ttl.mul_f64(if world.has_fault() { 1.5 } else { 0.3 })) {
        world.pass(0.3);
        a.leaves();
    } else {
        a.leaves();
        b.is_in();
    }
    world.pass(0.2);
    b.leaves();
}

/// A server of a quorum restarts without its memory: B may find a majority next to that of A.
pub(crate) fn a_node_forgets(world: &mut World) {
    // A has no quorum to renew it after the restart.
    world.outlasts_a_busy_machine();
    let quorum = Quorum::open(world, 3);
    let ports = quorum.ports();
    let cut = Proxy::to(ports[2], 1);
    cut.cut();
    let mut a = world.client("A", &quorum.address(world, &[ports[0], ports[1], cut.port()]));
    let b = world.client("B", &quorum.address(world, &ports));
    world.note("A", "does not reach node 3");
    a.enters();
    if world.has_fault() {
        quorum.servers[1].kill();
        quorum.servers[1].start_again();
        world.fault("node 2", "restarts empty");
    }
    comes_beside(world, a, b, world.ttl / 3);
}

/// The clock of the server steps forward between the check of A and its write.
pub(crate) fn the_clock_steps(world: &mut World) {
    let clock = Clock::new();
    let server = OneRedis::own(world, Recipe::new().clock(&clock));
    let [mut a, b] = ["A", "B"].map(|name| world.client(name, &server.address));
    // Before the first renewal.
    enters_and_writes(world, &mut a, 0.05);
    a.is_about_to_write(SECOND, world.has_fault());
    let step = |_: &Process| {
        clock.step(HOUR_MS);
        world.fault(LANE, "has its clock stepped forward by 1 h");
    };
    b_writes_meanwhile(world, [a, b], step, Process::goes_on);
}

/// A is stopped between its check and its write. No lock can prevent this: only the resource can.
pub(crate) fn a_is_stopped_before_its_write(world: &mut World) {
    let (_server, [mut a, b]) = one_redis(world);
    enters_and_writes(world, &mut a, 0.1);
    a.is_about_to_write(SECOND, world.has_fault());
    b_writes_meanwhile(world, [a, b], Process::stops, |a| {
        a.goes_on();
        a.continues();
    });
}

/// The answer to A is held up until its lock has ended and B has the lock.
pub(crate) fn a_late_answer(world: &mut World) {
    let server = OneRedis::own(world, Recipe::new());
    let network = Proxy::to(server.server().port(), 1);
    let far = address(world, network.port());
    let [mut a, mut b] = [world.client("A", &far), world.client("B", &server.address)];
    // Connected before the network fails.
    a.connects();
    if world.has_fault() {
        network.hold_replies();
        world.fault("A", "receives no answer");
    }
    a.asks();
    world.waits(20.0, || server.server().command(&["EXISTS", &world.lock]).int() == 1);
    b.asks();
    if world.has_fault() {
        b.is_in();
        world.pass(0.1);
        world.note("A", "receives the answer");
        network.release();
    }
    let a_is_in = a.is_in_within(world.ttl / 3);
    if world.has_fault() {
        leave_in_turn(world, b, a, a_is_in);
    } else {
        leave_in_turn(world, a, b, false);
    }
}

/// Whenever they try, A and B get two servers each. Four servers are alive, and three are needed.
pub(crate) fn in_step(world: &mut World) {
    let quorum = Quorum::open(world, 5);
    quorum.servers[4].kill();
    world.fault("node 5", "is down");
    let near = quorum.ports();
    let far: Vec<Proxy> = near.iter().map(|port| Proxy::to(*port, 1)).collect();
    let of_a = [near[0], near[1], far[2].port(), far[3].port(), near[4]];
    let of_b = [near[3], near[2], far[1].port(), far[0].port(), near[4]];
    let mut a = world.client("A", &quorum.address(world, &of_a));
    let mut b = world.client("B", &quorum.address(world, &of_b));
    if !world.has_fault() {
        a.asks();
        b.asks();
        return leave_in_turn(world, a, b, false);
    }
    far.iter().for_each(Proxy::hold_requests);
    a.asks_and_stops_if(true);
    b.asks_and_stops_if(true);
    let has_voted = |server: &RedisServer| server.command(&["EXISTS", &world.lock]).int() == 1;
    world.waits(2.0, || quorum.servers[..4].iter().all(has_voted));
    world.note("A", "and B have two servers each");
    far.iter().for_each(Proxy::release);
    let until = Instant::now() + 4 * world.ttl;
    // In step: each goes on when both are in a gap.
    while Instant::now() < until {
        match [&mut a, &mut b].map(|client| client.is_in_or_stands_within(world.ttl)) {
            [Some(false), Some(false)] => {
                world.pass(0.15);
                a.goes_on();
                b.goes_on();
            }
            [Some(true), _] => return leave_in_turn(world, a, b, false),
            [_, Some(true)] => return leave_in_turn(world, b, a, false),
            _ => {}
        }
    }
}

/// B reads and writes while A stops between its read and its write.
pub(crate) fn both_add(world: &mut World) {
    let rows = Rows::open(world);
    let [mut a, mut b] = ["A", "B"].map(|name| world.client(name, &rows.address));
    a.adds_and_stops_if(world.has_fault());
    let stands = world.has_fault() && a.stands_within(PATIENCE);
    if !stands {
        a.has_added();
    }
    b.adds_and_stops_if(false);
    let has_added = b.has_added_within(world.ttl / 3);
    world.pass(0.1);
    if stands {
        a.goes_on();
        a.has_added();
    }
    if !has_added {
        b.has_added();
    }
    rows.sum(world);
}

/// A hundred clients come while one has the lock.
pub(crate) fn a_hundred(world: &mut World) {
    let server = OneRedis::unwatched(world);
    let names = (1..=100).map(|n| format!("{n:03}"));
    let mut clients: Vec<Process> = names.map(|name| world.starts(&name, &server.address, &[])).collect();
    clients.iter_mut().for_each(Process::is_ready);
    let mut first = world.client("first", &server.address);
    first.enters();
    if !world.has_fault() {
        first.leaves();
    }
    for client in &mut clients {
        client.turn(world.ttl / 200);
        world.pass(0.005);
        if !world.has_fault() {
            client.has_left();
        }
    }
    if world.has_fault() {
        first.leaves();
        clients.iter_mut().for_each(Process::has_left);
    }
}

/// A is stopped for longer than its session lasts, and then checks and writes.
pub(crate) fn a_session_ends(world: &mut World) {
    let server = ZooKeeper::open(world);
    let [mut a, b] = ["A", "B"].map(|name| world.client(name, &server.address));
    enters_and_writes(world, &mut a, 0.1);
    if !world.has_fault() {
        a.is_about_to_write(SECOND, false);
    }
    b_writes_meanwhile(world, [a, b], Process::stops, |a| {
        a.is_about_to_write(SECOND, false);
        a.continues();
    });
}

/// The process that holds the lock of A is killed, its work is not; B comes.
pub(crate) fn a_script_is_killed(world: &mut World) {
    let folder = tempfile::Builder::new().prefix("tenure-script-").tempdir().expect("a temporary folder");
    let (long, short) = (world.ttl * 2, world.ttl / 3);
    let script = |name, work| Process::start(name, &mut line(world, folder.path(), work), &world.referee);
    let mut a = script("A", if world.has_fault() { long } else { short });
    let work = a.starts_working();
    let watch = world.is_tenure().then(|| ends(world, work));
    world.referee.note("B", What::Opens(Kind::Client));
    world.referee.note("B", What::Asks);
    let mut b = script("B", short);
    world.pass(0.2);
    if world.has_fault() {
        a.is_killed();
    }
    b.is_in();
    b.has_left();
    match watch {
        // OK to ignore because the watch does not panic.
        Some(watch) => drop(watch.join()),
        // No process ends it before it is done.
        None => a.has_left(),
    }
}

/// A is stopped between its SELECT and its UPDATE. B comes, and adds too.
pub(crate) fn a_is_stopped_before_its_update(world: &mut World) {
    let server = Postgres::open(world);
    let [mut a, mut b] = ["A", "B"].map(|name| world.client(name, &server.address));
    a.enters();
    world.pass(0.1);
    a.adds_and_stops_if(world.has_fault());
    let stands = world.has_fault() && a.stands_within(PATIENCE);
    b.asks();
    if stands {
        world.pass(0.1);
        a.stops();
    } else {
        a.has_added();
        a.leaves();
    }
    b.is_in();
    world.pass(0.1);
    b.adds_and_stops_if(false);
    b.has_added();
    world.pass(0.2);
    if stands {
        a.goes_on();
        a.continues();
        a.has_added();
        world.pass(0.2);
    }
    b.leaves();
    server.sum(world);
}

/// One server, and clients of it: A, B, C.
fn one_redis<const N: usize>(world: &mut World) -> (OneRedis, [Process; N]) {
    let server = OneRedis::open(world);
    let clients = std::array::from_fn(|nth| world.client(["A", "B", "C"][nth], &server.address));
    (server, clients)
}

/// The first has the lock, and the second comes: at the same time if it acquires within this time, otherwise after it.
fn comes_beside(world: &World, first: Process, mut second: Process, within: Duration) {
    second.asks();
    let is_in = second.is_in_within(within);
    leave_in_turn(world, first, second, is_in);
}

/// The first has the lock, or will have it before the second. The second has asked.
fn leave_in_turn(world: &World, mut first: Process, mut second: Process, second_is_in: bool) {
    world.pass(0.2);
    first.leaves();
    if !second_is_in {
        second.is_in();
    }
    world.pass(0.1);
    second.leaves();
}

/// A enters and writes, with these parts of a ttl in between.
fn enters_and_writes(world: &World, a: &mut Process, ttls: f64) {
    a.enters();
    world.pass(ttls);
    a.writes("first of A");
    world.pass(ttls);
}

/// B comes, and writes while A is held up before its second write, which comes when A goes on.
fn b_writes_meanwhile(
    world: &World,
    [mut a, mut b]: [Process; 2],
    fault: impl FnOnce(&Process),
    goes_on: impl FnOnce(&mut Process),
) {
    b.asks();
    if world.has_fault() {
        world.pass(0.1);
        fault(&a);
        b.is_in();
        world.pass(0.1);
        b.writes("of B");
        world.pass(0.2);
        goes_on(&mut a);
        a.has_written();
        world.pass(0.2);
    } else {
        a.has_written();
        a.leaves();
        b.is_in();
        b.writes("of B");
    }
    b.leaves();
}

/// The line of the script.
fn line(world: &World, folder: &Path, work: Duration) -> Command {
    let mut command;
    if world.is_tenure() {
        command = Command::new(world.setup.tenure.as_deref().unwrap_or_else(|| "tenure".as_ref()));
        let url = format!("sqlite:{}", folder.join("locks.db").display());
        command.args(["--url", &url, "run", "--ttl", &world.seconds(), "job", "--"]);
    } else {
        command = Command::new("flock");
        command.arg("--close").arg(folder.join("job.lock"));
    }
    command.arg(&world.setup.program).args([WORK, &work.as_millis().to_string()]);
    command
}

/// Writes down when the work of A has ended.
fn ends(world: &World, work: u32) -> JoinHandle<()> {
    let referee = Arc::clone(&world.referee);
    thread::spawn(move || {
        while lives(work) {
            thread::sleep(Duration::from_millis(2));
        }
        referee.note("A", What::Dies);
    })
}

/// A process that has ended but is not reaped is dead.
fn lives(pid: u32) -> bool {
    let facts = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    facts.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

const HOUR_MS: i64 = 3_600_000;
/// What A writes when it is late.
const SECOND: &str = "second of A";
const PATIENCE: Duration = Duration::from_secs(20);
