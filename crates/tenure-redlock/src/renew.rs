//! The verb `renew`: by all nodes, decided by a quorum.

use std::sync::Arc;

use tenure_core::{BackendError, Grant, QuorumNode, Renewal};
use tokio::sync::oneshot;

use crate::quorum::{Quorum, node_timeout};

/// The answers of one node, a lease each.
pub(crate) type Renewals = Vec<Result<Renewal, BackendError>>;

/// Extends leases on all nodes. Answers as soon as a quorum has answered for each lease, and continues with the other
/// nodes:
/// a node that is not renewed is one failure less that the lease survives.
pub(crate) async fn renew_everywhere<N: QuorumNode>(
    quorum: Arc<Quorum<N>>,
    grants: Arc<[Grant]>,
    tell: oneshot::Sender<Result<Renewals, BackendError>>,
) {
    let timeout = node_timeout(grants.iter().map(|grant| grant.ttl).min().unwrap_or_default());
    let (size, mut tell) = (quorum.size(), Some(tell));
    let ask = |node: Arc<N>| {
        let grants = grants.clone();
        async move {
            let answers = node.renew(&grants).await;
            match answers.first() {
                // All of them: the node did not answer.
                Some(Err(error)) if answers.iter().all(Result::is_err) => Err(error.clone()),
                _ => Ok(answers),
            }
        }
    };
    let all = 0..grants.len();
    let on_answer = |answers: &[_]| {
        let known: Option<Renewals> = all.clone().map(|at| renewal(at, answers, size).map(Ok)).collect();
        if let Some((renewals, tell)) = known.and_then(|renewals| Some((renewals, tell.take()?))) {
            // OK because whoever does not listen any more needs no answer.
            let _ = tell.send(Ok(renewals));
        }
    };
    let answers = quorum.ask_all(timeout, ask, on_answer).await;
    let Some(tell) = tell else { return };
    let failure = || {
        let errors = answers.iter().flatten().filter_map(|answer| answer.as_ref().err()).cloned();
        quorum.too_few(answers.iter().flatten().all(Result::is_err), errors)
    };
    // OK as above.
    let _ = tell.send(Ok(all.map(|at| renewal(at, &answers, size).ok_or_else(failure)).collect()));
}

/// The answer of a quorum about one lease; `None` while it is undecided.
fn renewal(at: usize, answers: &[Option<Result<Renewals, BackendError>>], size: usize) -> Option<Renewal> {
    let of = |answer: &Option<Result<Vec<_>, _>>| match answer {
        Some(Ok(renewals)) => {
            renewals.get(at).and_then(|renewal: &Result<_, _>| renewal.as_ref().ok().copied())
        }
        _ => None,
    };
    let count = |wanted: Renewal| answers.iter().filter(|answer| of(answer) == Some(wanted)).count();
    if count(Renewal::Renewed) >= size {
        Some(Renewal::Renewed)
    } else if count(Renewal::Gone) > answers.len() - size {
        Some(Renewal::Gone)
    } else {
        None
    }
}
