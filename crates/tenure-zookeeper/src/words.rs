//! What servers say of themselves in four-letter words, which may be turned off; all but `srvr` are by default.

use std::time::Duration;

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tenure_client::url::HostPort;
use tenure_core::Host;
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
    let ask = async {
        let mut stream = wire::open(config, server).await.ok()?;
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

/// A server that runs alone, in no ensemble; `None` if none of those that answer does.
pub(crate) async fn standalone<'a>(config: &'a Config, host: &dyn Host) -> Option<&'a HostPort> {
    let ask = |server| async move {
        let settings = ServerSettings::read(&word(config, server, "srvr", host).await?, "")?;
        settings.is_standalone.then_some(server)
    };
    let mut answers: FuturesUnordered<_> = config.hosts.iter().map(ask).collect();
    while let Some(answer) = answers.next().await {
        if answer.is_some() {
            return answer;
        }
    }
    None
}

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
}
