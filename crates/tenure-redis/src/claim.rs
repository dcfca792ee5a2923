//! The verb `claim`: the plain path, the path that sees everything, and reading its answers.

use std::{fmt::Write, sync::Arc};

use tenure_core::{
    BackendError, Claim, ClaimAnswer, ErrorKind, FencingToken, Grant, HolderView, Mode, Moment, Outcome, Wait,
};

use crate::{
    backend::{Redis, millis},
    connection::{Taken, Taking},
    error,
    script::Reply,
    session::Session,
    value,
};

impl Redis {
    /// One claim.
    pub(crate) async fn try_claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        self.allow(claim.ttl)?;
        for _ in 0..3 {
            let listens = claim.wait != Wait::No;
            let session =
                if listens { self.sessions.listening().await? } else { self.sessions.session().await? };
            claim.asker.must_be_there()?;
            let (gate, now) = (session.gate(), self.sessions.host().now());
            if let Some(text) = self.sessions.pass(&session, &gate, now)? {
                session.stand(now).await?;
                if let Some(answer) = self.claim_through(&session, text, claim, now).await? {
                    return Ok(answer);
                }
            }
            Box::pin(session.recheck(&gate)).await?;
        }
        let session = self.sessions.session().await?;
        Err(session.gate().refusal(session.place(), self.sessions.host().now()))
    }

    /// One attempt to be let in through an open gate. `None`: it is closed.
    async fn claim_through(
        &self,
        session: &Session,
        gate: &Arc<str>,
        claim: &Claim,
        since: Moment,
    ) -> Result<Option<ClaimAnswer>, BackendError> {
        if claim.mode == Mode::Exclusive && !self.contended.is_contended(&claim.name) {
            match self.acquire(session, gate, claim, since).await? {
                (-1, _) => return Ok(None),
                (-2, _) => return Box::pin(self.close(session, gate)).await,
                (0, _) => self.contended.set(&claim.name, true),
                (last, count) => {
                    let first = last.saturating_add(1).saturating_sub_unsigned(count);
                    let answer = granted(claim, first, count);
                    self.learn(gate, &answer);
                    return Ok(Some(answer));
                }
            }
        }
        Box::pin(self.claim_in_full(session, gate, claim)).await
    }

    /// The path that sees everything.
    async fn claim_in_full(
        &self,
        session: &Session,
        gate: &str,
        claim: &Claim,
    ) -> Result<Option<ClaimAnswer>, BackendError> {
        let (script, keys) = (&self.scripts().claim, self.keys(&claim.name)?);
        let mut call = self.full_call(script, &keys, gate);
        call.arg(&claim.owner.hex()[..]).arg(millis(claim.ttl)).arg(value::mode_code(claim.mode));
        call.arg(match claim.wait {
            Wait::No => "n",
            Wait::Wake => "w",
            Wait::Turn => "t",
        });
        let (label, since) = (self.label(&claim.label), self.sessions.host().now().wall.as_millis());
        call.arg(claim.block.max(1)).arg(since.to_string()).arg(&*label);
        call.arg(self.known(gate));
        let answer = session.ask(script, &call).await?;
        let parsed = Reply::new(answer).and_then(|reply| read_answer(claim, reply));
        match parsed.ok_or_else(|| error::unreadable(session.place(), "a claim"))? {
            Claimed::Answer(answer) => {
                self.learn(gate, &answer);
                Ok(Some(answer))
            }
            Claimed::Closed => Ok(None),
            Claimed::Rewound => self.close(session, gate).await,
            Claimed::Full(waiting) => {
                let message =
                    format!("the queue of this lock is full: {waiting} owners wait already; try again later");
                Err(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message))
            }
        }
    }

    /// The plain path: nobody holds and nobody waits. The last token and their count, or why not.
    async fn acquire(
        &self,
        session: &Session,
        gate: &Arc<str>,
        claim: &Claim,
        since: Moment,
    ) -> Result<Taken, BackendError> {
        let mut tail = String::with_capacity(64);
        // OK because writing to a String cannot fail.
        let _ = write!(tail, ":{}:", since.wall.as_millis());
        tail.push_str(&self.label(&claim.label));
        let taking = Taking {
            asker: claim.asker.clone(),
            keys: self.keys(&claim.name)?,
            gate: gate.clone(),
            owner: claim.owner.hex(),
            tail,
            ttl_ms: millis(claim.ttl),
            block: claim.block,
        };
        session.connection.ask_plainly(&self.sessions.shared, taking).await
    }
}

fn granted(claim: &Claim, token: i64, count: u64) -> ClaimAnswer {
    ClaimAnswer::Granted(Grant {
        name: claim.name.clone(),
        owner: claim.owner,
        token: FencingToken::new(token.unsigned_abs()),
        block: u32::try_from(count).unwrap_or(1),
        ttl: claim.ttl,
    })
}

enum Claimed {
    Answer(ClaimAnswer),
    Closed,
    Rewound,
    Full(u64),
}

/// See the contract of `claim.lua`.
fn read_answer(claim: &Claim, mut reply: Reply) -> Option<Claimed> {
    let kind = reply.number()?;
    Some(match kind {
        0 => Claimed::Closed,
        1 => Claimed::Answer(granted(claim, reply.number()?, reply.count()?)),
        4 => Claimed::Full(reply.count()?),
        5 => Claimed::Rewound,
        _ => {
            let (ahead, retry_after) = (usize::try_from(reply.count()?).ok()?, reply.millis()?);
            let holder = read_holder(&mut reply);
            Claimed::Answer(if kind == 3 {
                ClaimAnswer::Busy { retry_after, holder }
            } else {
                ClaimAnswer::Queued { ahead, retry_after, holder }
            })
        }
    })
}

/// `value, ms left`, or for shared holders `SHARED, ms left, owner, details`.
pub(crate) fn read_holder(reply: &mut Reply) -> Option<HolderView> {
    let (value, left) = (reply.bytes()?, reply.millis());
    if value == value::SHARED.as_bytes()
        && let (Some(owner), Some(details)) = (reply.text(), reply.text())
    {
        return value::shared_holder(&owner, &details, left.unwrap_or_default());
    }
    Some(value::sole_holder(&value, left))
}
