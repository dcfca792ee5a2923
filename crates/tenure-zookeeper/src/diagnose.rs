//! Findings about the ensemble and our assumptions: ticks, limits, one server, rights.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use tenure_core::{BackendError, Finding, Host, Severity};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use zookeeper_client::Error;

use crate::{
    config::{Access, Config},
    error,
    session::Session,
    store::make_directory,
};

/// The findings of a session, and of the servers' four-letter words, which may be turned off.
pub(crate) async fn diagnose(session: &Session) -> Result<Vec<Finding>, BackendError> {
    let config = &session.config;
    let (rights, told) = futures_util::join!(rights(session), asked(config, &*session.host));
    let mut findings = judge(config, session.longest(), &told);
    findings.extend(rights?);
    Ok(findings)
}

/// The facts that one server tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    is_standalone: bool,
    tick: Option<Duration>,
    /// The shortest and the longest session.
    limits: Option<(Duration, Duration)>,
}

fn judge(config: &Config, longest: Duration, told: &[Told]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = ticks(config, told).into_iter().collect();
    findings.extend(limits(config, longest, told));
    if config.hosts.len() == 1 && told.iter().any(|server| server.is_standalone) {
        findings.push(finding(
            Severity::Note,
            "there is one server: while it is down, no lock can be acquired or renewed",
            "run an ensemble of three servers, which goes on without one of them",
        ));
    }
    if config.login.is_some() && config.access == Access::Open {
        findings.push(finding(
            Severity::Warning,
            "acl=open: every client that reaches the ensemble can delete the nodes of the locks",
            "remove acl=open from the URL of all clients",
        ));
    }
    findings
}

fn ticks(config: &Config, told: &[Told]) -> Option<Finding> {
    let ticks: BTreeSet<Duration> = told.iter().filter_map(|server| server.tick).collect();
    let (ours, largest) = (config.tick, ticks.last().copied());
    let remedy = |tick: Duration| format!("set tick={}ms in the URL of all clients", tick.as_millis());
    match largest {
        None => Some(finding(
            Severity::Note,
            format!("no server tells its tickTime; the URL says {ours:?}"),
            "compare it with the servers' settings, or allow the word conf there (4lw.commands.whitelist)",
        )),
        Some(tick) if tick > ours => Some(finding(
            Severity::Problem,
            format!(
                "a server's tickTime is {tick:?}, and the URL says {ours:?}: a holder may take an ended lease for valid"
            ),
            remedy(tick),
        )),
        Some(tick) if tick < ours => Some(finding(
            Severity::Note,
            format!(
                "the servers' tickTime is {tick:?}, and the URL says {ours:?}: a crash is noticed later than need be"
            ),
            remedy(tick),
        )),
        Some(_) => None,
    }
}

fn limits(config: &Config, longest: Duration, told: &[Told]) -> Vec<Finding> {
    let limits: BTreeSet<(Duration, Duration)> = told.iter().filter_map(|server| server.limits).collect();
    let mut findings = Vec::new();
    if limits.len() > 1 {
        findings.push(finding(
            Severity::Problem,
            "the servers have different limits for sessions: one that moves from one to another may get shorter",
            "give all servers the same minSessionTimeout and maxSessionTimeout",
        ));
    }
    if let Some((least, most)) = limits.first() {
        let ttl = most.saturating_sub(config.slack());
        findings.push(finding(
            Severity::Note,
            format!("sessions last {least:?} to {most:?}: a ttl is at most {ttl:?}, and a crash is noticed after {least:?} at the earliest"),
            "change minSessionTimeout and maxSessionTimeout of the servers if that does not suit you",
        ));
    } else {
        findings.push(finding(
            Severity::Note,
            format!("a ttl of up to {longest:?} is possible in the present session"),
            "change maxSessionTimeout of the servers if that is too short",
        ));
    }
    findings
}

async fn rights(session: &Session) -> Result<Option<Finding>, BackendError> {
    match session.client.list_children(&session.config.base).await {
        Ok(_) | Err(Error::NoNode) => try_to_make(session).await,
        Err(Error::NoAuth) => Ok(Some(finding(
            Severity::Problem,
            format!("this user may not read {}", session.config.base),
            "log in as a user with that right, or change the ACL",
        ))),
        Err(error) => Err(error::looked(&session.place(), error)),
    }
}

