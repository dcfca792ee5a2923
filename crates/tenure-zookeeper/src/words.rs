//! What servers report in four-letter words, which may be turned off; all but `srvr` are off by default.

use std::{future::pending, time::Duration};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tenure_client::url::HostPort;
use tenure_core::{BoxFuture, Host};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{config::Config, wire};

/// What one server reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerSettings {
    pub(crate) is_standalone: bool,
    pub(crate) is_leader: bool,
    pub(crate) tick: Option<Duration>,
    /// The shortest and the longest session.
    pub(crate) limits: Option<(Duration, Duration)>,
}

impl ServerSettings {
    /// `None` for a server that does not serve.
    pub(crate) fn read(srvr: &str, conf: &str) -> Option<Self> {
        let mode = srvr.lines().find_map(|line| line.strip_prefix("Mode: "))?;
        let number = |key: &str| {
            let value = conf.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
            value.trim().parse().ok().map(Duration::from_millis)
        };
        Some(Self {
            is_standalone: mode.trim() == "standalone",
            is_leader: mode.trim() == "leader",
            tick: number("tickTime"),
            limits: number("minSessionTimeout").zip(number("maxSessionTimeout")),
        })
    }
}

/// The servers that answer.
pub(crate) async fn asked(config: &Config, host: &dyn Host) -> Vec<ServerSettings> {
    let servers = config.hosts.iter().map(|server| async move {
        let (srvr, conf) =
            futures_util::join!(word(config, server, "srvr", host), word(config, server, "conf", host));
        ServerSettings::read(&srvr?, &conf.unwrap_or_default())
    });
    join_all(servers).await.into_iter().flatten().collect()
}

/// The answer of a server to a four-letter word.
async fn word(config: &Config, server: &HostPort, word: &str, host: &dyn Host) -> Option<String> {
    word_within(PATIENCE, (config, server), word, host).await
}

async fn word_within(
    patience: Duration,
    (config, server): (&Config, &HostPort),
    word: &str,
    host: &dyn Host,
) -> Option<String> {
    let ask = async {
        let mut stream = wire::open(config, server).await.ok()?;
        stream.write_all(word.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.take(ANSWER).read_to_string(&mut answer).await.ok()?;
        Some(answer)
    };
    tokio::select! {
        answer = ask => answer,
        () = host.sleep_until(host.now() + patience) => None,
    }
}

/// What a server reports about the ensemble that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Member,
    /// The member that leads: an ensemble has one, except for some seconds after another one was elected.
    Leader,
    /// It runs alone, in no ensemble.
    Alone,
    /// It cannot be reached, does not serve yet, or may not report its role.
    Unknown,
}

impl Role {
    fn read(srvr: Option<&str>) -> Self {
        match srvr.and_then(|srvr| ServerSettings::read(srvr, "")) {
            Some(settings) if settings.is_standalone => Self::Alone,
            Some(settings) if settings.is_leader => Self::Leader,
            Some(_) => Self::Member,
            _ => Self::Unknown,
        }
    }
}

/// Why servers are not one ensemble.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotOne<'a> {
    /// This one runs alone.
    Alone(&'a HostPort),
    /// Both lead.
    Leaders(&'a HostPort, &'a HostPort),
}

/// Whether the servers of a URL are one ensemble. False if none of them reports its role, which is no answer: each
/// may run alone. The answer of a member counts unless another server contradicts it soon, so that a server that
/// hangs delays no request.
///
/// # Errors
/// The server that runs alone, or two that lead.
pub(crate) async fn are_one<'a>(config: &'a Config, host: &dyn Host) -> Result<bool, NotOne<'a>> {
    let ask = |server| async move {
        let srvr = word_within(config.connect_timeout, (config, server), "srvr", host).await;
        (server, Role::read(srvr.as_deref()))
    };
    let mut answers: FuturesUnordered<_> = config.hosts.iter().map(ask).collect();
    let (mut is_told, mut over): (bool, BoxFuture<'static, ()>) = (false, Box::pin(pending()));
    let mut leader = None;
    loop {
        tokio::select! {
            biased;
            answer = answers.next() => {
                let Some((server, role)) = answer else { return Ok(is_told) };
                match (role, leader) {
                    (Role::Alone, _) => return Err(NotOne::Alone(server)),
                    (Role::Leader, Some(other)) => return Err(NotOne::Leaders(other, server)),
                    (Role::Leader, None) => leader = Some(server),
                    _ => {}
                }
                if matches!(role, Role::Member | Role::Leader) && !is_told {
                    (is_told, over) = (true, host.sleep_until(host.now() + SOON));
                }
            }
            () = &mut over => return Ok(true),
        }
    }
}

