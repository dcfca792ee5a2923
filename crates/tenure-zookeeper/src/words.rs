//! What servers say of themselves in four-letter words, which may be turned off; all but `srvr` are by default.

use std::{future::pending, time::Duration};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tenure_client::url::HostPort;
use tenure_core::{BoxFuture, Host};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{config::Config, wire};

/// What one server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerSettings {
    pub(crate) is_standalone: bool,
    pub(crate) tick: Option<Duration>,
    /// The shortest and the longest session.
    pub(crate) limits: Option<(Duration, Duration)>,
}

impl ServerSettings {
    /// `None` for one that does not serve.
    pub(crate) fn read(srvr: &str, conf: &str) -> Option<Self> {
        let mode = srvr.lines().find_map(|line| line.strip_prefix("Mode: "))?;
        let number = |key: &str| {
            let value = conf.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
            value.trim().parse().ok().map(Duration::from_millis)
        };
        Some(Self {
            is_standalone: mode.trim() == "standalone",
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

/// What a server says of the ensemble that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Member,
    /// It runs alone, in no ensemble.
    Alone,
    /// It may not say.
    Untold,
    /// It cannot be reached, or does not serve yet.
    Silent,
}

impl Role {
    fn read(srvr: Option<&str>) -> Self {
        match srvr.map(|srvr| (srvr, ServerSettings::read(srvr, ""))) {
            Some((_, Some(settings))) if settings.is_standalone => Self::Alone,
            Some((_, Some(_))) => Self::Member,
            Some((srvr, None)) if !srvr.contains("not currently serving") => Self::Untold,
            _ => Self::Silent,
        }
    }
}

/// Whether the servers of a URL are one ensemble. False if none of them says what it is, which is no answer: each may
/// run alone. A member is believed unless another server says otherwise soon, so that one that hangs delays nobody.
///
/// # Errors
/// The server that runs alone.
pub(crate) async fn are_one<'a>(config: &'a Config, host: &dyn Host) -> Result<bool, &'a HostPort> {
    let ask = |server| async move {
        let srvr = word_within(config.connect_timeout, (config, server), "srvr", host).await;
        (server, Role::read(srvr.as_deref()))
    };
    let mut answers: FuturesUnordered<_> = config.hosts.iter().map(ask).collect();
    let (mut is_told, mut over): (bool, BoxFuture<'static, ()>) = (false, Box::pin(pending()));
    loop {
        tokio::select! {
            biased;
            answer = answers.next() => match answer {
                None => return Ok(is_told),
                Some((server, Role::Alone)) => return Err(server),
                Some((_, Role::Silent)) => {}
                Some((_, Role::Member | Role::Untold)) if is_told => {}
                Some((_, Role::Member | Role::Untold)) => {
                    (is_told, over) = (true, host.sleep_until(host.now() + SOON));
                }
            },
            () = &mut over => return Ok(true),
        }
    }
}

/// How long the other servers have to say that they run alone, once one has said that it does not.
const SOON: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read.
const ANSWER: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(quiet, Some(ServerSettings::default()));
    }

    /// A server that cannot be looked at is none that is known to be a member.
    #[test]
    fn what_is_silent_or_may_not_say_is_no_member() {
        let role = |srvr| Role::read(Some(srvr));
        assert_eq!(role("Zookeeper version: 3.8\nMode: follower\n"), Role::Member);
        assert_eq!(role("Zookeeper version: 3.8\nMode: standalone\n"), Role::Alone);
        assert_eq!(role("This ZooKeeper instance is not currently serving requests\n"), Role::Silent);
        assert_eq!(role("srvr is not executed because it is not in the whitelist.\n"), Role::Untold);
        assert_eq!(Role::read(None), Role::Silent);
    }
}
