//! The play: three nodes, a client that looks the leader up, and the end of a leader.

use std::{
    env,
    error::Error,
    io::Read,
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tenure::{blocking, election::Leader};

use crate::node::{TTL, VERB};

const NODES: [&str; 3] = ["anna", "berta", "clara"];

/// Plays it, and fails if anything happens that should not.
pub(crate) fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let locks = blocking::connect(url)?;
    let election = locks.election("leader-address");
    let mut nodes = Vec::new();
    for name in NODES {
        nodes.push(Node::start(name, url)?);
    }
    println!("{} campaign; a client asks the store who leads, and goes there", NODES.join(", "));
    let mut former: Option<Leader> = None;
    while nodes.len() > 1 {
        let leader = next(&election, former.as_ref())?;
        let address = leader.proclaimed.as_deref().ok_or("the leader has no address")?;
        let mut said = String::new();
        TcpStream::connect(address)?.read_to_string(&mut said)?;
        println!("client  finds the leader at its address, and hears: {}", said.trim_end());
        let name = leader.label.as_ref().map(|label| label.host.clone()).unwrap_or_default();
        expect("who answers is who leads", said == format!("{name} leads in term {}\n", leader.term))?;
        expect("terms grow", former.as_ref().is_none_or(|former| former.term < leader.term))?;
        let at = nodes.iter().position(|node| node.name == name).ok_or("the leader is none of ours")?;
        drop(nodes.swap_remove(at));
        println!("        {name} is killed; another one leads when its lease of {} s is over", TTL.as_secs());
        former = Some(leader);
    }
    println!("\nThe third one leads now: {}", nodes[0].name);
    let last = next(&election, former.as_ref())?;
    expect("it is the last one", last.label.is_some_and(|label| label.host == nodes[0].name))
}

/// Waits for a leader that is not the former one and has said where it is.
fn next(election: &blocking::Election, former: Option<&Leader>) -> Result<Leader, Box<dyn Error>> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let leader = election.leader()?.filter(|leader| leader.proclaimed.is_some());
        match leader.filter(|leader| former.is_none_or(|former| former.owner != leader.owner)) {
            Some(leader) => return Ok(leader),
            None => thread::sleep(Duration::from_millis(100)),
        }
    }
    Err("nobody leads".into())
}

fn expect(what: &str, is_so: bool) -> Result<(), Box<dyn Error>> {
    if is_so { Ok(()) } else { Err(format!("this should be so, and is not: {what}").into()) }
}

/// A node's process. It does not outlive the play.
struct Node {
    name: &'static str,
    child: Child,
}

impl Node {
    fn start(name: &'static str, url: &str) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(env::current_exe()?);
        let child = command.args([VERB, name, url]).stdin(Stdio::null()).spawn()?;
        Ok(Self { name, child })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // OK to ignore because one that has ended is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// For a server that was just started and grants nothing yet.
const PATIENCE: Duration = Duration::from_secs(60);