/// How long the other servers have to report that they run alone, or lead, once one has reported that it is a member.
const SOON: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read.
const ANSWER: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use tenure::backend::TokioHost;
    use tokio::net::TcpListener;

    use super::*;

    async fn server_that_is(mode: &'static str) -> u16 {
        server_that_answers(format!("Mode: {mode}\n")).await
    }

    /// A server that answers each four-letter word like this, and nothing else.
    async fn server_that_answers(text: String) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TokioHost.spawn(Box::pin(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 16]).await;
                let _ = stream.write_all(text.as_bytes()).await;
            }
        }));
        port
    }

    /// L1: an ensemble has one leader. Two ensembles in one URL each granted the lock to another client.
    #[tokio::test]
    async fn servers_of_two_ensembles_are_not_one() {
        let (leader, follower, other) = (
            server_that_is("leader").await,
            server_that_is("follower").await,
            server_that_is("leader").await,
        );
        let config = |ports: &[u16]| {
            let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
            Config::from_url(&format!("zookeeper://{}/", hosts.join(","))).unwrap()
        };
        let one = config(&[leader, follower]);
        assert_eq!(are_one(&one, &TokioHost).await, Ok(true));
        let two = config(&[leader, follower, other]);
        assert!(matches!(are_one(&two, &TokioHost).await, Err(NotOne::Leaders(..))));
        let settings = asked(&two, &TokioHost).await;
        assert_eq!(settings.iter().filter(|settings| settings.is_leader).count(), 2);
    }

    /// L1: two servers that ran alone, and that might not report it, were taken for one ensemble: each granted the lock.
    #[tokio::test]
    async fn servers_that_may_not_report_their_role_are_not_known_to_be_one() {
        let mute =
            || server_that_answers("srvr is not executed because it is not in the whitelist.\n".into());
        let (one, other, member) = (mute().await, mute().await, server_that_is("follower").await);
        let config = |ports: [u16; 2]| {
            Config::from_url(&format!("zookeeper://127.0.0.1:{},127.0.0.1:{}/", ports[0], ports[1])).unwrap()
        };
        assert_eq!(are_one(&config([one, other]), &TokioHost).await, Ok(false));
        assert_eq!(are_one(&config([one, member]), &TokioHost).await, Ok(true));
    }

    #[test]
    fn what_does_not_serve_says_nothing() {
        assert_eq!(
            ServerSettings::read("This ZooKeeper instance is not currently serving requests\n", ""),
            None
        );
        let quiet = ServerSettings::read(
            "Mode: leader\n",
            "conf is not executed because it is not in the whitelist.\n",
        );
        assert_eq!(quiet, Some(ServerSettings { is_leader: true, ..Default::default() }));
    }

    /// A server that cannot be asked does not count as a member.
    #[test]
    fn what_is_silent_or_may_not_say_is_no_member() {
        let role = |srvr| Role::read(Some(srvr));
        assert_eq!(role("Zookeeper version: 3.8\nMode: follower\n"), Role::Member);
        assert_eq!(role("Zookeeper version: 3.8\nMode: standalone\n"), Role::Alone);
        assert_eq!(role("This ZooKeeper instance is not currently serving requests\n"), Role::Unknown);
        assert_eq!(role("srvr is not executed because it is not in the whitelist.\n"), Role::Unknown);
        assert_eq!(Role::read(None), Role::Unknown);
    }
}
