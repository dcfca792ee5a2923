//! `diagnose`: what weakens the promises of a cluster, and what to do about it.

use std::{collections::BTreeSet, time::Duration};

use etcd_client::{AlarmAction, AlarmType, Client, GetOptions};
use tenure_client::doctor::{Check, Trial, TrialError, described, finding, found, judged};
use tenure_core::{
    Backend, BackendError, ErrorKind, Finding,
    Severity::{Note, Problem, Warning},
};

use crate::members::Members;

/// The findings of the members, of the cluster, and of a trial lock if locks can be acquired now.
pub(crate) async fn examine(store: &dyn Backend, members: &Members) -> Result<Vec<Finding>, BackendError> {
    let cluster = ClusterFacts::read(members).await?;
    let mut findings: Vec<Finding> =
        cluster.members.iter().flat_map(|member| judged(&OF_A_MEMBER, member)).collect();
    findings.extend(judged(&OF_THE_CLUSTER, &cluster));
    if findings.iter().all(|finding| finding.severity < Problem) {
        findings.extend(rights(store, members).await?);
        findings.extend(shortest_lease(members).await?);
    }
    let is_open = members.config.login.is_none() && members.config.cert.is_none();
    findings.extend(found(
        is_open,
        Note,
        "etcd has authentication turned off: every client that reaches it can take and break every lock",
        "turn authentication on, and give each client of the locks a user",
    ));
    Ok(findings)
}

/// What the members answered.
#[derive(Default)]
struct ClusterFacts {
    members: Vec<MemberFacts>,
    /// Empty if the user may not read them.
    alarms: BTreeSet<i32>,
    /// How many members there are; `None` if the user may not read that.
    size: Option<usize>,
    /// The revision of the store.
    revision: i64,
    /// Its first revision can still be read: it was never compacted.
    keeps_all: bool,
}

struct MemberFacts {
    address: String,
    status: Result<MemberStatus, BackendError>,
}

struct MemberStatus {
    cluster: u64,
    version: String,
    knows_leader: bool,
    /// The size of its database in bytes, free pages included.
    bytes: i64,
}

impl ClusterFacts {
    /// # Errors
    /// The last one, if no member answers.
    async fn read(members: &Members) -> Result<Self, BackendError> {
        let mut cluster = Self::default();
        for index in 0..members.len() {
            let status = members.ask_only(index, async |mut client: Client| client.status().await).await;
            let status = status.map(|status| MemberStatus {
                cluster: status.header().map_or(0, |header| header.cluster_id()),
                version: status.version().to_owned(),
                knows_leader: status.leader() != 0,
                bytes: status.db_size(),
            });
            cluster.members.push(MemberFacts { address: members.address(index).to_owned(), status });
        }
        if cluster.statuses().next().is_none()
            && let Some(MemberFacts { status: Err(error), .. }) = cluster.members.pop()
        {
            return Err(error);
        }
        let patience = members.config.response_timeout;
        let request = async |mut client: Client| client.alarm(AlarmAction::Get, AlarmType::None, None).await;
        if let Some(alarms) = unless_denied(members.ask(patience, request).await)? {
            cluster.alarms = alarms.value.alarms().iter().map(|alarm| alarm.alarm() as i32).collect();
        }
        let list = members.ask(patience, async |mut client: Client| client.member_list().await).await;
        cluster.size = unless_denied(list)?.map(|list| list.value.members().len());
        // Any key that this user may read will do.
        let prefix =
            Some(members.config.prefix.as_str()).filter(|prefix| !prefix.is_empty()).unwrap_or("tenure");
        let at = |revision| GetOptions::new().with_revision(revision).with_count_only();
        let now =
            members.ask(patience, async |mut client: Client| client.get(prefix, Some(at(0))).await).await;
        if let Some(now) = unless_denied(now)? {
            cluster.revision = now.value.header().map_or(0, |header| header.revision());
            let first = async |mut client: Client| client.get(prefix, Some(at(1))).await;
            cluster.keeps_all = members.ask(patience, first).await.is_ok();
        }
        Ok(cluster)
    }

    /// Of the members that serve.
    fn statuses(&self) -> impl Iterator<Item = (&str, &MemberStatus)> {
        self.members.iter().filter_map(|member| Some((&member.address[..], member.status.as_ref().ok()?)))
    }
}

