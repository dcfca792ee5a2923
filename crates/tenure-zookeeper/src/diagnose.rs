//! Findings about the ensemble and what Tenure assumes of it: ticks, limits, one server, rights.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tenure_client::doctor::{Check, Trial, TrialError, described, finding, found, judged};
use tenure_core::{
    Backend, BackendError, ErrorKind, Finding, LockView,
    Severity::{Note, Problem, Warning},
    Timing, shown,
};
use zookeeper_client::Error;

use crate::{
    config::{Access, Config, Layout},
    error,
    session::EnsembleSession,
    store::SharedState,
    view,
    words::{ServerSettings, asked},
};

/// The findings of a session, and of the servers' four-letter words, which may be turned off.
pub(crate) async fn diagnose(
    zookeeper: &dyn Backend,
    store: &SharedState,
    session: &EnsembleSession,
) -> Result<Vec<Finding>, BackendError> {
    let config = session.config.clone();
    let (rights, servers) =
        futures_util::join!(rights(zookeeper, store, session), asked(&config, &*session.host));
    let mut findings = judged(&CHECKS, &EnsembleFacts { config, longest: session.longest(), servers });
    findings.extend(rights?);
    if findings.iter().all(|finding| finding.severity < Problem) {
        findings.extend(strangers(&view::list(store, session, "").await?, session.config.layout));
    }
    Ok(findings)
}

/// Clients of another library see only nodes named in its layout: with another layout they do not wait for Tenure.
fn strangers(locks: &[LockView], layout: Layout) -> Option<Finding> {
    let are_others = |view: &&LockView| {
        let holders = view.holders.iter().filter(|held| held.is_foreign()).map(|held| &held.owner);
        let waiters = view.queue.iter().filter(|waits| waits.label.is_none()).map(|waits| &waits.owner);
        holders.chain(waiters).any(|node| !layout.is_of(node))
    };
    let others: Vec<&LockView> = locks.iter().filter(are_others).collect();
    let what = format!(
        "{} locks have nodes of clients with another layout, the first is {}: they do not wait for Tenure, which refuses to \
         acquire these locks",
        others.len(),
        shown(others.first()?.name.as_str()).within(64)
    );
    let remedy = "for kazoo set layout=kazoo in the URL of all clients, for Curator leave it out; for others use different paths";
    Some(finding(Problem, what, remedy))
}

struct EnsembleFacts {
    config: Arc<Config>,
    /// The longest ttl of the present session.
    longest: Duration,
    /// Of the servers that answer.
    servers: Vec<ServerSettings>,
}

impl EnsembleFacts {
    fn limits(&self) -> BTreeSet<(Duration, Duration)> {
        self.servers.iter().filter_map(|server| server.limits).collect()
    }
}

const CHECKS: [Check<EnsembleFacts>; 7] = [
    Check::new("tick", |ensemble| {
        let largest = ensemble.servers.iter().filter_map(|server| server.tick).max();
        let ours = ensemble.config.tick;
        let Some(tick) = largest else {
            let what = format!("no server tells its tickTime; the URL says {ours:?}");
            let remedy = "compare it with the servers' settings, or allow the word conf there \
                          (4lw.commands.whitelist)";
            return Some(finding(Note, what, remedy));
        };
        let remedy = format!("set tick={}ms in the URL of all clients", tick.as_millis());
        if tick > ours {
            let what = format!(
                "a server's tickTime is {tick:?}, and the URL says {ours:?}: a holder may take an ended \
                 lease for valid"
            );
            return Some(finding(Problem, what, remedy));
        }
        let what = format!(
            "the servers' tickTime is {tick:?}, and the URL says {ours:?}: a crash is noticed later than \
             need be"
        );
        found(tick < ours, Note, what, remedy)
    }),
    Check::new("same limits", |ensemble| {
        let what = "the servers have different limits for sessions: one that moves from one to another may \
                    get shorter";
        let remedy = "give all servers the same minSessionTimeout and maxSessionTimeout";
        found(ensemble.limits().len() > 1, Problem, what, remedy)
    }),
    Check::new("limits", |ensemble| {
        let Some((least, most)) = ensemble.limits().pop_first() else {
            let what = format!("a ttl of up to {:?} is possible in the present session", ensemble.longest);
            return Some(finding(Note, what, "change maxSessionTimeout of the servers if that is too short"));
        };
        let ttl = most.saturating_sub(ensemble.config.slack());
        let what = format!(
            "sessions last {least:?} to {most:?}: a ttl is at most {ttl:?}, and a crash is noticed after \
             {least:?} at the earliest"
        );
        let remedy =
            "change minSessionTimeout and maxSessionTimeout of the servers if that does not suit you";
        Some(finding(Note, what, remedy))
    }),
    Check::new("one server", |ensemble| {
        let is_alone = ensemble.config.hosts.len() == 1 && ensemble.servers.iter().any(|it| it.is_standalone);
        let what = "there is one server: while it is down, no lock can be acquired or renewed";
        found(is_alone, Note, what, "run an ensemble of three servers, which goes on without one of them")
    }),
    Check::new("one ensemble", |ensemble| {
        let are_several =
            ensemble.config.hosts.len() > 1 && ensemble.servers.iter().any(|it| it.is_standalone);
        let what = "the URL names several servers, and one of them runs alone (standalone): two clients may \
                    hold the same lock, each on another server";
        let remedy = "name the members of one ensemble, or one server once; each server of an ensemble has \
                      lines server.N in its zoo.cfg";
        found(are_several, Problem, what, remedy)
    }),
    Check::new("one leader", |ensemble| {
        let lead = ensemble.servers.iter().filter(|it| it.is_leader).count();
        let what = "two servers of the URL lead, so they are in two ensembles, unless one was elected just now: two \
                    clients may hold the same lock";
        found(lead > 1, Problem, what, "name the members of one ensemble, and each of them once")
    }),
    Check::new("access", |ensemble| {
        let is_open = ensemble.config.login.is_some() && ensemble.config.access() == Access::Open;
        let what = "acl=open: every client that reaches the ensemble can delete the nodes of the locks";
        found(is_open, Warning, what, "remove acl=open from the URL of all clients")
    }),
];

