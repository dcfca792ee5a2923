//! The verb `release`: leaving all nodes, and one.

use std::{sync::Arc, time::Duration};

use tenure_core::{BackendError, LockName, OwnerId, QuorumNode, Released};
use tokio::sync::oneshot;

use crate::{memory::Late, quorum::Quorum};

/// How long a node may take for a release: 500 ms.
const RELEASE: Duration = Duration::from_millis(500);

/// Has an owner leave all nodes. Tells as soon as it is known whether a quorum of them held for it, and goes on with
/// those that did not answer, and with those where its claim comes later.
pub(crate) async fn release_everywhere<N: QuorumNode>(
    quorum: Arc<Quorum<N>>,
    name: LockName,
    owner: OwnerId,
    late: Late,
    tell: oneshot::Sender<Result<Released, BackendError>>,
) {
    let (all, size) = (quorum.members.len(), quorum.size());
    let mut round = quorum.round(RELEASE);
    for (node, member) in quorum.members.iter().enumerate() {
        let released = member.node.release(&name, owner);
        round.ask(node, async move { (node, released.await) });
    }
    let (mut tell, mut released, mut gone) = (Some(tell), 0, 0);
    let (mut errors, mut again) = (Vec::new(), Vec::new());
    while let Some((node, answer)) = quorum.next_of(&mut round).await {
        let is_released = matches!(answer, Ok(Released::Released));
        if late.may_come(node, is_released) && !quorum.memory.leave_to_ballot(&(owner, name.clone()), node) {
            again.push(node);
        }
        match answer {
            Ok(Released::Released) => released += 1,
            Ok(Released::WasGone) => gone += 1,
            Err(error) => {
                if error.kind().is_transient() {
                    again.push(node);
                }
                errors.push(error);
            }
        }
        let verdict = if released >= size {
            Some(Ok(Released::Released))
        } else if gone > all - size {
            // Held by fewer than a quorum: it was lost, whoever has it now.
            Some(Ok(Released::WasGone))
        } else if released + gone + errors.len() == all {
            Some(Err(quorum.too_few(released == 0, errors.clone())))
        } else {
            None
        };
        if let Some((verdict, tell)) = verdict.and_then(|verdict| Some((verdict, tell.take()?))) {
            // OK because whoever does not listen any more needs no answer.
            let _ = tell.send(verdict);
        }
    }
    for node in again {
        quorum.owe(node, name.clone(), owner);
    }
}

/// Has this owner leave a node. Where it does not answer, it is owed.
pub(crate) async fn give_back<N: QuorumNode>(
    quorum: &Quorum<N>,
    node: usize,
    name: &LockName,
    owner: OwnerId,
) {
    let (host, member) = (&*quorum.host, &quorum.members[node]);
    if !member.is_silent() {
        let Err(error) = member.within(host, RELEASE, member.node.release(name, owner)).await else { return };
        if !error.kind().is_transient() {
            tracing::debug!(lock = %name, %error, "not given back; its ttl ends it");
            return;
        }
    }
    quorum.owe(node, name.clone(), owner);
}
