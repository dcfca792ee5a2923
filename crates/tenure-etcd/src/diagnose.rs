//! `diagnose`: what weakens the promises of a cluster, and what to do about it.

use std::collections::BTreeSet;

use etcd_client::{AlarmAction, AlarmType, Client};
use tenure_core::{BackendError, ErrorKind, Finding, LockName, OwnerId, Severity};

use crate::{
    members::{Change, Members},
    queue::{folder, key, number},
};

pub(crate) async fn examine(members: &Members) -> Result<Vec<Finding>, BackendError> {
    let (mut found, mut told) = (Vec::new(), Vec::new());
    let mut last = None;
    for index in 0..members.len() {
        match look_at(members, index).await {
            Ok(member) => told.push(member),
            Err(error) => {
                found.push(silent(members.address(index), &error));
                last = Some(error);
            }
        }
    }
    if let Some(error) = last.filter(|_| told.is_empty()) {
        return Err(error);
    }
    found.extend(of_members(&told));
    found.extend(alarms(members).await?);
    found.extend(size(members).await?);
    // Where locks cannot be taken now, nothing can be tried.
    if found.iter().all(|finding| finding.severity < Severity::Problem) {
        found.extend(rights(members).await?);
        found.extend(shortest_lease(members).await?);
    }
    if members.config.login.is_none() && members.config.tls.as_ref().is_none_or(|tls| tls.identity.is_none())
    {
        found.push(finding(
            Severity::Note,
            "etcd has authentication turned off: every client that reaches it can take and break every lock",
            "turn authentication on, and give each client of the locks a user",
        ));
    }
    Ok(found)
}

/// The facts that one member tells.
struct Member {
    address: String,
    cluster: u64,
    version: String,
    knows_leader: bool,
}

async fn look_at(members: &Members, index: usize) -> Result<Member, BackendError> {
    let status = members.ask_only(index, async |mut client: Client| client.status().await).await?;
    Ok(Member {
        address: members.address(index).to_owned(),
        cluster: status.header().map_or(0, |header| header.cluster_id()),
        version: status.version().to_owned(),
        knows_leader: status.leader() != 0,
    })
}

fn silent(address: &str, error: &BackendError) -> Finding {
    let what = format!("the member {address} does not serve: {error}");
    finding(Severity::Warning, what, "start it again, or take it out of the URL")
}

fn of_members(members: &[Member]) -> Vec<Finding> {
    let mut found = Vec::new();
    let clusters: BTreeSet<u64> = members.iter().map(|member| member.cluster).collect();
    if clusters.len() > 1 {
        found.push(finding(
            Severity::Problem,
            "the URL names members of different clusters: two may hold one lock",
            "name the members of one cluster",
        ));
    }
    for member in members.iter().filter(|member| !member.knows_leader) {
        found.push(finding(
            Severity::Problem,
            format!(
                "the member {} knows no leader: it does not reach a quorum of the members",
                member.address
            ),
            "start the other members, or mend the network between them",
        ));
    }
    let old: Vec<&str> = members
        .iter()
        .filter(|member| revokes_as_old_leader(&member.version))
        .map(|member| member.address.as_str())
        .collect();
    if !old.is_empty() {
        found.push(finding(
            Severity::Warning,
            format!(
                "{}: a leader of this version that hangs and comes back may end leases that are alive (etcd #15247); only the token protects then",
                old.join(", ")
            ),
            "update to 3.4.31, 3.5.13 or later",
        ));
    }
    found
}

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

async fn alarms(members: &Members) -> Result<Vec<Finding>, BackendError> {
    let request = async |mut client: Client| client.alarm(AlarmAction::Get, AlarmType::None, None).await;
    let alarms = match members.ask(members.config.response_timeout, request).await {
        Ok(alarms) => alarms.value,
        Err(error) if error.kind() == ErrorKind::Denied => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let kinds: BTreeSet<i32> = alarms.alarms().iter().map(|alarm| alarm.alarm() as i32).collect();
    Ok(kinds.into_iter().map(alarm).collect())
}

fn alarm(kind: i32) -> Finding {
    if kind == AlarmType::Nospace as i32 {
        return finding(
            Severity::Problem,
            "the database space is used up (alarm NOSPACE): no lock can be taken",
            "compact, defragment, raise --quota-backend-bytes, then `etcdctl alarm disarm`",
        );
    }
    finding(
        Severity::Problem,
        "members disagree about the data (alarm CORRUPT): no lock can be trusted",
        "replace the member that is wrong, as etcd's guide to disaster recovery says",
    )
}

/// How many members there are, and how many of them we know.
async fn size(members: &Members) -> Result<Vec<Finding>, BackendError> {
    let patience = members.config.response_timeout;
    let list = members.ask(patience, async |mut client: Client| client.member_list().await).await;
    let size = match list {
        Ok(list) => list.value.members().len(),
        Err(error) if error.kind() == ErrorKind::Denied => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let known = members.len();
    if size == 1 {
        return Ok(vec![finding(
            Severity::Note,
            "the cluster has one member: while it is down, nobody gets a lock or renews one",
            "run three members on three machines",
        )]);
    }
    let unknown = finding(
        Severity::Warning,
        format!("the cluster has {size} members and the URL names {known} of them"),
        "name all of them in the URL, as in etcd://a,b,c",
    );
    Ok(if known < size { vec![unknown] } else { Vec::new() })
}

/// Takes and releases a lock with a random name.
async fn rights(members: &Members) -> Result<Option<Finding>, BackendError> {
    let mut bits = [0; 24];
    members.host.random(&mut bits);
    let hex: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    let owner: OwnerId = hex.parse().expect("BUG: 48 hex digits are an owner");
    let name = LockName::new(format!("tenure-doctor-{}", &hex[..8])).expect("BUG: a good name");
    let (patience, folder) = (members.config.response_timeout, folder(&members.config.prefix, &name));
    // OK because it is positive: 63 bits.
    let (key, lease) = (key(&folder, owner), i64::try_from(number(owner)).unwrap_or(i64::MAX));
    members.grant_lease(lease, 5, patience).await?;
    let change = Change { folder: &folder, key: &key, modified: 0, value: b"", lease };
    let written = members.change(&change, patience).await;
    members.revoke(lease, patience).await?;
    match written {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Denied => Ok(Some(finding(
            Severity::Warning,
            format!("this user may not lock `{name}`, which was tried to see its rights"),
            "give its role `readwrite` for the prefix of all names that it locks; fine if it is to lock others only",
        ))),
        Err(error) => Err(error),
    }
}

/// etcd makes short leases longer: half as long again as an election takes, in whole seconds.
async fn shortest_lease(members: &Members) -> Result<Option<Finding>, BackendError> {
    let (patience, id) = (members.config.response_timeout, members.fresh_id());
    let seconds = members.grant_lease(id, 1, patience).await?;
    members.revoke(id, patience).await?;
    Ok((seconds > 1).then(|| {
        finding(
            Severity::Note,
            format!(
                "the shortest lease here lasts {seconds} s: after a crash of its holder a lock stays held for as \
                 long"
            ),
            "nothing for a ttl above that; shorter needs a lower --election-timeout",
        )
    }))
}

fn finding(severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::new(severity, what, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

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