fn unless_denied<T>(answer: Result<T, BackendError>) -> Result<Option<T>, BackendError> {
    match answer {
        Err(error) if error.kind() == ErrorKind::Denied => Ok(None),
        answer => answer.map(Some),
    }
}

const OF_A_MEMBER: [Check<MemberFacts>; 2] = [
    Check::new("service", |MemberFacts { address, status }| {
        let what = format!("the member {address} does not serve: {}", status.as_ref().err()?);
        Some(finding(Warning, what, "start it again, or take it out of the URL"))
    }),
    Check::new("leader", |MemberFacts { address, status }| {
        let what = format!("the member {address} knows no leader: it does not reach a quorum of the members");
        let remedy = "start the other members, or mend the network between them";
        found(!status.as_ref().ok()?.knows_leader, Problem, what, remedy)
    }),
];

const OF_THE_CLUSTER: [Check<ClusterFacts>; 8] = [
    Check::new("one cluster", |cluster| {
        let clusters: BTreeSet<u64> = cluster.statuses().map(|(_, status)| status.cluster).collect();
        let what = "the URL names members of different clusters: two may hold one lock";
        found(clusters.len() > 1, Problem, what, "name the members of one cluster")
    }),
    Check::new("version", |cluster| {
        let is_old = |(_, status): &(&str, &MemberStatus)| revokes_as_old_leader(&status.version);
        let old: Vec<&str> = cluster.statuses().filter(is_old).map(|(address, _)| address).collect();
        let what = format!(
            "{}: a leader of this version that hangs and comes back may end leases that are alive (etcd \
             #15247); only the token protects then",
            old.join(", ")
        );
        found(!old.is_empty(), Warning, what, "update to 3.4.31, 3.5.13 or later")
    }),
    Check::new("space", |cluster| {
        let is_full = cluster.alarms.contains(&(AlarmType::Nospace as i32));
        let what = "the database space is used up (alarm NOSPACE): no lock can be taken";
        let remedy = "compact, defragment, raise --quota-backend-bytes, then `etcdctl alarm disarm`";
        found(is_full, Problem, what, remedy)
    }),
    Check::new("compaction", |cluster| {
        let what = format!(
            "etcd was never compacted and keeps {} revisions: each lock adds two to four, and once its space is used up \
             (--quota-backend-bytes, 2 GiB unless set), it takes no writes of any client",
            cluster.revision
        );
        let remedy = "start the members with --auto-compaction-retention=1h, and compact and defragment once";
        found(cluster.keeps_all && cluster.revision > MANY_REVISIONS, Warning, what, remedy)
    }),
    Check::new("size", |cluster| {
        let (address, status) = cluster.statuses().max_by_key(|(_, status)| status.bytes)?;
        let what = format!(
            "the database of {address} has {} MiB: once --quota-backend-bytes is reached (2 GiB unless set), no lock can be \
             acquired",
            status.bytes >> 20
        );
        let remedy = "compact and defragment, or raise --quota-backend-bytes";
        found(status.bytes > MUCH, Warning, what, remedy)
    }),
    Check::new("data", |cluster| {
        let is_corrupt = cluster.alarms.iter().any(|alarm| *alarm != AlarmType::Nospace as i32);
        let what = "members disagree about the data (alarm CORRUPT): no lock can be trusted";
        let remedy = "replace the member that is wrong, as etcd's guide to disaster recovery says";
        found(is_corrupt, Problem, what, remedy)
    }),
    Check::new("one member", |cluster| {
        let what = "the cluster has one member: while it is down, no lock is granted or renewed";
        found(cluster.size == Some(1), Note, what, "run three members on three machines")
    }),
    Check::new("all members", |cluster| {
        let (size, known) = (cluster.size?, cluster.members.len());
        let what = format!("the cluster has {size} members and the URL names {known} of them");
        found(known < size, Warning, what, "name all of them in the URL, as in etcd://a,b,c")
    }),
];

/// This many revisions take some MiB.
const MANY_REVISIONS: i64 = 10_000;
/// Three quarters of etcd's default quota.
const MUCH: i64 = 3 << 29;

/// Before 3.4.31 and 3.5.13, a leader that was replaced while it hung went on to end leases.
fn revokes_as_old_leader(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 5, patch) => patch < 13,
        (3, 4, patch) => patch < 31,
        (major, minor, _) => (major, minor) < (3, 4),
    }
}

