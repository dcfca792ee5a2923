//! One node: a server that answers while it leads.

use std::{
    error::Error,
    io::{ErrorKind, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use tenure::{Label, blocking};

/// The word by which this program knows that it is a node.
pub(crate) const VERB: &str = "__node";

/// Short, because the audience waits for its end.
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// Campaigns, and for as long as it leads tells its name and its term to whoever comes.
pub(crate) fn run(name: &str, url: &str) -> Result<(), Box<dyn Error>> {
    let label = Label::new(name, std::process::id(), "", "node");
    let election = blocking::connect(url)?.with_label(label).election("leader-address");
    let election = election.with(|election| election.with(|lock| lock.ttl(TTL)));
    let server = TcpListener::bind("127.0.0.1:0")?;
    // Between two visitors it looks whether it still leads.
    server.set_nonblocking(true)?;
    election.lead(|leadership| -> Result<(), Box<dyn Error>> {
        leadership.proclaim(server.local_addr()?.to_string())?;
        while leadership.check().is_ok() {
            match server.accept() {
                Ok((mut visitor, _)) => writeln!(visitor, "{name} leads in term {}", leadership.token())?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    })?
}

const LOOK: Duration = Duration::from_millis(10);
