//! Memos: a key beside the lock that ends by itself.

use std::time::Duration;

use tenure_core::{BackendError, FencingToken, LockName, Memo, MemoView, Noted, OwnerId};

use crate::{
    backend::{Redis, millis},
    error,
    script::number,
};

impl Redis {
    /// One attempt. No gate is asked: where a lease was forgotten its owner does not hold.
    pub(crate) async fn leave_memo(
        &self,
        name: &LockName,
        (owner, token): (OwnerId, FencingToken),
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        let session = self.sessions.session().await?;
        let (script, keys) = (&self.scripts().note, self.keys(name)?);
        let beside = ["shared", "who", "memo"].map(|kind| keys.side(kind));
        let [shared, who, key] = &beside;
        let mut call = script.call(&[&keys.lock, shared, who, key]);
        call.arg(&owner.hex()[..]).arg(token.get()).arg(millis(memo.kept())).arg(memo.text());
        match number(&session.ask(script, &call).await?) {
            Some(1) => Ok(Noted::Noted),
            Some(0) => Ok(Noted::Gone),
            _ => Err(error::unreadable(session.place(), "a memo")),
        }
    }
}

/// From `owner:token:kept:text`; `None` for anything else.
pub(crate) fn read(value: &[u8], left: Duration) -> Option<MemoView> {
    let mut parts = std::str::from_utf8(value).ok()?.splitn(4, ':');
    let (owner, token) = (parts.next()?, parts.next()?.parse().ok()?);
    let kept = Duration::from_millis(parts.next()?.parse().ok()?);
    Some(MemoView::new(parts.next()?, (owner, FencingToken::new(token)), kept.saturating_sub(left), left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memo_reads_back_whatever_it_says() {
        let memo = read("ab:7:9000:a:b\n:é".as_bytes(), Duration::from_secs(2)).unwrap();
        assert_eq!((memo.text.as_str(), memo.owner.as_str(), memo.token.get()), ("a:b\n:é", "ab", 7));
        assert_eq!((memo.age, memo.left), (Duration::from_secs(7), Duration::from_secs(2)));
        for other in [&b""[..], b"ab:7:9000", b"ab:x:9000:", b"\xff:7:9:"] {
            assert_eq!(read(other, Duration::ZERO), None);
        }
    }
}