/// Tries a lock. A missing right to its name is a finding.
async fn rights(store: &dyn Backend, members: &Members) -> Result<Option<Finding>, BackendError> {
    let trial = Trial::new(&*members.host, TRIED);
    match trial.run(store).await {
        Ok(()) => Ok(None),
        Err(TrialError { error, .. }) if error.kind() == ErrorKind::Denied => Ok(Some(finding(
            Warning,
            format!("this user may not lock `{}`, which was tried to see its rights", trial.name),
            "give its role `readwrite` for the prefix of all names that it locks; fine if it is to lock \
             others only",
        ))),
        Err(TrialError { verb, error }) => {
            let what = format!("the lock that was tried failed at the step to {verb}: {}", described(&error));
            Ok(Some(finding(Problem, what, "see that all servers run and reach each other, then look again")))
        }
    }
}

/// etcd makes short leases longer: to 1½ times the length of an election, in whole seconds.
async fn shortest_lease(members: &Members) -> Result<Option<Finding>, BackendError> {
    let (patience, id) = (members.config.response_timeout, members.fresh_id());
    let seconds = members.grant_lease(id, 1, patience).await?;
    members.revoke(id, patience).await?;
    let what = format!(
        "the shortest lease here lasts {seconds} s: after a crash of its holder a lock stays held for as long"
    );
    let remedy = "nothing for a ttl above that; shorter needs a lower --election-timeout";
    Ok(found(seconds > 1, Note, what, remedy))
}

/// What is left behind after a refusal ends with its lease.
const TRIED: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of these clusters, of this version, with or without a leader.
    fn cluster(clusters: &[u64], version: &str, knows_leader: bool) -> ClusterFacts {
        let status = |cluster| MemberStatus { cluster, version: version.to_owned(), knows_leader, bytes: 0 };
        let member = |&cluster| MemberFacts { address: format!("m{cluster}"), status: Ok(status(cluster)) };
        ClusterFacts {
            members: clusters.iter().map(member).collect(),
            size: Some(clusters.len()),
            ..ClusterFacts::default()
        }
    }

    #[test]
    fn what_the_members_answered_is_judged() {
        let alarmed = |alarm: AlarmType| ClusterFacts {
            alarms: [alarm as i32].into(),
            ..cluster(&[1, 1, 1], "3.6.0", true)
        };
        let mut unknown = cluster(&[1, 1, 1], "3.6.0", true);
        unknown.size = Some(4);
        let (mut kept, mut large) = (cluster(&[1, 1, 1], "3.6.0", true), cluster(&[1, 1, 1], "3.6.0", true));
        (kept.revision, kept.keeps_all) = (10_001, true);
        large.members[1].status.as_mut().unwrap().bytes = 1700 << 20;
        for (facts, severity, what) in [
            (kept, Warning, "never compacted and keeps 10001 revisions"),
            (large, Warning, "the database of m1 has 1700 MiB"),
            (cluster(&[1, 2, 1], "3.6.0", true), Problem, "members of different clusters"),
            (cluster(&[1, 1, 1], "3.5.9", true), Warning, "m1, m1, m1: a leader of this version"),
            (alarmed(AlarmType::Nospace), Problem, "NOSPACE"),
            (alarmed(AlarmType::Corrupt), Problem, "CORRUPT"),
            (cluster(&[1], "3.6.0", true), Note, "the cluster has one member"),
            (unknown, Warning, "4 members and the URL names 3"),
        ] {
            let [found] = &judged(&OF_THE_CLUSTER, &facts)[..] else { panic!("{what}") };
            assert!(found.severity == severity && found.what.contains(what), "{found:?}");
        }
        assert_eq!(judged(&OF_THE_CLUSTER, &cluster(&[1, 1, 1], "3.6.0", true)), []);
        for (knows_leader, count) in [(true, 0), (false, 1)] {
            let member = &cluster(&[1], "3.6.0", knows_leader).members[0];
            assert_eq!(judged(&OF_A_MEMBER, member).len(), count);
        }
    }

    #[test]
    fn versions_before_the_mended_ones_are_known() {
        for (version, is_old) in [
            ("3.4.23", true),
            ("3.4.31", false),
            ("3.5.12", true),
            ("3.5.13", false),
            ("3.6.0-rc.1", false),
            ("3.3.27", true),
            ("4.0.0", false),
        ] {
            assert_eq!(revokes_as_old_leader(version), is_old, "{version}");
        }
    }
}
