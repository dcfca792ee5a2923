//! Memos on a quorum.
//!
//! A memo is written on every node where its owner holds, and is there once a majority has written it. Whoever reads asks a
//! majority as well, so at least one node of those has the last memo that was answered for. It is told from older ones by its
//! token, which grows from holder to holder (L2) and which no node replaces by a smaller one; of two by one holder the younger
//! one is the last, for a holder writes one after the other. A memo that fewer wrote is not answered for: it may be read, or not.
//!
//! Not promised: that an older memo is not read again, where a node has missed a younger one that was kept for less time. It ends
//! by its own time.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use tenure_core::{
    BackendError, FencingToken, LockName, LockView, Memo, MemoView, Noted, OwnerId, QuorumNode,
};
use tokio::sync::oneshot;

use crate::quorum::Quorum;

/// How long a node may take to write one: 500 ms.
const NOTE: Duration = Duration::from_millis(500);

/// Writes a memo on all nodes. Tells as soon as a majority has, or cannot any more, and goes on with the others.
pub(crate) async fn note_everywhere<N: QuorumNode>(
    quorum: Arc<Quorum<N>>,
    name: LockName,
    (owner, token): (OwnerId, FencingToken),
    memo: Memo,
    tell: oneshot::Sender<Result<Noted, BackendError>>,
) {
    let (size, mut tell) = (quorum.size(), Some(tell));
    let ask = |node: Arc<N>| {
        let (name, memo) = (name.clone(), memo.clone());
        async move { node.note(&name, owner, token, &memo).await }
    };
    let on_answer = |answers: &[Option<Result<Noted, BackendError>>]| {
        let said =
            |wanted: Noted| answers.iter().flatten().filter(|a| a.as_ref().ok() == Some(&wanted)).count();
        let verdict = if said(Noted::Noted) >= size {
            Noted::Noted
        } else if said(Noted::Gone) > answers.len() - size {
            Noted::Gone
        } else {
            return;
        };
        if let Some(tell) = tell.take() {
            // OK because whoever does not listen any more needs no answer.
            let _ = tell.send(Ok(verdict));
        }
    };
    let answers = quorum.ask_all(NOTE, ask, on_answer).await;
    let Some(tell) = tell else { return };
    let is_untouched = !answers.iter().flatten().any(|answer| matches!(answer, Ok(Noted::Noted)));
    let errors = answers.into_iter().flatten().filter_map(Result::err);
    // OK as above.
    let _ = tell.send(Err(quorum.too_few(is_untouched, errors)));
}

/// The last memo that a majority has answered for, from the views of a majority.
pub(crate) fn latest(views: &[LockView]) -> Option<MemoView> {
    let memos = views.iter().filter_map(|view| view.memo.as_ref());
    memos.max_by_key(|memo| (memo.token, Reverse(memo.age))).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(token: u64, age: u64) -> LockView {
        let name = LockName::new("a").expect("a name");
        let mut view = LockView::new(name, Vec::new(), Vec::new(), FencingToken::new(token));
        let (age, left) = (Duration::from_secs(age), Duration::from_secs(9));
        view.memo = Some(MemoView::new("", ("x", FencingToken::new(token)), age, left));
        view
    }

    #[test]
    fn the_largest_token_and_then_the_youngest_is_the_last() {
        let last = latest(&[seen(7, 3), seen(8, 50), seen(8, 40)]).expect("a memo");
        assert_eq!((last.token, last.age), (FencingToken::new(8), Duration::from_secs(40)));
        assert_eq!(latest(&[]), None);
    }
}