async fn rights(
    zookeeper: &dyn Backend,
    store: &SharedState,
    session: &EnsembleSession,
) -> Result<Option<Finding>, BackendError> {
    let base = &session.config.base;
    match session.client.list_children(base).await {
        Ok(_) | Err(Error::NoNode) => {}
        Err(Error::NoAuth) => {
            let what = format!("this user may not read {base}");
            return Ok(Some(finding(Problem, what, "log in as a user with that right, or change the ACL")));
        }
        Err(error) => return Err(error::looked(&session.place(), error)),
    }
    let trial = Trial::new(&*session.host, session.longest().min(Timing::DEFAULT_TTL));
    let directory = store.directory_of(&trial.name);
    // With all parents that the trial makes.
    let mut made = vec![&directory[..]];
    for (end, _) in directory.match_indices('/').skip(1).collect::<Vec<_>>().into_iter().rev() {
        let stat = session.client.check_stat(&directory[..end]).await;
        if stat.map_err(|error| error::looked(&session.place(), error))?.is_none() {
            made.push(&directory[..end]);
        }
    }
    let tried = trial.run(zookeeper).await;
    store.directories.forget(&directory);
    for path in made {
        // OK to ignore because a client that may make a lock may leave it: the server removes an empty one.
        let _ = session.client.delete(path, None).await;
    }
    match tried {
        Ok(()) => Ok(None),
        Err(TrialError { error, .. }) if error.kind() == ErrorKind::Denied => {
            let what = format!("this user may not make a lock in {base}, which was tried to see its rights");
            let remedy = format!("give it the rights to create and to delete in {base}");
            Ok(Some(finding(Problem, what, remedy)))
        }
        Err(TrialError { verb, error }) => {
            let what = format!("the lock that was tried failed at the step to {verb}: {}", described(&error));
            Ok(Some(finding(Problem, what, "see that all servers run and reach each other, then look again")))
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::Severity;

    use super::*;

    fn config(query: &str) -> Config {
        Config::from_url(&format!("zookeeper://u:p@h/?{query}")).unwrap()
    }

    fn server(tick_ms: u64, most_s: u64) -> ServerSettings {
        let conf =
            format!("tickTime={tick_ms}\nminSessionTimeout=4000\nmaxSessionTimeout={}\n", most_s * 1000);
        ServerSettings::read("Zookeeper version: 3.8\nMode: standalone\n", &conf).unwrap()
    }

    fn severities(query: &str, servers: &[ServerSettings]) -> Vec<Severity> {
        let (config, longest) = (Arc::new(config(query)), Duration::from_secs(9));
        let ensemble = EnsembleFacts { config, longest, servers: servers.to_vec() };
        judged(&CHECKS, &ensemble).iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn a_tick_that_is_longer_than_the_url_says_is_a_problem() {
        assert_eq!(severities("", &[server(2000, 40)]), [Note, Note], "limits, and one server");
        assert_eq!(severities("", &[server(3000, 40)])[0], Problem);
        assert_eq!(severities("", &[server(500, 40)])[0], Note);
        assert_eq!(severities("", &[])[0], Note, "no server says");
        assert_eq!(severities("", &[server(2000, 40), server(2000, 60)])[0], Problem, "limits differ");
    }

    #[test]
    fn an_open_acl_beside_a_login_is_warned_of() {
        assert!(severities("acl=open", &[server(2000, 40)]).contains(&Warning));
    }

    #[test]
    fn a_server_that_runs_alone_beside_others_is_a_problem() {
        let ensemble = |url: &str| {
            let (config, longest) = (Arc::new(Config::from_url(url).unwrap()), Duration::from_secs(9));
            let ensemble = EnsembleFacts { config, longest, servers: vec![server(2000, 40)] };
            judged(&CHECKS, &ensemble).iter().any(|finding| finding.severity == Problem)
        };
        assert!(ensemble("zookeeper://a,b/"));
        let leader = ServerSettings::read("Mode: leader\n", "").unwrap();
        assert!(!severities("", std::slice::from_ref(&leader)).contains(&Problem));
        assert!(severities("", &[leader.clone(), leader]).contains(&Problem));
        assert!(!ensemble("zookeeper://a/"));
    }
}