/// Makes the directory of a lock with a random name, with all missing parents, and removes them again.
async fn try_to_make(session: &Session) -> Result<Option<Finding>, BackendError> {
    let base = &session.config.base;
    let looked = |error| error::looked(&session.place(), error);
    let mut bits = [0; 8];
    session.host.random(&mut bits);
    let lock = format!("{base}/tenure-doctor-{:016x}", u64::from_ne_bytes(bits));
    let mut made = vec![&lock[..]];
    for (end, _) in lock.match_indices('/').skip(1).collect::<Vec<_>>().into_iter().rev() {
        if session.client.check_stat(&lock[..end]).await.map_err(looked)?.is_none() {
            made.push(&lock[..end]);
        }
    }
    let tried = make_directory(session, &lock).await;
    for path in made {
        // OK to ignore because whoever may make a lock may leave it: the server removes an empty one.
        let _ = session.client.delete(path, None).await;
    }
    match tried {
        Ok(()) => Ok(None),
        Err(Error::NoAuth) => Ok(Some(finding(
            Severity::Problem,
            format!("this user may not make a lock in {base}, which was tried to see its rights"),
            format!("give it the rights to create and to delete in {base}"),
        ))),
        Err(error) => Err(looked(error)),
    }
}

fn finding(severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::new(severity, what, remedy)
}

/// The servers that answer.
async fn asked(config: &Config, host: &dyn Host) -> Vec<Told> {
    let servers = config.hosts.iter().map(|server| async move {
        let (srvr, conf) = futures_util::join!(word(server, "srvr", host), word(server, "conf", host));
        read(&srvr?, &conf.unwrap_or_default())
    });
    join_all(servers).await.into_iter().flatten().collect()
}

/// The answer of a server to a four-letter word.
async fn word((name, port): &(String, u16), word: &str, host: &dyn Host) -> Option<String> {
    let ask = async {
        let mut stream = TcpStream::connect((name.as_str(), *port)).await.ok()?;
        stream.write_all(word.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.take(ANSWER).read_to_string(&mut answer).await.ok()?;
        Some(answer)
    };
    tokio::select! {
        answer = ask => answer,
        () = host.sleep_until(host.now() + PATIENCE) => None,
    }
}

/// `None` for one that does not serve.
fn read(srvr: &str, conf: &str) -> Option<Told> {
    let mode = srvr.lines().find_map(|line| line.strip_prefix("Mode: "))?;
    let number = |key: &str| {
        let value = conf.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        value.trim().parse().ok().map(Duration::from_millis)
    };
    Some(Told {
        is_standalone: mode.trim() == "standalone",
        tick: number("tickTime"),
        limits: number("minSessionTimeout").zip(number("maxSessionTimeout")),
    })
}

const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read.
const ANSWER: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(query: &str) -> Config {
        Config::from_url(&format!("zookeeper://u:p@h/?{query}")).unwrap()
    }

    fn server(tick_ms: u64, most_s: u64) -> Told {
        let conf =
            format!("tickTime={tick_ms}\nminSessionTimeout=4000\nmaxSessionTimeout={}\n", most_s * 1000);
        read("Zookeeper version: 3.8\nMode: standalone\n", &conf).unwrap()
    }

    fn graves(query: &str, told: &[Told]) -> Vec<Severity> {
        judge(&config(query), Duration::from_secs(9), told).iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn a_tick_that_is_longer_than_the_url_says_is_a_problem() {
        use Severity::{Note, Problem};
        assert_eq!(graves("", &[server(2000, 40)]), [Note, Note], "limits, and one server");
        assert_eq!(graves("", &[server(3000, 40)])[0], Problem);
        assert_eq!(graves("", &[server(500, 40)])[0], Note);
        assert_eq!(graves("", &[])[0], Note, "nobody tells");
        assert_eq!(graves("", &[server(2000, 40), server(2000, 60)])[0], Problem, "limits differ");
    }

    #[test]
    fn an_open_acl_beside_a_login_is_warned_of() {
        assert!(graves("acl=open", &[server(2000, 40)]).contains(&Severity::Warning));
    }

    #[test]
    fn what_does_not_serve_says_nothing() {
        assert_eq!(read("This ZooKeeper instance is not currently serving requests\n", ""), None);
        let quiet = read("Mode: leader\n", "conf is not executed because it is not in the whitelist.\n");
        assert_eq!(quiet, Some(Told::default()));
    }
}
